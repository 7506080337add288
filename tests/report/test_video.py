"""Films: sizes, colours, and files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from plaudit.errors import OutputError
from plaudit.reporting.video import DARK, GREEN, GREY, film_strip, tile, write_video


def test_video_plays_back(tmp_path: Path) -> None:
    frames = np.zeros((10, 32, 48, 3), np.uint8)
    frames[:, :, :, 0] = np.arange(10)[:, None, None] * 20  # Ever redder.
    write_video(tmp_path / "videos" / "a.mp4", frames, fps=12.5)
    with av.open(str(tmp_path / "videos" / "a.mp4")) as film:
        stream = film.streams.video[0]
        back = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(stream)])
        assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        assert stream.average_rate == 12.5
    assert back.shape == frames.shape
    assert np.abs(back[..., 0].mean((1, 2)) - frames[:, 0, 0, 0]).max() < 6
    assert [file.name for file in (tmp_path / "videos").iterdir()] == ["a.mp4"]


def test_odd_sizes_are_made_even(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.zeros((2, 31, 47, 3), np.uint8), fps=10)
    with av.open(str(tmp_path / "a.mp4")) as film:
        assert (film.streams.video[0].height, film.streams.video[0].width) == (32, 48)


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3)), np.zeros((8, 8, 3), "u1")]
)
def test_wrong_frames(frames: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="uint8"):
        write_video(tmp_path / "a.mp4", frames, fps=10)
    with pytest.raises(OutputError, match="uint8"):
        film_strip(tmp_path / "a.png", frames)
    assert not list(tmp_path.iterdir())


def test_tile_has_a_border_that_says_success() -> None:
    frames = np.full((2, 3, 4, 6, 3), 200, np.uint8)
    success = np.array([[False, False, True], [False, True, True]])
    grid = tile(frames, success, border=1, scale=2)
    assert grid.shape == (2, 2 * (8 + 2), 2 * (12 + 2), 3)  # Three in two rows of two.
    corners = [(0, 0), (0, 14), (10, 0)]
    assert [tuple(grid[0][corner].tolist()) for corner in corners] == [GREY, GREY, GREEN]
    assert [tuple(grid[1][corner].tolist()) for corner in corners] == [GREY, GREEN, GREEN]
    assert tuple(grid[0, 15, 20].tolist()) == DARK  # The place that is left over.
    assert (grid[:, 1:9, 1:13] == 200).all()


def test_tile_keeps_the_order() -> None:
    frames = np.broadcast_to(np.arange(4, dtype=np.uint8)[None, :, None, None, None], (1, 4, 2, 2, 3))
    assert tile(frames, border=0)[0, ::2, ::2, 0].tolist() == [[0, 1], [2, 3]]


def test_film_strip_goes_from_first_to_last(tmp_path: Path) -> None:
    frames = np.broadcast_to(np.arange(9, dtype=np.uint8)[:, None, None, None] * 10, (9, 4, 4, 3))
    film_strip(tmp_path / "strip.png", frames, count=3, gap=1)
    strip = np.asarray(Image.open(tmp_path / "strip.png"))
    assert strip.shape == (4, 14, 3)
    assert strip[0, [0, 5, 10], 0].tolist() == [0, 40, 80] and strip[0, 4, 0] == 255


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_video(tmp_path / "file" / "a.mp4", np.zeros((2, 8, 8, 3), np.uint8), fps=10)
