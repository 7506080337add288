"""Splits that cannot be fitted to are refused, with the reason."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_samples import square, square_splits, square_store

from plaudit.data import EpisodeStore
from plaudit.data.split import Split, SplitSettings
from plaudit.errors import DataError
from plaudit.reward_models.training.split_checks import check_splits


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, Split]:
    return square_splits(tmp_path / "data", 24)


def only(split: Split, label: int) -> Split:
    rows = [row[summary.labels[row] == label] for summary, row in zip(split.summaries, split.rows, strict=True)]
    return replace(split, rows=rows)


def whole(store: EpisodeStore, name: str) -> Split:
    summaries = store.summaries()
    rows = [np.arange(len(summary.labels), dtype=np.int32) for summary in summaries]
    return Split(name, store, np.arange(len(summaries)), summaries, rows, SplitSettings())


def test_good_splits_pass(splits: dict[str, Split]) -> None:
    check_splits(splits)
    check_splits({name: splits[name] for name in ("train", "val")})


@pytest.mark.parametrize("name", ["train", "val"])
@pytest.mark.parametrize(("label", "missing"), [(0, "success"), (1, "failure")])
def test_both_classes_are_needed(splits: dict[str, Split], name: str, label: int, missing: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' has no {missing} frame among its"):
        check_splits({**splits, name: only(splits[name], label)})


def test_a_test_split_may_have_one_class_but_not_none(splits: dict[str, Split]) -> None:
    check_splits({**splits, "test": only(splits["test"], 0)})
    with pytest.raises(DataError, match="the test split has no frame with a label"):
        check_splits({**splits, "test": only(splits["test"], 7)})


def test_a_missing_split_is_said(splits: dict[str, Split]) -> None:
    with pytest.raises(DataError, match="no split 'val'"):
        check_splits({"train": splits["train"]})


def test_an_episode_in_two_splits_is_a_leak(splits: dict[str, Split]) -> None:
    train, val = splits["train"], splits["val"]
    leaking = replace(
        val,
        index=np.append(val.index, train.index[3]),
        summaries=[*val.summaries, train.summaries[3]],
        rows=[*val.rows, train.rows[3]],
    )
    with pytest.raises(DataError, match=rf"'{train.summaries[3].id}' is in 'train' and in 'val'"):
        check_splits({**splits, "val": leaking})


def test_a_copy_in_another_data_set_under_another_name_is_a_leak(splits: dict[str, Split], tmp_path: Path) -> None:
    other = EpisodeStore.create(tmp_path / "other")
    other.add([square(number) for number in range(100, 108)])
    check_splits({**splits, "test": whole(other, "test")})
    copied = splits["train"].summaries[0].id
    other.add([replace(square(int(copied[-3:])), id="another-name")])
    with pytest.raises(
        DataError, match=f"'another-name', with the same pictures as '{copied}', is in 'train' and in 'te"
    ):
        check_splits({**splits, "test": whole(EpisodeStore(other.path), "test")})


def test_the_same_ids_in_two_data_sets_are_no_leak(splits: dict[str, Split], tmp_path: Path) -> None:
    other = EpisodeStore.create(tmp_path / "other")
    other.add([replace(square(number + 100), id=f"square-{number:03d}") for number in range(8)])
    check_splits({**splits, "test": whole(other, "test")})


def test_many_episodes_need_no_open_files(tmp_path: Path) -> None:
    import resource

    store = square_store(tmp_path / "many", 200)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already = len(os.listdir("/proc/self/fd"))  # Those of other tests too.
    resource.setrlimit(resource.RLIMIT_NOFILE, (already + 50, hard))
    try:
        rows = whole(store, "train")
        cut = [slice(0, 100), slice(100, 200)]
        both = {
            name: replace(rows, name=name, index=rows.index[some], summaries=rows.summaries[some], rows=rows.rows[some])
            for name, some in zip(("train", "val"), cut, strict=True)
        }
        check_splits(both)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
