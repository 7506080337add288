"""Frames as they come, to frames as a reward model was fitted to: uint8 (n, H, W, 3) of each of its cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.data.episode import Frames
from plaudit.data.formats.parsing import to_frames
from plaudit.errors import DataError

AnyFrames: TypeAlias = NDArray[Any] | torch.Tensor | Mapping[str, NDArray[Any] | torch.Tensor]
"""Arrays or tensors, of bytes or floats, channels last or first, by camera; with one camera, its frames alone."""


def take_in(frames: AnyFrames, cameras: Sequence[str], size: tuple[int, int]) -> dict[str, Frames]:
    """The frames of a model's cameras, all with the same number of them; a `DataError` says what does not fit.

    Every kind is brought to bytes first, and scored from there, so that a frame has one score however it is given.
    Floats are 0 to 1 if none in the call is above 1, and otherwise 0 to 255; NaN is an error. (So black frames as
    floats of 0 to 255, none of them above 1, are mistaken for bright ones: give bytes where that can happen.)

    Args:
        frames: By camera; there may be more cameras than are needed.
        cameras: Those that are needed.
        size: (H, W) of each.
    """
    if not isinstance(frames, Mapping):
        if len(cameras) > 1:
            raise DataError(f"the reward model needs the cameras {', '.join(cameras)}; got the frames of one alone.")
        frames = {cameras[0]: frames}
    for camera in cameras:
        if camera not in frames:
            raise DataError(f"the reward model needs the camera '{camera}'; got {', '.join(frames) or 'none'}.")
    arrays = {camera: _array(camera, frames[camera], size) for camera in cameras}
    found = {camera: pixels for camera, pixels in arrays.items() if _is_ready(pixels, size)}
    found |= _converted({camera: pixels for camera, pixels in arrays.items() if camera not in found}, size)
    counts = {camera: len(found[camera]) for camera in cameras}
    if len(set(counts.values())) > 1:
        raise DataError(f"the cameras have different numbers of frames: {counts}.")
    return {camera: found[camera] for camera in cameras}


def _array(camera: str, pixels: Any, size: tuple[int, int]) -> NDArray[Any]:
    if isinstance(pixels, torch.Tensor):
        pixels = pixels.detach().to("cpu", torch.float32 if pixels.is_floating_point() else pixels.dtype).numpy()
    if not isinstance(pixels, np.ndarray) or pixels.ndim < 4:
        got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"camera '{camera}': {_expected(size)}; got {got}.")
    return pixels


def _is_ready(pixels: NDArray[Any], size: tuple[int, int]) -> bool:
    return pixels.dtype == np.uint8 and pixels.shape[1:] == (*size, 3)


def _converted(arrays: Mapping[str, NDArray[Any]], size: tuple[int, int]) -> dict[str, Frames]:
    """Those that are not ready, together: whether floats go to 1 or to 255 shows in the brightest of them."""
    some = {camera: pixels for camera, pixels in arrays.items() if len(pixels)}
    first = any(pixels.shape[-3:] == (3, *size) for pixels in some.values())
    try:
        found = to_frames(some, "CHW" if first else "HWC")
    except ValueError as error:
        raise DataError(f"{error}; {_expected(size)}.") from None
    for camera, pixels in found.items():
        if not _is_ready(pixels, size):
            raise DataError(f"camera '{camera}': {_expected(size)}; got {arrays[camera].dtype} {arrays[camera].shape}.")
    return found | {camera: np.zeros((0, *size, 3), np.uint8) for camera in arrays if camera not in some}


def _expected(size: tuple[int, int]) -> str:
    height, width = size
    return (
        f"the reward model takes {height}x{width} pixels, (n, {height}, {width}, 3) or (n, 3, {height}, {width}), as "
        "bytes or floats"
    )
