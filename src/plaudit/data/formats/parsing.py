"""Parse images, labels, flags and vectors out of the files of other systems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Frames
from plaudit.data.formats.pickle_arrays import shown

Order = Literal["CHW", "HWC"]

_SLACK = 1e-3
"""Tolerance for floats beyond their range, as a fraction of it: interpolation oversteps by that much."""


@dataclass
class FloatRange:
    """Value range of float images: 0 to 1 until a value exceeds 1, from then on 0 to 255.

    Attributes:
        beyond_one: Whether a value exceeded 1.
        taken_as_unit: Whether any images other than black ones were interpreted as 0 to 1.
    """

    beyond_one: bool = False
    taken_as_unit: bool = False

    def scale(self, largest: float) -> float:
        """Return the factor that converts images with this largest value to 0 to 255."""
        self.beyond_one |= largest > 1 + _SLACK
        self.taken_as_unit |= not self.beyond_one and largest > 0
        return 1.0 if self.beyond_one else 255.0


def to_frames(cameras: Mapping[str, Any], order: Order = "HWC", seen: FloatRange | None = None) -> dict[str, Frames]:
    """Convert the images of one episode to the uint8 frames of an `Episode`.

    Floats are interpreted as 0 to 1 if no camera exceeds 1 in the whole episode, else as 0 to 255: a single frame, or
    one camera with a dark view, is not enough to decide. (If all images are black it makes no difference.)

    Args:
        cameras: Maps a camera name to its images: an array, or a list of arrays of equal shape, with the frame as first
            axis; then an optional axis of size 1, and (H, W, C), (C, H, W) or (H, W).
        order: Axis order if the shape fits both (H, W, C) and (C, H, W).
        seen: Value range of earlier images from the same source, if these are not all; it is updated with these.

    Raises:
        ValueError: An array is not valid; the message names the camera and the problem.
    """
    batches = {}
    for camera, images in cameras.items():
        try:
            batches[str(camera)] = _channels_last(_stack(images), order)
        except ValueError as error:
            raise ValueError(f"camera '{camera}': {error}") from None

    # One scale for all cameras, from their largest float.
    maxima = [_largest(camera, pixels) for camera, pixels in batches.items() if pixels.dtype.kind == "f"]
    scale = (seen or FloatRange()).scale(max(maxima, default=0.0))
    return {camera: _to_uint8(camera, pixels, scale) for camera, pixels in batches.items()}


def to_unit_floats(pixels: Frames) -> NDArray[np.float32]:
    """Convert uint8 to float32 in 0 to 1, which `to_frames` inverts exactly."""
    return pixels.astype(np.float32) / np.float32(255)


def _stack(images: Any) -> NDArray[Any]:
    """Return an array or a list of arrays as one array of numbers that is not empty."""
    # Stack a list along a new first axis.
    if isinstance(images, Sequence) and not isinstance(images, (str, bytes)):
        arrays = [image for image in images if isinstance(image, np.ndarray)]
        if len(arrays) != len(images):
            raise ValueError("is not a list of arrays")
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"has pictures of different shapes: {', '.join(map(str, sorted(shapes)))}")
        images = np.stack(arrays) if arrays else np.zeros(0)

    if not isinstance(images, np.ndarray):
        raise ValueError(f"should be an array, not {type(images).__name__}")
    if images.dtype.kind not in "uif":
        raise ValueError(f"should consist of numbers, not {images.dtype}")
    if not images.size:
        raise ValueError(f"is empty: shape {images.shape}")
    return images


def _channels_last(pixels: NDArray[Any], order: Order) -> NDArray[Any]:
    """Return images as (n, H, W, 3), with grey repeated in all three channels."""
    # Drop a time axis of size 1 and give grey images a channel axis.
    if pixels.ndim == 5 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4:
        raise ValueError(f"should have shape (n, H, W, 3) or (n, 3, H, W), not {pixels.shape}")

    # Find the channel axis; `order` decides if both axes could be it.
    fits_first = pixels.shape[1] in (1, 3)
    fits_last = pixels.shape[3] in (1, 3)
    if not fits_first and not fits_last:
        raise ValueError(f"has no axis of 3 colours, or of 1 grey, in its shape {pixels.shape}")
    if fits_first and (not fits_last or order == "CHW"):
        pixels = pixels.transpose(0, 2, 3, 1)

    return pixels if pixels.shape[3] == 3 else np.repeat(pixels, 3, axis=3)


def _largest(camera: str, pixels: NDArray[Any]) -> float:
    """Return the largest value, or raise an error if a value is not valid in an image."""
    low = float(pixels.min())
    high = float(pixels.max())
    if not np.isfinite(low) or not np.isfinite(high):
        raise ValueError(f"camera '{camera}': has values that are not numbers (NaN or infinite)")
    if low < -_SLACK or high > 255 * (1 + _SLACK):
        raise ValueError(f"camera '{camera}': goes from {low:.4g} to {high:.4g}, which is neither 0 to 1 nor 0 to 255")
    return high


def _to_uint8(camera: str, pixels: NDArray[Any], scale: float) -> Frames:
    """Convert images to uint8: integers as they are, floats multiplied by `scale`."""
    if pixels.dtype.kind in "ui":
        low = int(pixels.min())
        high = int(pixels.max())
        if low < 0 or high > 255:
            raise ValueError(f"camera '{camera}': goes from {low} to {high}, which is not 0 to 255")
        return np.ascontiguousarray(pixels, np.uint8)

    # float16 is too coarse for the multiplication.
    exact = pixels.astype(np.float32) if pixels.dtype.itemsize < 4 else pixels
    return np.ascontiguousarray(np.rint(exact * np.asarray(scale, exact.dtype)).clip(0, 255).astype(np.uint8))


MAIN_CAMERA = "main_images"
"""Name of the first camera in the observations of several systems."""

_STATES = ("states", "state")
_DEEPEST = 8
_MOST = 100_000


def entry(content: Any, key: str, what: str = "it") -> Any:
    """Return the value of a key; raise a `ValueError` that names `what` if it is missing."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{what} should be a dict, not {kind(content)}")
    if key not in content:
        raise ValueError(
            f"{what} has no '{key}', only {', '.join(shown(name) for name in list(content)[:8]) or 'nothing'}"
        )
    return content[key]


