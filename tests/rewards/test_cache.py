"""Features on the disk: the same as the encoder's, found again, and missed where anything is another."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_samples import SETTINGS, small_model, square, square_splits

from plaudit.config.reward_schema import AugmentConfig, OptimConfig
from plaudit.data import EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.data.split import split_episodes
from plaudit.errors import OutputError
from plaudit.reward_models.evaluation.scores import score
from plaudit.reward_models.model import RewardModel
from plaudit.reward_models.training import feature_cache as cache_module
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.batches import FeatureFeed, FrameFeed
from plaudit.reward_models.training.feature_cache import FeatureCache
from plaudit.reward_models.training.trainer import Fit

torch.set_num_threads(1)


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "features")


@pytest.fixture
def dataset(tmp_path: Path) -> FrameDataset:
    return FrameDataset(square_splits(tmp_path / "data", 12)["train"])


def frozen(seed: int = 0, **changes: Any) -> RewardModel:
    return small_model(seed, freeze_encoder=True, **changes)


class Count:
    """Counts how often an encoder is run on real frames."""

    def __init__(self, model: RewardModel) -> None:
        self.frames = 0
        model.encoder.register_forward_hook(self.add)

    def add(self, module: Any, inputs: Any, maps: torch.Tensor) -> None:
        self.frames += len(maps) if len(maps) > 1 else 0  # One blank frame tells the shape.


def test_features_are_the_encoders_to_three_digits(cache: FeatureCache, dataset: FrameDataset) -> None:
    model = frozen()
    features = cache.features(model, dataset)
    with torch.inference_mode():
        true = model.encode(model.prepare(dataset.batch(range(len(dataset)))["frames"])).numpy()
    assert features.shape == (len(dataset), 1, *true.shape[1:]) and features.dtype == np.float16
    np.testing.assert_allclose(features[:, 0], true, rtol=1e-3, atol=1e-4)
    assert isinstance(features, np.memmap) and features.mode == "r"


def test_the_next_fit_finds_them_and_runs_no_encoder(cache: FeatureCache, dataset: FrameDataset) -> None:
    first = cache.features(frozen(), dataset)
    again = frozen(heads=3, hidden_dim=8, dropout=0.5)
    again.encoder.load_state_dict(frozen().encoder.state_dict())
    count = Count(again)
    np.testing.assert_array_equal(cache.features(again, dataset), first)
    assert count.frames == 0 and len(list(cache.folder.iterdir())) == 1


@pytest.mark.parametrize("change", ["encoder", "normalize", "pixels", "rows", "views", "augment"])
def test_anything_else_misses_them(cache: FeatureCache, tmp_path: Path, change: str) -> None:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([square(number) for number in range(12)])
    augment, other = (Augment(AugmentConfig(shift=shift)) for shift in (1, 2))

    def data(**settings: Any) -> FrameDataset:
        split = split_episodes(EpisodeStore(tmp_path / "data"))["train"]
        return FrameDataset(replace(split, **settings))

    cache.features(frozen(), data(), views=2, augment=augment)
    model = frozen(seed=1) if change == "encoder" else frozen(normalize=False) if change == "normalize" else frozen()
    if change == "normalize":
        model.encoder.load_state_dict(frozen().encoder.state_dict())
    if change == "pixels":
        file = store.file("square-000")
        file.unlink()
        store.add([replace(square(500), id="square-000")])
    rows = {"rows": [row[:-1] for row in split_episodes(store)["train"].rows]} if change == "rows" else {}
    count = Count(model)
    views = 3 if change == "views" else 2
    cache.features(model, data(**rows), views=views, augment=other if change == "augment" else augment)
    assert count.frames == len(data(**rows)) * views and len(list(cache.folder.iterdir())) == 2


def test_how_plain_frames_would_be_varied_does_not_matter(cache: FeatureCache, dataset: FrameDataset) -> None:
    cache.features(frozen(), dataset, augment=Augment(AugmentConfig(shift=1)))
    cache.features(frozen(), dataset, augment=Augment(AugmentConfig(shift=3)))
    assert len(list(cache.folder.iterdir())) == 1


def test_views_begin_with_the_frame_itself(cache: FeatureCache, dataset: FrameDataset) -> None:
    plain = cache.features(frozen(), dataset)
    views = cache.features(frozen(), dataset, views=3, augment=Augment(AugmentConfig(shift=2)))
    np.testing.assert_array_equal(views[:, 0], plain[:, 0])
    assert (views[:, 1] != plain[:, 0]).any() and (views[:, 1] != views[:, 2]).any()


def test_a_killed_build_leaves_nothing_that_is_found(
    cache: FeatureCache, dataset: FrameDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(items: Any) -> Any:
        yield items[0]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "BATCH", 16)
        with pytest.raises(KeyboardInterrupt):
            cache.features(frozen(), dataset, track=killed)
    assert list(cache.folder.iterdir()) == []
    left = cache.folder / ".abc.999999999.npy"  # What a process that was killed harder would leave.
    left.write_bytes(b"half")
    cache.features(frozen(), dataset)
    assert left.exists()  # It may be another machine's.
    os.utime(left, (0, 0))
    cache.features(frozen(1), dataset)
    assert not left.exists()


def test_a_damaged_file_is_made_anew(
    cache: FeatureCache, dataset: FrameDataset, caplog: pytest.LogCaptureFixture
) -> None:
    first = np.array(cache.features(frozen(), dataset))
    (file,) = cache.folder.iterdir()
    file.write_bytes(file.read_bytes()[:500])
    np.testing.assert_array_equal(cache.features(frozen(), dataset), first)
    assert "is damaged" in caplog.text


def test_what_was_used_longest_ago_goes_first(
    cache: FeatureCache, dataset: FrameDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        size = cache.features(frozen(seed), dataset).nbytes
        os.utime(max(cache.folder.iterdir(), key=lambda file: file.stat().st_mtime), (seed, seed))
    cache.features(frozen(0), dataset)  # Used again just now.
    names = {file.name for file in cache.folder.iterdir()}
    monkeypatch.setattr(cache_module, "MOST", int(3.5 * size))
    cache.features(frozen(3), dataset)
    left = {file.name for file in cache.folder.iterdir()}
    assert len(left) == 3 and len(left & names) == 2
    count = Count(model := frozen(0))
    cache.features(model, dataset)
    assert count.frames == 0


def test_what_another_fit_is_writing_is_left_alone(
    cache: FeatureCache, dataset: FrameDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.folder.mkdir()
    writing, renamed = (cache.folder / f".{name}.{os.getppid()}.npy" for name in ("writing", "renamed"))
    writing.write_bytes(b"half")
    renamed.symlink_to(cache.folder / "gone")  # Is listed, and cannot be looked at, as one that was just renamed.
    monkeypatch.setattr(cache_module, "MOST", 1)
    cache.features(frozen(), dataset)
    assert writing.exists()


def test_a_disk_without_room_is_said_before_anything_is_encoded(
    cache: FeatureCache, dataset: FrameDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 10

    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: Full)
    with pytest.raises(OutputError, match=r"MB free\. Choose another place with reward\.training\.cache_dir"):
        cache.features(frozen(), dataset)


def test_a_head_learns_from_features_what_it_learns_from_frames(cache: FeatureCache, tmp_path: Path) -> None:
    splits = split_episodes(EpisodeStore(square_splits(tmp_path / "data", 40)["train"].source.path))
    data = {name: FrameDataset(split) for name, split in splits.items()}
    settings = replace(SETTINGS, num_epochs=6, optim=OptimConfig(lr=1e-3), augment=AugmentConfig(enabled=False))
    models = frozen(dropout=0.0), frozen(dropout=0.0)
    kept = {name: FeatureFeed(data[name], cache.features(models[0], data[name])) for name in ("train", "val")}
    Fit(models[0], kept["train"], kept["val"], settings).run()
    Fit(models[1], FrameFeed(data["train"]), FrameFeed(data["val"]), settings).run()
    ours, theirs = (score(model, FrameFeed(data["test"])).logits for model in models)
    np.testing.assert_allclose(ours, theirs, atol=0.05)
    assert np.ptp(theirs) > 1
