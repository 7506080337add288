"""Pictures of any kind to uint8 (n, H, W, 3): floats of either range, channels first or last, arrays of any number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import Frames

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
