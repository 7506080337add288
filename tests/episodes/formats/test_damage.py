"""Files that are cut, shuffled, empty or of the wrong kind: an error that names the file, or the episodes as they were.

Never another exception, and never fewer episodes without a word.
"""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from samples import assert_same, make_episode

from plaudit.data import Episode
from plaudit.data.formats import load_episodes
from plaudit.errors import DataError

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PICKLED = ["npy", "episode_pkl", "realworld_raw", "realworld", "rlinf", "rlinf_pt", "hilserl"]
JUNK: list[Any] = [
    *(None, True, 3, -7, 2.5, float("nan"), 10**30, "text", b"bytes", (), [], {}, {"a": 1}, {3}, [1, [2]]),
    *(np.zeros(3), np.zeros((2, 2)), np.zeros((0, 4, 4, 3)), np.full((4, 4, 3), np.nan), np.zeros((5, 9, 9, 7))),
    *(np.array(["a", "b"]), np.array([None, {}], object), np.float32(-1), torch.zeros(2, 3), torch.zeros(0)),
]


@pytest.fixture(params=LAYOUTS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Path]:
    """The name of a format, a place with data in it, and one of its files."""
    format, write = LAYOUTS[request.param]
    return format, tmp_path, write(tmp_path, make_episode("e", success_at=2, length=3))


def read_or_named(format: str, place: Path, file: Path) -> list[Episode] | None:
    """All episodes; `None` after an error that names the file."""
    try:
        return list(load_episodes(place, format))
    except DataError as error:
        message = str(error)
    # Of an episode that is a folder, the folder may be named.
    assert file.name in message or (format == "images" and str(file.parent) in message), message
    return None


def assert_all_same(found: list[Episode], expected: list[Episode]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def test_an_empty_file(data: tuple[str, Path, Path]) -> None:
    format, place, file = data
    file.write_bytes(b"")
    assert read_or_named(format, place, file) is None


def test_a_file_cut_at_any_byte(data: tuple[str, Path, Path]) -> None:
    format, place, file = data
    whole, expected = file.read_bytes(), list(load_episodes(place, format))

    @FEW
    @given(st.integers(0, len(whole) - 1))
    def check(keep: int) -> None:
        file.write_bytes(whole[:keep])
        found = read_or_named(format, place, file)
        if format != "images":
            assert found is None
        elif found is not None:  # A line's end may be missing; what is there says it all.
            assert_all_same(found, expected)

    check()


def test_a_file_with_bytes_out_of_place(data: tuple[str, Path, Path]) -> None:
    format, place, file = data
    whole = file.read_bytes()

    @FEW
    @given(st.integers(0, len(whole) - 1), st.integers(2, 400), st.randoms(use_true_random=False))
    def check(start: int, count: int, chance: random.Random) -> None:
        part = list(whole[start : start + count])
        chance.shuffle(part)
        file.write_bytes(whole[:start] + bytes(part) + whole[start + count :])
        read_or_named(format, place, file)

    check()


def test_a_file_with_other_bytes(data: tuple[str, Path, Path]) -> None:
    format, place, file = data
    whole = file.read_bytes()

    @FEW
    @given(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=12))
    def check(start: int, other: bytes) -> None:
        file.write_bytes(whole[:start] + other + whole[start + len(other) :])
        read_or_named(format, place, file)

    check()


def test_a_file_of_noise(data: tuple[str, Path, Path]) -> None:
    format, place, file = data

    @FEW
    @given(st.binary(max_size=300))
    def check(noise: bytes) -> None:
        file.write_bytes(noise)
        assert read_or_named(format, place, file) is None

    check()


def load(file: Path) -> Any:
    if file.suffix == ".npy":
        return np.load(file, allow_pickle=True).item()
    return torch.load(file) if file.suffix == ".pt" else pickle.loads(file.read_bytes())


