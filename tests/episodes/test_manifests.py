"""Splits as files: they come back, move with their data set, and say what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import make_episode

from plaudit.data import EpisodeStore
from plaudit.data.split import SplitSettings, split_episodes
from plaudit.data.split_files import earlier_assignment, load_split, load_splits, read_members, save_splits
from plaudit.errors import DataError


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([make_episode(f"e{i}", success_at=3 if i % 2 else None) for i in range(8)])
    return store


@pytest.fixture
def folder(store: EpisodeStore) -> Path:
    folder = store.path / "splits" / "default"
    save_splits(folder, split_episodes(store, SplitSettings(seed=3, num_samples_per_episode=2)))
    return folder


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_splits_come_back_as_they_were(store: EpisodeStore, folder: Path) -> None:
    made = split_episodes(store, SplitSettings(seed=3, num_samples_per_episode=2))
    read = load_splits(folder)
    assert list(read) == list(made) == ["train", "val", "test"]
    for name, split in made.items():
        assert [s.id for s in read[name].summaries] == [s.id for s in split.summaries]
        assert [rows.tolist() for rows in read[name].rows] == [rows.tolist() for rows in split.rows]
        assert read[name].index.tolist() == split.index.tolist()
        assert read[name].settings == split.settings and read[name].dropped == split.dropped
        assert read[name].counts == split.counts
    assert load_split(folder / "val.json").counts == made["val"].counts


def test_no_picture_is_copied_and_the_manifest_is_readable(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["test.json", "train.json", "val.json"]
    content = json.loads((folder / "train.json").read_text())
    assert content["source"] == "../.." and content["format"] == "plaudit" and content["settings"]["seed"] == 3
    lines = (folder / "train.json").read_text().splitlines()
    assert sum(line.startswith('    "e') for line in lines) == len(content["episodes"])


def test_a_data_set_moves_with_its_splits(store: EpisodeStore, folder: Path, tmp_path: Path) -> None:
    moved = shutil.move(store.path, tmp_path / "elsewhere")
    assert load_split(Path(moved) / "splits" / "default" / "train.json").source.path == tmp_path / "elsewhere"


def test_a_split_that_is_no_more_loses_its_file(store: EpisodeStore, folder: Path) -> None:
    save_splits(folder, split_episodes(store, SplitSettings(test_fraction=0)))
    assert not (folder / "test.json").exists() and list(load_splits(folder)) == ["train", "val"]


def test_the_earlier_assignment_counts_only_for_the_same_seed_and_shares(folder: Path) -> None:
    earlier = earlier_assignment(folder, SplitSettings(seed=3, fail_success_ratio=1.0))
    assert len(earlier) == 8 and set(earlier.values()) == {"train", "val", "test"}
    assert earlier_assignment(folder, SplitSettings(seed=4)) == {}
    assert earlier_assignment(folder / "none", SplitSettings()) == {}


def test_new_episodes_do_not_move_the_old_ones(store: EpisodeStore, folder: Path) -> None:
    before = {name: {s.id for s in split.summaries} for name, split in load_splits(folder).items()}
    store.add([make_episode(f"a{i}", success_at=3 if i % 2 else None) for i in range(8)])
    settings = SplitSettings(seed=3)
    save_splits(folder, split_episodes(store, settings, earlier_assignment(folder, settings)))
    after = {name: {s.id for s in split.summaries} for name, split in load_splits(folder).items()}
    assert all(before[name] < after[name] or before[name] == after[name] for name in before)
    assert sum(map(len, after.values())) == 16


def test_an_episode_that_is_gone_is_named(store: EpisodeStore, folder: Path) -> None:
    gone = next(iter(json.loads((folder / "val.json").read_text())["episodes"]))
    store.file(gone).unlink()
    with pytest.raises(DataError, match=rf"val\.json: 1 of its episodes, such as '{gone}'"):
        load_split(folder / "val.json")


def test_members_are_told_even_of_a_damaged_data_set(store: EpisodeStore, folder: Path) -> None:
    store.file("e1").unlink()
    members = read_members(folder, EpisodeStore(store.path))
    assert sum(map(len, members.values())) == 8
    with pytest.raises(DataError, match="another data set"):
        read_members(folder, EpisodeStore.create(store.path.parent / "other"))
    with pytest.raises(DataError, match="holds no splits"):
        read_members(store.path, store)


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({key: value})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("manifest", "x"), "is not a split manifest"),
        (_set("schema", 99), "schema 99"),
        (_set("episodes", []), "'episodes' is missing or damaged"),
        (_set("settings", {"sed": 1}), "'settings' is damaged"),
        (_set("source", "../nowhere"), "is not at"),
        (lambda content: content["episodes"].update({next(iter(content["episodes"])): [3, 1]}), "do not ascend"),
        (lambda content: content["episodes"].update({next(iter(content["episodes"])): [0, 99]}), "names frame 99"),
        (lambda content: content["episodes"].update({next(iter(content["episodes"])): "x"}), "do not ascend"),
    ],
)
def test_a_damaged_manifest_is_named(edit: Callable[[dict[str, Any]], Any], message: str, folder: Path) -> None:
    change(folder / "train.json", edit)
    with pytest.raises(DataError, match=rf"train\.json.*{message}"):
        load_split(folder / "train.json")


def test_a_torn_or_missing_manifest_is_named(folder: Path) -> None:
    text = (folder / "train.json").read_text()
    (folder / "train.json").write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match=r"train\.json: cannot be read"):
        load_split(folder / "train.json")
    with pytest.raises(DataError, match=r"trian\.json.*Did you mean 'train\.json'"):
        load_split(folder / "trian.json")
    with pytest.raises(DataError, match="holds no splits"):
        load_splits(folder.parent)


def test_manifests_of_different_data_sets_do_not_mix(folder: Path) -> None:
    change(folder / "val.json", _set("source", "../../../other"))
    with pytest.raises(DataError, match="different data sets"):
        load_splits(folder)
