"""A frame is the same frame however it is given."""

from typing import Any

import numpy as np
import pytest
import torch
from artifact_samples import SIZE, make_frames

from plaudit.errors import DataError
from plaudit.reward_models.inference.frame_validation import take_in

CAMERAS = ("base_camera",)
FRAMES = make_frames(5)
FIRST = FRAMES.transpose(0, 3, 1, 2)
UNIT = FRAMES.astype(np.float32) / 255


@pytest.mark.parametrize(
    "given",
    [
        FRAMES,
        FIRST,
        {"base_camera": FRAMES, "another": np.zeros(3)},
        torch.from_numpy(FRAMES),
        torch.from_numpy(FIRST.copy()),
        UNIT,
        UNIT.transpose(0, 3, 1, 2),
        UNIT.astype(np.float64),
        torch.from_numpy(UNIT),
        torch.from_numpy(UNIT).permute(0, 3, 1, 2),
        FRAMES.astype(np.float32),
        torch.from_numpy(FRAMES.astype(np.float32)).half(),
        torch.from_numpy(FRAMES).to(torch.bfloat16),
        FRAMES.astype(np.int64),
        FRAMES[:, None],
        np.repeat(FRAMES, 2, 0)[::2],
    ],
)
def test_every_kind_of_frame_becomes_the_same_bytes(given: Any) -> None:
    taken = take_in(given, CAMERAS, SIZE)
    assert list(taken) == ["base_camera"] and taken["base_camera"].dtype == np.uint8
    np.testing.assert_array_equal(taken["base_camera"], FRAMES)


def test_bytes_are_not_copied() -> None:
    assert np.shares_memory(take_in(FRAMES, CAMERAS, SIZE)["base_camera"], FRAMES)


def test_a_camera_in_the_dark_goes_by_the_other() -> None:
    dark = np.full((5, *SIZE, 3), 0.8, np.float32)
    taken = take_in({"a": dark, "b": FRAMES.astype(np.float32)}, ("a", "b"), SIZE)
    assert (taken["a"] == 1).all()
    assert (take_in(dark, CAMERAS, SIZE)["base_camera"] == 204).all()


def test_cameras_come_in_the_model_s_order() -> None:
    taken = take_in({"a": UNIT, "b": FRAMES}, ("b", "a"), SIZE)
    assert list(taken) == ["b", "a"]


@pytest.mark.parametrize(
    "given", [np.zeros((0, *SIZE, 3), np.uint8), np.zeros((0, 3, *SIZE)), torch.zeros(0, 3, *SIZE)]
)
def test_no_frames_are_fine(given: Any) -> None:
    assert take_in(given, CAMERAS, SIZE)["base_camera"].shape == (0, *SIZE, 3)


def broken(value: float) -> Any:
    frames = UNIT.copy()
    frames[3, 2, 1, 0] = value
    return frames


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (make_frames(5, size=(24, 16)), r"'base_camera'.*16x24 pixels, \(n, 16, 24, 3\).*got uint8 \(5, 24, 16, 3\)"),
        (make_frames(5, size=(64, 64)).transpose(0, 3, 1, 2), r"16x24 pixels.*got uint8 \(5, 3, 64, 64\)"),
        (FRAMES[0], r"16x24 pixels.*got uint8 \(16, 24, 3\)"),
        (FRAMES[..., :2], r"'base_camera': has no axis of 3 colours.*16x24 pixels"),
        (broken(np.nan), r"'base_camera': has values that are not numbers \(NaN or infinite\)"),
        (broken(np.inf), "'base_camera': has values that are not numbers"),
        (broken(300.0), "'base_camera': goes from 0 to 300"),
        (broken(-1.0), "'base_camera': goes from -1 to 1"),
        (FRAMES.astype(np.int64) - 300, "'base_camera': goes from -300"),
        ({"wrist_camera": FRAMES}, "needs the camera 'base_camera'; got wrist_camera"),
        ({}, "needs the camera 'base_camera'; got none"),
        ([1, 2], "got list"),
    ],
)
def test_frames_that_do_not_fit_are_named(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        take_in(given, CAMERAS, SIZE)


def test_several_cameras_must_be_told_apart_and_be_as_many() -> None:
    with pytest.raises(DataError, match="needs the cameras a, b; got the frames of one alone"):
        take_in(FRAMES, ("a", "b"), SIZE)
    with pytest.raises(DataError, match=r"different numbers of frames: \{'a': 5, 'b': 4\}"):
        take_in({"a": FRAMES, "b": FRAMES[:4]}, ("a", "b"), SIZE)
