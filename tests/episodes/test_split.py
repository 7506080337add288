"""Splits: by episode, in exact shares, the same for a seed; frames thinned out in training only."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import make_episode

from plaudit.data import FAILURE, SUCCESS, Episode, EpisodeSource, EpisodeStore, Summary
from plaudit.data.split import Split, SplitSettings, assign, split_episodes
from plaudit.errors import DataError


def store_of(path: Path, positives: int, negatives: int, length: int = 5) -> EpisodeStore:
    store = EpisodeStore.create(path)
    store.add([make_episode(f"p{i:03d}", success_at=length - 1, length=length) for i in range(positives)])
    store.add([make_episode(f"n{i:03d}", length=length) for i in range(negatives)])
    return store


def summaries_of(positives: int, negatives: int) -> list[Summary]:
    kinds = [(f"p{i}", True) for i in range(positives)] + [(f"n{i}", False) for i in range(negatives)]
    return [Summary(id, np.zeros(3, np.int8), positive, {}, "simulator") for id, positive in kinds]


def ids(split: Split) -> list[str]:
    return [summary.id for summary in split.summaries]


def counts(names: dict[str, str], letter: str) -> dict[str, int]:
    found = [name for id, name in names.items() if id.startswith(letter)]
    return {name: found.count(name) for name in ("train", "val", "test")}


def test_every_episode_is_in_one_split_with_all_its_frames(tmp_path: Path) -> None:
    store = store_of(tmp_path, 20, 20)
    splits = split_episodes(store)
    assert list(splits) == ["train", "val", "test"]
    assert sorted(id for split in splits.values() for id in ids(split)) == list(store.ids)
    assert all(len(rows) == 6 for split in splits.values() for rows in split.rows)
    assert [store.ids[i] for i in splits["val"].index] == ids(splits["val"])
    assert splits["train"].counts.positive == splits["train"].counts.negative == 14
    assert splits["val"].counts.frames == 6 * 6 and splits["val"].counts.success_frames == 3 * 2


def test_shares_are_exact_for_each_kind() -> None:
    names = assign(summaries_of(100, 40), SplitSettings(), {}, "here")
    assert counts(names, "p") == {"train": 70, "val": 15, "test": 15}
    assert counts(names, "n") == {"train": 28, "val": 6, "test": 6}


def test_whole_episodes_are_held_back_first() -> None:
    some = [dataclasses.replace(summary, whole=i % 4 == 0) for i, summary in enumerate(summaries_of(100, 40))]
    names = assign(some, SplitSettings(val_fraction=0.1, test_fraction=0.1), {}, "here")
    whole = {summary.id for summary in some if summary.whole}
    assert {id for id, name in names.items() if name != "train"} < whole
    names = assign(some, SplitSettings(), {}, "here")
    assert counts(names, "p") == {"train": 70, "val": 15, "test": 15}
    assert whole < {id for id, name in names.items() if name != "train"}


def test_short_episodes_are_not_held_back_for_being_short(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    store.add([make_episode(f"p{i:03d}", success_at=2, length=2 if i < 30 else 9) for i in range(100)])
    store.add([make_episode(f"n{i:03d}", length=9) for i in range(10)])
    short = [summary for summary in split_episodes(store)["train"].summaries if len(summary.labels) == 3]
    assert len(short) > 10


def test_the_same_seed_gives_the_same_split_and_another_one_another() -> None:
    some = summaries_of(50, 50)
    first = assign(some, SplitSettings(), {}, "")
    assert assign(some[::-1], SplitSettings(), {}, "") == first
    assert assign(some, SplitSettings(seed=1), {}, "") != first


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.integers(3, 40), st.floats(0.01, 0.45), st.floats(0.01, 0.45), st.integers(0, 2**31))
def test_no_split_is_without_positives_or_negatives(
    positives: int, negatives: int, val: float, test: float, seed: int
) -> None:
    names = assign(summaries_of(positives, negatives), SplitSettings(val, test, seed), {}, "")
    assert len(names) == positives + negatives
    for letter in "pn":
        assert min(counts(names, letter).values()) >= 1


def test_without_a_test_fraction_two_of_each_are_enough() -> None:
    names = assign(summaries_of(2, 2), SplitSettings(test_fraction=0), {}, "")
    assert counts(names, "p") == counts(names, "n") == {"train": 1, "val": 1, "test": 0}


@pytest.mark.parametrize(("positives", "negatives"), [(2, 30), (30, 0)])
def test_too_few_episodes_are_an_error_that_counts_them(positives: int, negatives: int) -> None:
    with pytest.raises(DataError, match=rf"here: has {positives} positive and {negatives} negative.*at least 3"):
        assign(summaries_of(positives, negatives), SplitSettings(), {}, "here")


def test_few_move_when_new_ones_join_and_none_where_the_old_split_is_known() -> None:
    settings = SplitSettings()
    before = assign(summaries_of(200, 200), settings, {}, "")
    after = assign(summaries_of(240, 240), settings, {}, "")
    assert sum(after[id] != name for id, name in before.items()) < 0.06 * len(before)
    kept = assign(summaries_of(240, 240), settings, before, "")
    assert all(kept[id] == name for id, name in before.items())
    assert counts(kept, "p") == counts(after, "p")


def test_an_earlier_split_that_lost_its_episodes_is_made_anew() -> None:
    names = assign(summaries_of(3, 3), SplitSettings(), {f"{kind}{i}": "val" for kind in "pn" for i in range(3)}, "")
    assert counts(names, "p") == {"train": 1, "val": 1, "test": 1}


def test_two_episodes_of_one_name_are_refused(tmp_path: Path) -> None:
    class Twice(EpisodeStore):
        def summaries(self) -> list[Summary]:
            return super().summaries() * 2

    with pytest.raises(DataError, match="two episodes are called 'n000'"):
        split_episodes(Twice(store_of(tmp_path, 3, 3).path))


def test_samples_are_the_last_frame_label_changes_and_others_by_lot(tmp_path: Path) -> None:
    store = store_of(tmp_path, 6, 6, length=20)
    splits = split_episodes(store, SplitSettings(num_samples_per_episode=5))
    train = splits["train"]
    for summary, rows in zip(train.summaries, train.rows, strict=True):
        assert len(rows) == 5 and (np.diff(rows) > 0).all() and rows[-1] == 20
        if summary.positive:
            assert {18, 19} <= set(rows.tolist())
    assert len({tuple(rows) for rows in train.rows}) > 1
    assert train.dropped == {"not sampled": len(train) * 16}
    assert all(len(rows) == 21 for rows in splits["val"].rows)
    again = split_episodes(store, SplitSettings(num_samples_per_episode=5))["train"]
    assert [rows.tolist() for rows in again.rows] == [rows.tolist() for rows in train.rows]


def test_no_last_frame_is_kept_where_it_is_not_asked_for(tmp_path: Path) -> None:
    chosen = SplitSettings(num_samples_per_episode=2, keep_last_frame=False)
    train = split_episodes(store_of(tmp_path, 6, 6, length=20), chosen)["train"]
    negatives = [rows for summary, rows in zip(train.summaries, train.rows, strict=True) if not summary.positive]
    assert any(rows[-1] != 20 for rows in negatives)


def labels_of(split: Split) -> list[int]:
    return [int(label) for s, rows in zip(split.summaries, split.rows, strict=True) for label in s.labels[rows]]


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_surplus_failures_are_dropped_in_training_only(ratio: float, tmp_path: Path) -> None:
    splits = split_episodes(store_of(tmp_path, 10, 10, length=20), SplitSettings(fail_success_ratio=ratio))
    labels = labels_of(splits["train"])
    assert labels.count(SUCCESS) == 7 * 2 or labels.count(SUCCESS) == 6 * 2
    assert labels.count(FAILURE) == int(ratio * labels.count(SUCCESS))
    assert labels_of(splits["val"]).count(FAILURE) > 10 * labels_of(splits["val"]).count(SUCCESS) > 0


def test_last_frames_are_the_last_to_be_dropped(tmp_path: Path) -> None:
    train = split_episodes(store_of(tmp_path, 10, 10, length=20), SplitSettings(fail_success_ratio=1.0))["train"]
    assert all(20 in rows for rows in train.rows)


def test_a_ratio_that_is_there_already_changes_nothing(tmp_path: Path) -> None:
    train = split_episodes(store_of(tmp_path, 6, 6), SplitSettings(fail_success_ratio=100.0))["train"]
    assert train.dropped == {} and all(len(rows) == 6 for rows in train.rows)


def test_frames_without_a_label_are_left_out_everywhere(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    for i in range(6):
        episode = make_episode(f"e{i}", success_at=4 if i % 2 else None)
        labels = episode.labels.copy()
        labels[0] = -1
        store.add([dataclasses.replace(episode, labels=labels)])
    for split in split_episodes(store).values():
        assert all(rows.tolist() == [1, 2, 3, 4, 5] for rows in split.rows)
        assert split.dropped == {"unknown label": len(split)}


def test_repeated_frames_are_left_out_of_training(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    for i in range(6):
        episode = make_episode(f"e{i}", success_at=4 if i % 2 else None)
        actions = np.array(episode.actions)
        actions[1] = 0
        store.add([dataclasses.replace(episode, actions=actions)])
    splits = split_episodes(store)
    assert all(rows.tolist() == [0, 1, 3, 4, 5] for rows in splits["train"].rows)
    assert all(len(rows) == 6 for rows in splits["val"].rows)
    kept = split_episodes(store, SplitSettings(drop_stationary=False))["train"]
    assert all(len(rows) == 6 for rows in kept.rows)


class Frames(EpisodeSource):
    """Single frames, some of which say which split they are of."""

    format = "frames"

    def __init__(self, splits: Sequence[str | None]) -> None:
        self.path, self.splits = Path("frames"), splits

    def __len__(self) -> int:
        return len(self.splits)

    def read(self, index: int) -> Episode:
        meta = {} if self.splits[index] is None else {"split": self.splits[index]}
        pixels = {"camera": np.full((1, 4, 4, 3), index, np.uint8)}
        label = np.array([index % 2], np.int8)
        return Episode(f"f{index}", pixels, label, np.zeros(1, np.int32), 0, meta=meta)


def test_frames_that_come_in_splits_stay_in_them() -> None:
    splits = split_episodes(Frames(["train", "train", "val", "val"]))
    assert {name: ids(split) for name, split in splits.items()} == {"train": ["f0", "f1"], "val": ["f2", "f3"]}


def test_frames_without_episodes_are_split_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="plaudit"):
        splits = split_episodes(Frames([None] * 6))
    assert "every episode of 'frames' is a single frame" in caplog.text
    assert sum(map(len, splits.values())) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_fraction": 1.0}, "val_fraction"),
        ({"test_fraction": -0.1}, "test_fraction"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "leaves nothing"),
        ({"fail_success_ratio": 0.0}, "fail_success_ratio"),
        ({"num_samples_per_episode": -1}, "num_samples_per_episode"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitSettings(**changes)  # type: ignore[arg-type]
