"""Small episodes with known content."""

from __future__ import annotations

from typing import Any

import numpy as np

from plaudit.data import Episode


def make_episode(id: str, *, success_at: int | None = None, length: int = 5, **changes: Any) -> Episode:
    """An episode of `length` actions with a frame at every instant, the reset included.

    Args:
        id: Its name, which also seeds its pixels.
        success_at: The instant from which on it shows success.
        length: Number of actions.
        changes: Fields that differ.
    """
    random = np.random.default_rng([ord(letter) for letter in id])
    instants = np.arange(length + 1, dtype=np.int32)
    success = instants >= success_at if success_at is not None else np.zeros(length + 1, bool)
    fields: dict[str, Any] = {
        "id": id,
        "frames": {
            "base_camera": random.integers(0, 256, (length + 1, 8, 10, 3), np.uint8),
            "wrist_camera": random.integers(0, 256, (length + 1, 6, 6, 3), np.uint8),
        },
        "labels": success.astype(np.int8),
        "frame_index": instants,
        "length": length,
        "success": bool(success.any()),
        "label_source": "simulator",
        "flags": {"grasp": (instants % 2).astype(np.int8)},
        "state": random.normal(size=(length + 1, 4)).astype(np.float32),
        "actions": random.uniform(-1, 1, (length, 3)).astype(np.float32),
        "rewards": success[1:].astype(np.float32),
        "terminated": np.zeros(length, bool),
        "truncated": np.arange(length) == length - 1,
        "meta": {"env": "PickCube", "seed": 7, "fps": 20.0},
    }
    return Episode(**{**fields, **changes}).check()


def assert_same(ours: Episode, theirs: Episode) -> None:
    """Every field is equal."""
    for name in ("id", "length", "success", "label_source"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert dict(ours.meta) == dict(theirs.meta)
    for name in ("labels", "frame_index", "state", "actions", "rewards", "terminated", "truncated"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None), name
        if mine is not None:
            np.testing.assert_array_equal(mine, other, err_msg=name)
    for name in ("frames", "flags"):
        assert getattr(ours, name).keys() == getattr(theirs, name).keys()
        for key, value in getattr(ours, name).items():
            np.testing.assert_array_equal(value, getattr(theirs, name)[key], err_msg=f"{name}.{key}")
