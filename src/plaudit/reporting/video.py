"""Videos and film strips of episodes."""

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
    """Write an mp4 video atomically, in a format that plays everywhere.

    The codec is H.264 with the pixel format yuv420p.

    Args:
        path: File to write; parent directories are created.
        frames: uint8 (T, H, W, 3). Odd sizes get one more row or column, because yuv420p needs even ones.
        fps: Frames per second.

    Raises:
        OutputError: If the frames have the wrong shape or type, or the encoder fails.
    """
    import av

    frames = _even(_checked(path, frames))
    try:
        with whole_file(path) as temporary, av.open(str(temporary), "w", options={"movflags": "faststart"}) as video:
            stream = video.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000), options={"crf": "18"})
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                video.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
            video.mux(stream.encode())  # Flushes the encoder.
    except av.error.FFmpegError as error:
        raise OutputError(f"cannot write {path}: {error}.") from error


def tile(frames: Array, success: Array | None = None, *, border: int = 3, scale: int = 1) -> Array:
    """Tile the videos of several envs into one, each with a coloured border.

    The border is green while the env succeeds and grey otherwise.

    Args:
        frames: uint8 (T, n, H, W, 3).
        success: bool (T, n), or (n,) for the whole video; `None` for no success.
        border: Border width in pixels.
        scale: Integer factor by which pixels are repeated in height and width.

    Returns:
        uint8 (T, rows·h, columns·w, 3), with h and w being H and W, scaled and with the border.
    """
    steps, count = frames.shape[:2]
    succeeds = np.zeros(count, bool) if success is None else np.asarray(success, bool)
    succeeds = np.broadcast_to(succeeds, (steps, count))

    # Fill each tile with its border colour, then paste the enlarged frame inside.
    enlarged = frames.repeat(scale, axis=2).repeat(scale, axis=3)
    height, width = enlarged.shape[2] + 2 * border, enlarged.shape[3] + 2 * border
    colour = np.where(succeeds[..., None], np.array(GREEN, np.uint8), np.array(GREY, np.uint8))
    framed = np.broadcast_to(colour[:, :, None, None, :], (steps, count, height, width, 3)).copy()
    framed[:, :, border : height - border, border : width - border] = enlarged

    # Arrange the tiles in a grid that is about square; unused cells stay dark.
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.empty((steps, rows * height, columns * width, 3), np.uint8)
    grid[:] = DARK
    for index in range(count):
        top = index // columns * height
        left = index % columns * width
        grid[:, top : top + height, left : left + width] = framed[:, index]
    return grid


def film_strip(path: str | Path, frames: Array, count: int = 6, *, gap: int = 2) -> None:
    """Write a PNG of evenly spaced frames in a row, from the first to the last.

    Args:
        path: File to write; parent directories are created.
        frames: uint8 (T, H, W, 3).
        count: Maximum number of frames.
        gap: Width in pixels of the white gap between frames.

    Raises:
        OutputError: If the frames have the wrong shape or type.
    """
    from PIL import Image

    frames = _checked(path, frames)

    # A short video has fewer frames than `count`.
    indices = np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int)

    height, width = frames.shape[1:3]
    strip = np.full((height, len(indices) * (width + gap) - gap, 3), 255, np.uint8)
    for position, index in enumerate(indices):
        left = position * (width + gap)
        strip[:, left : left + width] = frames[index]

    with whole_file(path) as temporary:
        Image.fromarray(strip).save(temporary, format="PNG")


def _checked(path: str | Path, frames: Array) -> Array:
    """Return the frames, or raise an `OutputError` if shape or type is wrong."""
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise OutputError(
            f"cannot write {path}: expected one or more frames, uint8 (T, H, W, 3), not {frames.dtype} {frames.shape}."
        )
    return frames


def _even(frames: Array) -> Array:
    """Pad odd heights and widths to even ones by repeating the last row or column."""
    height, width = frames.shape[1:3]
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
