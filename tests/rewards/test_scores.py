"""Scores: what they may hold, and that they come back from the disk as they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from score_samples import make_scores

from plaudit.errors import DataError
from plaudit.reward_models.evaluation.scores import Scores

TWO = make_scores(([1, 2, 3], [0, 0, 1]), ([4, 5], [1, 0]))


def test_knows_its_episodes() -> None:
    assert TWO.starts.tolist() == [0, 3] and TWO.ends.tolist() == [2, 4]
    assert TWO.per_episode(TWO.labels == 1).tolist() == [1, 1]
    assert TWO.per_episode(TWO.logits).tolist() == [6, 9]


@pytest.mark.parametrize("spread", [None, np.arange(5, dtype=np.float32)])
def test_comes_back_from_the_disk(tmp_path: Path, spread: Any) -> None:
    scores = dataclasses.replace(TWO, spread=spread)
    scores.save(tmp_path / "new" / "scores.npz")
    read = Scores.load(tmp_path / "new" / "scores.npz")
    for field in dataclasses.fields(Scores):
        ours, theirs = getattr(scores, field.name), getattr(read, field.name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": np.zeros(0, np.float32)}, "no frame was scored"),
        ({"logits": np.zeros(5)}, r"logits must be float32 \(5,\), not float64"),
        ({"instant": np.zeros(4, np.int32)}, r"instant must be int32 \(5,\)"),
        ({"labels": np.array([0, 0, -1, 1, 0], np.int8)}, "label of episode 0, instant 2 is -1"),
        ({"logits": np.array([0, 0, 0, np.nan, 0], np.float32)}, "logits of episode 1, instant 0 is nan"),
        ({"spread": np.array([0, np.inf, 0, 0, 0], np.float32)}, "spread of episode 0, instant 1 is inf"),
        ({"episode": np.array([0, 0, 1, 0, 0])}, "episode 0, instant 0 is out of order"),
        ({"instant": np.array([0, 1, 1, 0, 1], np.int32)}, "episode 0, instant 1 is out of order"),
    ],
)
def test_says_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataclasses.replace(TWO, **changes)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    TWO.save(path)
    whole = path.read_bytes()
    pickled = np.array([{"a": 1}], object)
    for content in (b"", b"nonsense", whole[:100], whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"scores\.npz: is not a file of scores"):
            Scores.load(path)
    np.savez(path, logits=pickled, labels=pickled, episode=pickled, instant=pickled)
    with pytest.raises(DataError, match=r"scores\.npz: is not a file of scores"):  # And not "must be float32".
        Scores.load(path)
    np.savez(path, **{name: np.zeros(3) for name in ("logits", "labels", "episode", "instant")})
    with pytest.raises(DataError, match=r"scores\.npz: scores: logits must be float32 \(3,\), not float64"):
        Scores.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"array\.npy: is not a file of scores"):
        Scores.load(tmp_path / "array.npy")
    with pytest.raises(DataError, match=r"none\.npz: there is no such file"):
        Scores.load(tmp_path / "none.npz")
