"""Contact sheets: pixels stay pixels, borders have their colour, everything fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plaudit.reporting.contact_sheet import (
    BAD,
    BORDER,
    GOOD,
    MARGIN,
    TALLEST,
    TITLE,
    WIDE,
    Strip,
    Tile,
    draw_sheet,
    enlarge,
)
from plaudit.reporting.contact_sheet import write_sheet as write


def test_small_frames_grow_by_whole_numbers() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    large = enlarge(frame)
    assert large.shape == (128, 96, 3)
    np.testing.assert_array_equal(large[::2, ::2], frame)
    np.testing.assert_array_equal(large[1::2, 1::2], frame)


@pytest.mark.parametrize(("size", "expected"), [((200, 100), (200, 100)), ((480, 640), (TALLEST, 341))])
def test_large_frames_stay_or_shrink(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert enlarge(np.full((*size, 3), 9, np.uint8)).shape[:2] == expected


def test_a_tile_is_drawn_in_its_border() -> None:
    frame = np.full((112, 112, 3), (1, 2, 3), np.uint8)
    sheet = np.asarray(draw_sheet([Strip("a", [Tile(frame, ("x",), GOOD), Tile(frame, ("y",), BAD)])]))
    top = MARGIN + TITLE
    assert tuple(sheet[top, MARGIN]) == GOOD
    assert tuple(sheet[top + BORDER, MARGIN + BORDER]) == (1, 2, 3)
    row = [tuple(pixel) for pixel in sheet[top]]
    assert row.index(BAD) > row.index(GOOD) + 112


def test_many_tiles_wrap_and_groups_stay_together() -> None:
    tiles = [Tile(np.zeros((112, 112, 3), np.uint8), (f"{i}",)) for i in range(30)]
    alone, few = draw_sheet([Strip("a", tiles)]), draw_sheet([Strip("a", tiles[:3])])
    assert alone.width <= WIDE + 2 * MARGIN and alone.height > 2 * few.height
    pairs = np.asarray(draw_sheet([Strip("a", [Tile(tile.frame, (), GOOD) for tile in tiles], group=2)]))
    green = (pairs[MARGIN + TITLE] == GOOD).all(1)
    widths = np.diff(np.flatnonzero(np.diff(green.astype(int))))[1::2]  # Of the gaps between tiles.
    assert set(widths.tolist()) == {2, 10} and (widths[::2] == 2).all()


def test_long_captions_lose_their_middle() -> None:
    tile = Tile(np.zeros((112, 60, 3), np.uint8), ("an-episode-with-a-very-long-name-000123",))
    assert draw_sheet([Strip("a", [tile])]).width < 150


def test_the_png_is_whole(tmp_path: Path) -> None:
    strips = [Strip("empty", []), Strip("a title", [Tile(np.zeros((8, 8, 3), np.uint8), ("x",))])]
    write(tmp_path / "sheet.png", strips)
    with Image.open(tmp_path / "sheet.png") as picture:
        picture.load()
        assert picture.size[0] > 100
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
