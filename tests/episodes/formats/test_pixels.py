"""Pictures of every kind end up the same uint8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plaudit.data.formats.parsing import to_frames, to_unit_floats

PICTURES = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)


def one(pictures: Any, order: Any = "HWC") -> np.ndarray:
    return to_frames({"c": pictures}, order)["c"]


@pytest.mark.parametrize(
    "numbers",
    [
        PICTURES,
        PICTURES.astype(np.int64),
        PICTURES.astype(np.float32),
        PICTURES.astype(np.float64),
        PICTURES.astype(np.float16),
        PICTURES.astype(np.float32) / 255,
        PICTURES / 255,
        (PICTURES / 255).astype(np.float16),
    ],
    ids=lambda numbers: f"{numbers.dtype} to {numbers.max():g}",
)
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("time_axis", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_ranges_orders_and_types_are_told_apart(
    numbers: np.ndarray, channels_first: bool, time_axis: bool, as_list: bool
) -> None:
    given = numbers.transpose(0, 3, 1, 2) if channels_first else numbers
    given = given[:, None] if time_axis else given
    np.testing.assert_array_equal(one(list(given) if as_list else given), PICTURES)


def test_every_value_survives_as_a_float() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    floats = to_unit_floats(values)
    assert floats.dtype == np.float32 and floats.max() == 1
    np.testing.assert_array_equal(one(floats), values)


def test_the_range_is_that_of_the_whole_episode() -> None:
    dark = np.zeros((2, 4, 4, 3), np.float32)
    dark[1, 0, 0, 0] = 1.0
    bright = dark.copy()
    bright[0, 0, 0, 0] = 200.0
    assert one(dark).max() == 255, "0 to 1"
    assert one(bright)[1].max() == 1, "0 to 255, as the other frame shows"
    assert to_frames({"a": dark, "b": bright})["a"].max() == 1, "0 to 255, as the other camera shows"
    assert one(np.zeros((2, 4, 4, 3), np.float32)).max() == 0


def test_grey_becomes_colour() -> None:
    grey = PICTURES[..., :1]
    for given in (grey, grey.transpose(0, 3, 1, 2), grey[..., 0]):
        np.testing.assert_array_equal(one(given), grey.repeat(3, axis=3))


def test_a_shape_that_fits_both_follows_the_layout() -> None:
    pixels = np.arange(2 * 3 * 5 * 3, dtype=np.uint8).reshape(2, 3, 5, 3)
    np.testing.assert_array_equal(one(pixels, "HWC"), pixels)
    np.testing.assert_array_equal(one(pixels, "CHW"), pixels.transpose(0, 2, 3, 1))


def test_interpolation_may_overstep_a_little() -> None:
    floats = PICTURES / 255
    floats[0, 0, 0] = -0.0005, 1.0005, 0.5
    assert one(floats)[0, 0, 0].tolist() == [0, 255, 128]


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (PICTURES[..., :2], "no axis of 3 colours"),
        (np.zeros((2, 5, 6, 4), np.uint8), "no axis of 3 colours"),
        (np.full((1, 4, 4, 3), np.nan), "not numbers"),
        (np.full((1, 4, 4, 3), np.inf), "not numbers"),
        (np.full((1, 4, 4, 3), -1.0), "-1 to -1, which is neither"),
        (np.full((1, 4, 4, 3), 300.0), "neither 0 to 1 nor 0 to 255"),
        (np.full((1, 4, 4, 3), 300), "not 0 to 255"),
        (np.full((1, 4, 4, 3), -3, np.int8), "not 0 to 255"),
        (np.zeros((0, 4, 4, 3)), "empty"),
        (np.zeros((2, 0, 4, 3)), "empty"),
        (np.zeros((2, 2, 4, 4, 3)), "should have shape"),
        (np.zeros((3, 3)), "should have shape"),
        (np.zeros((1, 4, 4, 3), bool), "numbers, not bool"),
        (np.array([["a"]]), "numbers, not"),
        ([], "empty"),
        ([PICTURES[0], PICTURES[0, :2]], "different shapes"),
        ([PICTURES[0], "x"], "not a list of arrays"),
        ("pictures", "an array, not str"),
        (None, "an array, not NoneType"),
        ({}, "an array, not dict"),
    ],
)
def test_what_cannot_be_a_picture_is_named(pictures: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"camera 'c': .*{message}"):
        one(pictures)