def save(file: Path, content: Any) -> None:
    if file.suffix == ".npy":
        holder = np.empty((), object)
        holder[()] = content
        np.save(file, holder, allow_pickle=True)
    elif file.suffix == ".pt":
        torch.save(content, file)
    else:
        layouts.dump(file, content)


def places(content: Any) -> list[tuple[Any, ...]]:
    """The way to everything in nested dicts and lists."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [(), *((key, *rest) for key, value in inner for rest in places(value))]


def replaced(content: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    content = copy.copy(content)
    content[place[0]] = replaced(content[place[0]], place[1:], junk)
    return content


@pytest.mark.parametrize("layout", PICKLED)
def test_content_of_the_wrong_kind(layout: str, tmp_path: Path) -> None:
    format, write = LAYOUTS[layout]
    file = write(tmp_path, make_episode("e", success_at=2, length=3))
    whole = load(file)

    @settings(FEW, max_examples=60)
    @given(st.sampled_from(places(whole)), st.integers(0, len(JUNK) - 1))
    def check(place: tuple[Any, ...], junk: int) -> None:
        save(file, replaced(whole, place, JUNK[junk]))
        found = read_or_named(format, tmp_path, file)
        assert found is None or found

    check()


@pytest.mark.parametrize(
    ("layout", "place", "junk", "message"),
    [
        ("npy", ("images",), "a string", "'images' should be a dict of cameras, not str"),
        ("npy", ("labels",), {}, "labels should be a list, not dict"),
        ("npy", ("labels",), np.zeros(2), "has 4 frames, but there are 2 labels"),
        ("npy", ("labels",), np.full(4, 7.0), r"labels\[0\] should be 0 or 1, not 7"),
        ("episode_pkl", ("frames",), "x", "frames should be a list, not str"),
        ("episode_pkl", ("frames", 1, "obs", "main_images"), "x", r"obs\[1\]\['main_images'\] should be a picture"),
        ("episode_pkl", ("frames", 1, "obs", "main_images"), np.zeros((2, 2, 3)), "different shapes"),
        ("episode_pkl", ("frames", 1, "action"), np.zeros(9), "action has entries of 3 and 9 numbers"),
        ("realworld_raw", (0,), {}, "a transition has no 'dones', only nothing"),
        ("realworld", ("actions",), [], "lists differ in length"),
        ("realworld", ("infos", 0), {}, "an info has no 'is_obj_placed'"),
        ("rlinf", ("rewards",), [1], "3 actions, but 1 rewards"),
        ("rlinf_pt", ("labels",), [1], "4 images, but 1 labels"),
        ("hilserl", (0, "observations"), 5, "an observation should be a dict, not int"),
    ],
)
def test_the_message_says_what_is_wrong(
    layout: str, place: tuple[Any, ...], junk: Any, message: str, tmp_path: Path
) -> None:
    format, write = LAYOUTS[layout]
    file = write(tmp_path, make_episode("e", success_at=2, length=3))
    save(file, replaced(load(file), place, junk))
    with pytest.raises(DataError, match=f"{file.name}: .*{message}"):
        list(load_episodes(tmp_path, format))


def test_pictures_and_labels_must_belong_together(tmp_path: Path) -> None:
    table = layouts.images(tmp_path, make_episode("e", length=3))
    cases = {
        "frame,label\n0,0\n1,0\n2,0\n": r"000003\.png: has no label",
        "frame,label\n0,0\n1,0\n2,0\n3,0\n4,0\n": "no picture of frame 4",
        "frame,label\n0,0\n1,2\n": "line 3 must be a frame",
        "image,label\n0,0\n": "first line must be 'frame,label'",
        "frame,label\n": "has no labels",
    }
    for text, message in cases.items():
        table.write_text(text)
        with pytest.raises(DataError, match=message):
            load_episodes(tmp_path)[0]
    table.unlink()
    with pytest.raises(DataError, match=r"labels\.csv: cannot be read"):
        load_episodes(tmp_path, "images")[0]
