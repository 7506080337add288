"""Films of episodes."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from plaudit.errors import OutputError
from plaudit.utils.atomic_io import whole_file

Array: TypeAlias = np.ndarray[Any, Any]

GREEN = (46, 160, 67)
GREY = (110, 118, 129)
DARK = (22, 27, 34)


def write_video(path: str | Path, frames: Array, fps: float) -> None:
    """Writes an mp4 (H.264, yuv420p: plays everywhere) that is whole or not there.

    Args:
        path: Where to; folders are made.
        frames: uint8 (T, H, W, 3). Odd sizes get one more row or column, which yuv420p needs.
        fps: Frames a second.
    """
    import av

    frames = _even(_checked(path, frames))
    try:
        with whole_file(path) as temporary, av.open(str(temporary), "w", options={"movflags": "faststart"}) as film:
            stream = film.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000), options={"crf": "18"})
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                film.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
            film.mux(stream.encode())
    except av.error.FFmpegError as error:
        raise OutputError(f"cannot write {path}: {error}.") from error


def tile(frames: Array, success: Array | None = None, *, border: int = 3, scale: int = 1) -> Array:
    """Puts the films of several envs side by side, each in a border: green while it succeeds, grey otherwise.

    Args:
        frames: uint8 (T, n, H, W, 3).
        success: bool (T, n), or (n,) for all the time; `None` for no success.
        border: Its width in pixels.
        scale: Every pixel becomes so many in height and width.

    Returns:
        uint8 (T, rows·h, columns·w, 3), where h and w are H and W, scaled and with the border.
    """
    steps, count = frames.shape[:2]
    good = np.zeros(count, bool) if success is None else np.asarray(success, bool)
    good = np.broadcast_to(good, (steps, count))
    big = frames.repeat(scale, axis=2).repeat(scale, axis=3)
    height, width = big.shape[2] + 2 * border, big.shape[3] + 2 * border
    colour = np.where(good[..., None], np.array(GREEN, np.uint8), np.array(GREY, np.uint8))
    framed = np.broadcast_to(colour[:, :, None, None, :], (steps, count, height, width, 3)).copy()
    framed[:, :, border : height - border, border : width - border] = big
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.empty((steps, rows * height, columns * width, 3), np.uint8)
    grid[:] = DARK
    for index in range(count):
        top, left = index // columns * height, index % columns * width
        grid[:, top : top + height, left : left + width] = framed[:, index]
    return grid


def film_strip(path: str | Path, frames: Array, count: int = 6, *, gap: int = 2) -> None:
    """Writes a PNG of `count` frames in a row, from the first to the last, evenly spaced.

    Args:
        path: Where to; folders are made.
        frames: uint8 (T, H, W, 3).
        count: How many at most.
        gap: White pixels between them.
    """
    from PIL import Image

    frames = _checked(path, frames)
    picked = np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int)
    height, width = frames.shape[1:3]
    strip = np.full((height, len(picked) * (width + gap) - gap, 3), 255, np.uint8)
    for position, index in enumerate(picked):
        left = position * (width + gap)
        strip[:, left : left + width] = frames[index]
    with whole_file(path) as temporary:
        Image.fromarray(strip).save(temporary, format="PNG")


def _checked(path: str | Path, frames: Array) -> Array:
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise OutputError(
            f"cannot write {path}: expected one or more frames, uint8 (T, H, W, 3), not {frames.dtype} {frames.shape}."
        )
    return frames


def _even(frames: Array) -> Array:
    """Repeats the last row or column of odd sizes."""
    height, width = frames.shape[1:3]
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
