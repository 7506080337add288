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
"""How far beyond its range a float may be, in parts of the range: interpolation oversteps by that much."""


@dataclass
class FloatRange:
    """What the floats seen so far say of their range: 0 to 1 until one is beyond 1, from then on 0 to 255.

    Attributes:
        beyond_one: Whether one was.
        taken_as_unit: Whether any but black ones were taken as 0 to 1.
    """

    beyond_one: bool = False
    taken_as_unit: bool = False

    def scale(self, largest: float) -> float:
        """By what pictures with this largest value are multiplied."""
        self.beyond_one |= largest > 1 + _SLACK
        self.taken_as_unit |= not self.beyond_one and largest > 0
        return 1.0 if self.beyond_one else 255.0


def to_frames(cameras: Mapping[str, Any], order: Order = "HWC", seen: FloatRange | None = None) -> dict[str, Frames]:
    """The frames of one episode as an `Episode` holds them.

    Floats are taken as 0 to 1 if no camera of the whole episode goes beyond 1, else as 0 to 255: a single frame, or
    one camera that looks into the dark, could not tell. (Where all are black it makes no difference.)

    Args:
        cameras: Camera name to the pictures: an array, or a list of equal arrays, with the frame as first axis; then
            perhaps an axis of 1, and (H, W, C), (C, H, W) or (H, W).
        order: Which of the two it is where the shape fits both.
        seen: What earlier pictures of the same origin say of the range, where these are not all; it learns from these.

    Raises:
        ValueError: Names the camera and what is wrong with it.
    """
    batches = {}
    for camera, pictures in cameras.items():
        try:
            batches[str(camera)] = _channels_last(_stack(pictures), order)
        except ValueError as error:
            raise ValueError(f"camera '{camera}': {error}") from None
    tops = [_largest(camera, pixels) for camera, pixels in batches.items() if pixels.dtype.kind == "f"]
    scale = (seen or FloatRange()).scale(max(tops, default=0.0))
    return {camera: _to_uint8(camera, pixels, scale) for camera, pixels in batches.items()}


def to_unit_floats(pixels: Frames) -> NDArray[np.float32]:
    """uint8 as float32 in 0 to 1, from which `to_frames` gets the same uint8 back."""
    return pixels.astype(np.float32) / np.float32(255)


def _stack(pictures: Any) -> NDArray[Any]:
    if isinstance(pictures, Sequence) and not isinstance(pictures, (str, bytes)):
        arrays = [picture for picture in pictures if isinstance(picture, np.ndarray)]
        if len(arrays) != len(pictures):
            raise ValueError("is not a list of arrays")
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"has pictures of different shapes: {', '.join(map(str, sorted(shapes)))}")
        pictures = np.stack(arrays) if arrays else np.zeros(0)
    if not isinstance(pictures, np.ndarray):
        raise ValueError(f"should be an array, not {type(pictures).__name__}")
    if pictures.dtype.kind not in "uif":
        raise ValueError(f"should consist of numbers, not {pictures.dtype}")
    if not pictures.size:
        raise ValueError(f"is empty: shape {pictures.shape}")
    return pictures


def _channels_last(pixels: NDArray[Any], order: Order) -> NDArray[Any]:
    """(n, H, W, 3)."""
    if pixels.ndim == 5 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4:
        raise ValueError(f"should have shape (n, H, W, 3) or (n, 3, H, W), not {pixels.shape}")
    first, last = pixels.shape[1] in (1, 3), pixels.shape[3] in (1, 3)
    if not first and not last:
        raise ValueError(f"has no axis of 3 colours, or of 1 grey, in its shape {pixels.shape}")
    if first and (not last or order == "CHW"):
        pixels = pixels.transpose(0, 2, 3, 1)
    return pixels if pixels.shape[3] == 3 else np.repeat(pixels, 3, axis=3)


def _largest(camera: str, pixels: NDArray[Any]) -> float:
    """The largest value, if all are numbers that a picture may have."""
    low, high = float(pixels.min()), float(pixels.max())
    if not np.isfinite(low) or not np.isfinite(high):
        raise ValueError(f"camera '{camera}': has values that are not numbers (NaN or infinite)")
    if low < -_SLACK or high > 255 * (1 + _SLACK):
        raise ValueError(f"camera '{camera}': goes from {low:.4g} to {high:.4g}, which is neither 0 to 1 nor 0 to 255")
    return high


def _to_uint8(camera: str, pixels: NDArray[Any], scale: float) -> Frames:
    if pixels.dtype.kind in "ui":
        low, high = int(pixels.min()), int(pixels.max())
        if low < 0 or high > 255:
            raise ValueError(f"camera '{camera}': goes from {low} to {high}, which is not 0 to 255")
        return np.ascontiguousarray(pixels, np.uint8)
    exact = pixels.astype(np.float32) if pixels.dtype.itemsize < 4 else pixels
    return np.ascontiguousarray(np.rint(exact * np.asarray(scale, exact.dtype)).clip(0, 255).astype(np.uint8))


MAIN_CAMERA = "main_images"
"""What several systems call their first camera in an observation."""

_STATES = ("states", "state")
_DEEPEST, _MOST = 8, 100_000


def entry(content: Any, key: str, what: str = "it") -> Any:
    """The value under a key of a dict."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{what} should be a dict, not {kind(content)}")
    if key not in content:
        raise ValueError(
            f"{what} has no '{key}', only {', '.join(shown(name) for name in list(content)[:8]) or 'nothing'}"
        )
    return content[key]


def items(value: Any, what: str) -> list[Any]:
    """The items of a list, a tuple or an array."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return list(value)
    raise ValueError(f"{what} should be a list, not {kind(value)}")