def items(value: Any, what: str) -> list[Any]:
    """Return the items of a list, a tuple or an array as a list."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return list(value)
    raise ValueError(f"{what} should be a list, not {kind(value)}")


def number(value: Any, what: str) -> float:
    """Return a value as one number, or NaN if it is `None`."""
    if value is None:
        return math.nan
    array = numeric(value, what)
    if array.size != 1:
        raise ValueError(f"{what} should be one number, not {kind(value)}")
    return float(array.reshape(()))


def numeric(value: Any, what: str) -> NDArray[Any]:
    """Return a number, an array, or nested lists of them as an array."""
    if isinstance(value, (list, tuple)) and not _is_small(value):
        raise ValueError(f"{what} has lists of more than {_MOST:,} numbers, or more than {_DEEPEST} deep")
    array = np.asarray(value) if isinstance(value, (bool, int, float, np.generic, np.ndarray, list, tuple)) else None
    if array is None or array.dtype.kind not in "buif":
        raise ValueError(f"{what} should be a number or an array of numbers, not {kind(value)}")
    return array


def label(value: Any, what: str) -> int:
    """Return `SUCCESS` from 0.5 on, `FAILURE` below, `UNKNOWN` for `None` or NaN."""
    score = number(value, what)
    if math.isnan(score):
        return UNKNOWN
    if not 0 <= score <= 1:
        raise ValueError(f"{what} should be 0 or 1, not {score:g}")
    return SUCCESS if score >= 0.5 else FAILURE


def labels(values: Any, what: str) -> NDArray[np.int8]:
    """Return the labels of a list of values as int8 (n,)."""
    return np.array([label(value, f"{what}[{i}]") for i, value in enumerate(items(values, what))], np.int8)


def numbers(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """Return values as float32 (n,), or `None` if all of them are unknown."""
    array = np.array([number(value, f"{what}[{i}]") for i, value in enumerate(values)], np.float32)
    return None if np.isnan(array).all() else array


def booleans(values: Sequence[Any], what: str) -> NDArray[np.bool_] | None:
    """Return values as bool (n,), or `None` if some of them are unknown."""
    array = numbers(values, what)
    return None if array is None or np.isnan(array).any() else array != 0


def vectors(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """Return rows as float32 (n, k), NaN in unknown rows; `None` if all are unknown."""
    rows = {i: numeric(row, f"{what}[{i}]").reshape(-1) for i, row in enumerate(values) if row is not None}
    sizes = sorted({len(row) for row in rows.values()})
    if len(sizes) > 1:
        raise ValueError(f"{what} has entries of {' and '.join(map(str, sizes))} numbers")

    array = np.full((len(values), sizes[0] if sizes else 0), np.nan, np.float32)
    for i, row in rows.items():
        array[i] = row
    return None if np.isnan(array).all() else array


def pictures(observations: Sequence[Any], what: str) -> dict[str, list[NDArray[Any]]]:
    """Map each camera name to its images, one per observation.

    Images are the arrays with three axes or more.
    """
    for i, observation in enumerate(observations):
        if not isinstance(observation, Mapping):
            raise ValueError(f"{what}[{i}] should be a dict, not {kind(observation)}")
        if MAIN_CAMERA in observation and not is_picture(observation[MAIN_CAMERA]):
            raise ValueError(f"{what}[{i}]['{MAIN_CAMERA}'] should be a picture, not {kind(observation[MAIN_CAMERA])}")

    # The first observation determines the cameras, which all others must have.
    cameras = [str(key) for key, value in observations[0].items() if is_picture(value)] if observations else []
    if not cameras:
        raise ValueError(f"{what} has no pictures")

    images: dict[str, list[NDArray[Any]]] = {camera: [] for camera in cameras}
    for i, observation in enumerate(observations):
        for camera in cameras:
            if not is_picture(observation.get(camera)):
                raise ValueError(f"{what}[{i}] has no picture '{camera}', but {what}[0] has")
            images[camera].append(observation[camera])
    return images


def states(observations: Sequence[Mapping[str, Any]], what: str) -> NDArray[np.float32] | None:
    """Return the states of observations as float32 (n, k), or `None` without any."""
    return vectors([next((o[key] for key in _STATES if key in o), None) for o in observations], f"the states of {what}")


def plain(value: Any) -> Any:
    """Convert a value to JSON values.

    Parts that have no JSON equivalent, or that are too large or too deep, become `None`.
    """
    remaining = [_MOST]  # A list, so that the nested function can change it.

    def convert(value: Any, depth: int) -> Any:
        remaining[0] -= 1
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= remaining[0]):
            value = value.tolist()

        # JSON has no NaN and no infinity.
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None

        if depth == _DEEPEST or not isinstance(value, (Mapping, list, tuple)) or len(value) > remaining[0]:
            return None
        if isinstance(value, Mapping):
            return {str(key): convert(item, depth + 1) for key, item in value.items()}
        return [convert(item, depth + 1) for item in value]

    return convert(value, 0)


def kind(value: Any) -> str:
    """Describe the type of a value for an error message."""
    return f"an array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def is_picture(value: Any) -> bool:
    """Return whether a value could be an image (H, W, C), possibly with leading axes."""
    return isinstance(value, np.ndarray) and value.ndim >= 3


def _is_small(value: Any) -> bool:
    """Return whether nested lists have at most `_MOST` items and `_DEEPEST` levels.

    A few bytes in a pickle can describe more nested lists than fit in memory.
    """
    level = [value]
    remaining = _MOST
    for _ in range(_DEEPEST):
        lists = [item for item in level if isinstance(item, (list, tuple))]
        remaining -= sum(map(len, lists)) + sum(item.size for item in level if isinstance(item, np.ndarray))
        if not lists or remaining < 0:
            return remaining >= 0
        level = [item for inner in lists for item in inner]
    return False
