"""From any writable layout to any other: nothing is lost but what is said, and nothing is said that is not lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import assert_same, make_episode

from plaudit.data import UNKNOWN, Episode
from plaudit.data.formats import FORMATS, load_episodes, lost, open_writer, writable
from plaudit.data.formats.base import FIELDS
from plaudit.errors import DataError

FORMAT_NAMES = ["episode_pkl", "images", "npy", "plaudit", "realworld", "realworld_raw"]
FULL = make_episode("full", success_at=3)
EPISODES = {
    "full": FULL,
    "failure": make_episode("failure"),
    "success at the end": make_episode("last", success_at=5),
    "success at once": make_episode("first", success_at=0),
    "dense reward": replace(make_episode("dense", success_at=2), rewards=np.linspace(-1, 0.4, 5, dtype=np.float32)),
    "some frames": replace(
        FULL,
        id="some",
        frames={name: pixels[[0, 2, 5]] for name, pixels in FULL.frames.items()},
        labels=FULL.labels[[0, 2, 5]],
        frame_index=np.array([0, 2, 5], np.int32),
        flags={"grasp": FULL.flags["grasp"][[0, 2, 5]], "near": np.array([1, -1, 0], np.int8)},
    ),
    "no reset": replace(
        FULL,
        id="later",
        frames={name: pixels[1:] for name, pixels in FULL.frames.items()},
        labels=FULL.labels[1:],
        frame_index=FULL.frame_index[1:],
        flags={},
        state=FULL.state[1:],
    ),
    "unknown labels": replace(FULL, id="unknown", labels=np.array([0, -1, 0, -1, 1, 1], np.int8), success=None),
    "only frames": Episode("bare", FULL.frames, FULL.labels, FULL.frame_index, FULL.length),
    "one camera": replace(FULL, id="one", frames={"main_images": FULL.frames["base_camera"]}),
}


def through(format: str, episode: Episode, place: Path) -> Episode:
    """An episode after it was written and read."""
    writer = open_writer(place / format, format)
    assert writer.add([episode]) == 1
    (found,) = load_episodes(place / format)
    return found


def rows_kept(format: str, episode: Episode) -> np.ndarray:
    kept = {
        "npy": episode.labels != UNKNOWN,
        "episode_pkl": episode.frame_index > 0,
        "realworld": episode.frame_index < episode.length,
    }.get(format, np.ones(len(episode), bool))
    return np.flatnonzero(kept)


def assert_kept(format: str, before: Episode, after: Episode) -> None:
    """Frames and labels are where they were, and so is every field that is not said to be lost."""
    rows = rows_kept(format, before)
    labels = np.array(before.labels[rows])
    renamed: dict[str, str] = {}
    if format in ("realworld", "realworld_raw"):
        labels[0] = UNKNOWN
        renamed = {} if "main_images" in before.frames else {before.cameras[0]: "main_images"}
    np.testing.assert_array_equal(after.labels, labels)
    assert set(after.frames) == {renamed.get(name, name) for name in before.frames}
    for name, pixels in before.frames.items():
        np.testing.assert_array_equal(after.frames[renamed.get(name, name)], pixels[rows])
    said = " ".join(text.split(":")[0] for text in lost([before], format))
    assert after.id == before.id and (after.positive == before.positive or "success" in said)
    for field in (*FIELDS, "frame_index", "length", "success"):
        if field not in said.split():
            expected = getattr(before, field)
            if field in ("flags", "frame_index"):
                expected = {k: v[rows] for k, v in expected.items()} if field == "flags" else expected[rows]
            assert_equal(getattr(after, field), expected, field)


def assert_equal(found: Any, expected: Any, field: str) -> None:
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, err_msg=field)
    elif isinstance(expected, dict) and field == "flags":
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    elif field == "label_source" and expected == "unknown":
        assert found in ("unknown", "rule")  # What a layout's labels always are may be known better.
    elif field == "meta" and not expected:
        pass  # Some layouts say where an episode comes from.
    else:
        assert found == expected, field


def test_these_are_all_that_can_be_written() -> None:
    assert writable() == FORMAT_NAMES


@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_what_is_not_said_to_be_lost_is_kept(format: str, kind: str, tmp_path: Path) -> None:
    assert FORMATS.get(format).misfit(EPISODES[kind]) is None
    assert_kept(format, EPISODES[kind], through(format, EPISODES[kind], tmp_path))


@pytest.mark.parametrize("first", FORMAT_NAMES)
def test_from_each_to_each(first: str, tmp_path: Path) -> None:
    for kind in ("full", "success at the end", "some frames"):
        once = through(first, EPISODES[kind], tmp_path / kind)
        for second in FORMAT_NAMES:
            assert_kept(second, once, through(second, once, tmp_path / kind / "then"))


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_second_time_loses_nothing_more(format: str, tmp_path: Path) -> None:
    once = through(format, FULL, tmp_path / "1")
    twice = through(format, once, tmp_path / "2")
    if format == "realworld":  # Each time the last frame is without an action.
        assert len(twice) == len(once)
    rows = rows_kept(format, once)
    np.testing.assert_array_equal(twice.labels, once.labels[rows])


def test_the_store_loses_nothing(tmp_path: Path) -> None:
    for kind, episode in EPISODES.items():
        assert lost([episode], "plaudit") == {}
        assert_same(through("plaudit", episode, tmp_path / kind), episode)


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_what_is_said_to_be_lost_is_lost(format: str, tmp_path: Path) -> None:
    after = through(format, FULL, tmp_path)
    for text in lost([FULL], format):
        field = text.split(":")[0]
        assert field in (*FIELDS, "frames", "labels"), text
        if field in FIELDS:
            with pytest.raises((AssertionError, TypeError)):
                assert_equal(getattr(after, field), getattr(FULL, field), field)


def test_losses_are_counted() -> None:
    found = lost(EPISODES.values(), "npy")
    assert found["actions"] == len(EPISODES) - 1 and found["frames without a label"] == 1


@pytest.mark.parametrize(
    ("format", "episode", "why"),
    [
        ("npy", replace(FULL, labels=np.full(6, UNKNOWN, np.int8), success=None), "no frame has a label"),
        ("realworld_raw", make_episode("e", length=0), "a single frame"),
        ("realworld", make_episode("e", length=0), "no action follows"),
        ("episode_pkl", make_episode("e", length=0), "only frame is that of the reset"),
        ("images", replace(FULL, frames={"../out": FULL.frames["base_camera"]}), "name of a folder"),
        ("images", replace(FULL, flags={"label": FULL.labels}), "a flag cannot be called"),
    ],
)
def test_what_cannot_be_held_at_all_is_refused_as_a_whole(
    format: str, episode: Episode, why: str, tmp_path: Path
) -> None:
    writer = open_writer(tmp_path / "data", format)
    assert why in (FORMATS.get(format).misfit(episode) or "")
    with pytest.raises(DataError, match=f"'{episode.id}': .*{why}"):
        writer.add([make_episode("good", success_at=1), episode])
    assert writer.counts.episodes == (1 if format == "images" else 0)