def number(value: Any, what: str) -> float:
    """One number; NaN where there is none."""
    if value is None:
        return math.nan
    array = numeric(value, what)
    if array.size != 1:
        raise ValueError(f"{what} should be one number, not {kind(value)}")
    return float(array.reshape(()))


def numeric(value: Any, what: str) -> NDArray[Any]:
    """A number, an array, or lists of them, as an array."""
    if isinstance(value, (list, tuple)) and not _is_small(value):
        raise ValueError(f"{what} has lists of more than {_MOST:,} numbers, or more than {_DEEPEST} deep")
    array = np.asarray(value) if isinstance(value, (bool, int, float, np.generic, np.ndarray, list, tuple)) else None
    if array is None or array.dtype.kind not in "buif":
        raise ValueError(f"{what} should be a number or an array of numbers, not {kind(value)}")
    return array


def label(value: Any, what: str) -> int:
    """`SUCCESS` from 0.5 on, `FAILURE` below; `UNKNOWN` where there is nothing, or NaN."""
    found = number(value, what)
    if math.isnan(found):
        return UNKNOWN
    if not 0 <= found <= 1:
        raise ValueError(f"{what} should be 0 or 1, not {found:g}")
    return SUCCESS if found >= 0.5 else FAILURE


def labels(values: Any, what: str) -> NDArray[np.int8]:
    """int8 (n,)."""
    return np.array([label(value, f"{what}[{i}]") for i, value in enumerate(items(values, what))], np.int8)


def numbers(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """float32 (n,), or `None` where nothing is known of any."""
    found = np.array([number(value, f"{what}[{i}]") for i, value in enumerate(values)], np.float32)
    return None if np.isnan(found).all() else found


def booleans(values: Sequence[Any], what: str) -> NDArray[np.bool_] | None:
    """As bool (n,), or `None` where some are not known."""
    found = numbers(values, what)
    return None if found is None or np.isnan(found).any() else found != 0


def vectors(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """float32 (n, k), NaN where one is not known; `None` where none is."""
    rows = {i: numeric(row, f"{what}[{i}]").reshape(-1) for i, row in enumerate(values) if row is not None}
    sizes = sorted({len(row) for row in rows.values()})
    if len(sizes) > 1:
        raise ValueError(f"{what} has entries of {' and '.join(map(str, sizes))} numbers")
    found = np.full((len(values), sizes[0] if sizes else 0), np.nan, np.float32)
    for i, row in rows.items():
        found[i] = row
    return None if np.isnan(found).all() else found


def pictures(observations: Sequence[Any], what: str) -> dict[str, list[NDArray[Any]]]:
    """Camera name to a picture of each observation. Pictures are the arrays with three axes or more."""
    for i, observation in enumerate(observations):
        if not isinstance(observation, Mapping):
            raise ValueError(f"{what}[{i}] should be a dict, not {kind(observation)}")
        if MAIN_CAMERA in observation and not is_picture(observation[MAIN_CAMERA]):
            raise ValueError(f"{what}[{i}]['{MAIN_CAMERA}'] should be a picture, not {kind(observation[MAIN_CAMERA])}")
    cameras = [str(key) for key, value in observations[0].items() if is_picture(value)] if observations else []
    if not cameras:
        raise ValueError(f"{what} has no pictures")
    found: dict[str, list[NDArray[Any]]] = {camera: [] for camera in cameras}
    for i, observation in enumerate(observations):
        for camera in cameras:
            if not is_picture(observation.get(camera)):
                raise ValueError(f"{what}[{i}] has no picture '{camera}', but {what}[0] has")
            found[camera].append(observation[camera])
    return found


def states(observations: Sequence[Mapping[str, Any]], what: str) -> NDArray[np.float32] | None:
    """float32 (n, k), or `None` where there are none."""
    return vectors([next((o[key] for key in _STATES if key in o), None) for o in observations], f"the states of {what}")


def plain(value: Any) -> Any:
    """JSON values; what cannot be one, or is too much of them, is left out, as `None`."""
    left = [_MOST]

    def convert(value: Any, depth: int) -> Any:
        left[0] -= 1
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= left[0]):
            value = value.tolist()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if depth == _DEEPEST or not isinstance(value, (Mapping, list, tuple)) or len(value) > left[0]:
            return None
        if isinstance(value, Mapping):
            return {str(key): convert(item, depth + 1) for key, item in value.items()}
        return [convert(item, depth + 1) for item in value]

    return convert(value, 0)


def kind(value: Any) -> str:
    """What something is, in a message."""
    return f"an array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def is_picture(value: Any) -> bool:
    """Whether something could be one: (H, W, C), perhaps with an axis before."""
    return isinstance(value, np.ndarray) and value.ndim >= 3


def _is_small(value: Any) -> bool:
    """Whether lists within lists come to an end soon: a few bytes may stand for more of them than there is memory."""
    level, left = [value], _MOST
    for _ in range(_DEEPEST):
        lists = [item for item in level if isinstance(item, (list, tuple))]
        left -= sum(map(len, lists)) + sum(item.size for item in level if isinstance(item, np.ndarray))
        if not lists or left < 0:
            return left >= 0
        level = [item for inner in lists for item in inner]
    return False
