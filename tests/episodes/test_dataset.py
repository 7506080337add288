"""Frames as a torch `Dataset`: the right pixels with the right label, in any process, without reading episodes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import make_episode
from torch.utils.data import DataLoader

from plaudit.data import Episode, EpisodeSource, EpisodeStore
from plaudit.data import dataset as reading
from plaudit.data.dataset import FrameDataset
from plaudit.data.split import SplitSettings, split_episodes
from plaudit.errors import DataError


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([make_episode(f"e{i}", success_at=3 if i % 2 else None, length=4 + i) for i in range(6)])
    return store


class Wrapped(EpisodeSource):
    """A store that looks like another layout."""

    format = "other"

    def __init__(self, store: EpisodeStore) -> None:
        self.store, self.path, self.reads = store, store.path, 0

    def __len__(self) -> int:
        return len(self.store)

    def read(self, index: int) -> Episode:
        self.reads += 1
        return self.store[index]


def assert_item(item: dict[str, Any], dataset: FrameDataset, number: int) -> None:
    episode = dataset.source[int(dataset.episodes[number])]
    row = int(dataset.rows[number])
    assert list(item["frames"]) == list(dataset.sizes)
    for camera, pixels in item["frames"].items():
        assert pixels.dtype == torch.uint8
        np.testing.assert_array_equal(pixels.numpy(), episode.frames[camera][row])
    assert item["label"] == int(episode.labels[row]) and item["frame"] == int(episode.frame_index[row])
    assert item["episode"] == int(dataset.episodes[number]) and item["source"] == "simulator"


@pytest.mark.parametrize("layout", ["store", "other"])
def test_items_are_the_frames_with_what_belongs_to_them(layout: str, store: EpisodeStore) -> None:
    dataset = FrameDataset(store if layout == "store" else Wrapped(store))
    assert len(dataset) == sum(len(episode) for episode in store)
    assert dataset.labels.tolist() == [int(label) for episode in store for label in episode.labels]
    for number in (0, 7, 3, len(dataset) - 1):
        assert_item(dataset[number], dataset, number)
    assert_item(dataset[-1], dataset, len(dataset) - 1)
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize("layout", ["store", "other"])
def test_a_batch_is_its_items_in_the_order_asked_for(layout: str, store: EpisodeStore) -> None:
    dataset = FrameDataset(store if layout == "store" else Wrapped(store), ["wrist_camera"])
    numbers = [30, 2, 17, 2, -1]
    batch = dataset.batch(numbers)
    assert batch["frames"]["wrist_camera"].shape == (5, 6, 6, 3) and list(batch["frames"]) == ["wrist_camera"]
    items = dataset.__getitems__(numbers)
    for i, number in enumerate(numbers):
        alone = dataset[number]
        for found in (items[i], {key: batch[key][i] for key in ("label", "episode", "frame", "source")}):
            assert all(found[key] == alone[key] for key in ("label", "episode", "frame", "source"))
        assert torch.equal(batch["frames"]["wrist_camera"][i], alone["frames"]["wrist_camera"])
        assert torch.equal(items[i]["frames"]["wrist_camera"], alone["frames"]["wrist_camera"])
    with pytest.raises(IndexError, match="the batch asks for"):
        dataset.batch([0, len(dataset)])


def test_a_split_gives_only_its_frames(store: EpisodeStore) -> None:
    split = split_episodes(store, SplitSettings(num_samples_per_episode=2))["train"]
    dataset = FrameDataset(split)
    assert len(dataset) == 2 * len(split) == split.counts.frames
    assert set(dataset.episodes.tolist()) == set(split.index.tolist())
    for number in range(len(dataset)):
        assert_item(dataset[number], dataset, number)


def test_labels_are_known_without_opening_a_file(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr("plaudit.data.serialization.read", refuse)
    assert len(FrameDataset(EpisodeStore(store.path)).labels) == sum(len(s.labels) for s in store.summaries())


def test_one_frame_reads_one_frame(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = FrameDataset(store, ["base_camera"])
    dataset[0]
    sizes: list[int] = []
    inner = os.preadv

    def count(*args: Any) -> int:
        sizes.append(inner(*args))
        return sizes[-1]

    monkeypatch.setattr(os, "preadv", count)
    monkeypatch.setattr(os, "open", lambda *args: pytest.fail("opened again"))
    dataset[1]
    assert sizes == [8 * 10 * 3]


def test_few_files_stay_open(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_FILES", 2)
    dataset = FrameDataset(store)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(len(dataset)):
        assert_item(dataset[number], dataset, number)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    del dataset
    assert len(os.listdir("/proc/self/fd")) == before


def test_episodes_of_other_layouts_are_kept_for_a_while(store: EpisodeStore) -> None:
    source = Wrapped(store)
    dataset = FrameDataset(source)
    source.reads = 0
    dataset.batch(range(len(dataset)))
    assert source.reads == len(store)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_the_same(context: str, store: EpisodeStore) -> None:
    dataset = FrameDataset(store)
    dataset[0]  # A file is open when the workers start.
    loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    labels = torch.cat([batch["label"] for batch in batches])
    assert labels.tolist() == dataset.labels.tolist()
    first = torch.cat([batch["frames"]["base_camera"] for batch in batches])
    assert torch.equal(first, dataset.batch(range(len(dataset)))["frames"]["base_camera"])


def test_threads_read_the_same(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_FILES", 1)
    dataset = FrameDataset(store)
    whole = dataset.batch(range(len(dataset)))["frames"]["base_camera"]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(dataset), 200).tolist():
            if not torch.equal(dataset[number]["frames"]["base_camera"], whole[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_camera_that_is_not_there_names_the_nearest(store: EpisodeStore) -> None:
    with pytest.raises(DataError, match=r"episode 'e0' has no camera 'wrist_cam'.*'wrist_camera'"):
        FrameDataset(store, ["wrist_cam"])


def test_sizes_that_differ_name_both_episodes(store: EpisodeStore) -> None:
    frames = {name: np.zeros((6, 5, 5, 3), np.uint8) for name in ("base_camera", "wrist_camera")}
    store.add([make_episode("small", frames=frames)])
    with pytest.raises(DataError, match=r"'base_camera' is 8×10 pixels in episode 'e0', but 5×5 in 'small'"):
        FrameDataset(store)


def test_a_file_that_goes_away_or_shrinks_is_named(store: EpisodeStore) -> None:
    dataset = FrameDataset(store)
    number = int(np.flatnonzero(dataset.episodes == 2)[-1])
    dataset[number]
    file = store.file("e2")
    os.truncate(file, 500)
    with pytest.raises(DataError, match=r"e2\.safetensors: was cut short"):
        dataset[number]
    store.file("e3").unlink()
    with pytest.raises(DataError, match=r"e3\.safetensors: cannot be read"):
        dataset[int(np.flatnonzero(dataset.episodes == 3)[0])]
