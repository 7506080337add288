"""Contact sheets: titled rows of small images for visual inspection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from plaudit.errors import OutputError
from plaudit.utils.atomic_io import whole_file

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

Array: TypeAlias = np.ndarray[Any, Any]
Colour: TypeAlias = tuple[int, int, int]

GOOD: Colour = (46, 160, 67)
BAD: Colour = (207, 74, 58)
UNSURE: Colour = (140, 146, 155)
PAPER: Colour = (250, 250, 248)
INK: Colour = (36, 41, 47)

TALL = 112
"""Minimum height of a tile in pixels.

Smaller frames are enlarged by integer factors, so that their pixels stay sharp.
"""

TALLEST = 256
"""Maximum height of a tile in pixels."""

WIDE = 1200
"""Maximum width of the tiles of a sheet in pixels, unless one group of tiles alone is wider."""

# Layout in pixels; `TITLE` and `LINE` are the heights of a title and of a caption line.
BORDER = 3
GAP = 8
MARGIN = 16
TITLE = 30
LINE = 15


@dataclass(frozen=True)
class Tile:
    """One image of a contact sheet.

    Attributes:
        frame: uint8 (H, W, 3).
        caption: Lines of text below the image.
        colour: Border colour.
    """

    frame: Array
    caption: tuple[str, ...] = ()
    colour: Colour = UNSURE


@dataclass(frozen=True)
class Strip:
    """Tiles under one title, placed close together in groups of `group`."""

    title: str
    tiles: Sequence[Tile]
    group: int = 1


def write_sheet(path: str | Path, strips: Sequence[Strip]) -> None:
    """Write a PNG of all strips that have tiles, one below the other.

    Parent directories are created.

    Raises:
        OutputError: If no strip has tiles.
    """
    strips = [strip for strip in strips if strip.tiles]
    if not strips:
        raise OutputError(f"cannot write {path}: there is no picture to show.")
    sheet = draw_sheet(strips)
    with whole_file(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def draw_sheet(strips: Sequence[Strip]) -> Image.Image:
    """Return the sheet as an image."""
    from PIL import Image, ImageDraw

    # Lay out all strips first, because the size of the sheet depends on them.
    blocks = [_Block(strip) for strip in strips]
    width = max(block.width for block in blocks) + 2 * MARGIN
    height = sum(block.height for block in blocks) + 2 * MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)

    top = MARGIN
    for block in blocks:
        block.paint(sheet, draw, top)
        top += block.height
    return sheet


def enlarge(frame: Array, tall: int = TALL, tallest: int = TALLEST) -> Array:
    """Resize a frame, uint8 (H, W, 3), for viewing.

    A frame lower than `tall` is enlarged by repeating pixels; one higher than `tallest` is shrunk by averaging them.
    """
    from PIL import Image

    height, width = frame.shape[:2]
    if height > tallest:
        size = (max(1, round(width * tallest / height)), tallest)
        return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).resize(size, Image.Resampling.BOX))
    scale = max(1, math.ceil(tall / height))
    return frame.repeat(scale, axis=0).repeat(scale, axis=1)


class _Block:
    """Layout of a strip: tiles per row, and the size of the strip in pixels."""

    def __init__(self, strip: Strip) -> None:
        self.strip = strip
        self.images = [enlarge(tile.frame) for tile in strip.tiles]

        # All tiles get a cell of the same size: the widest image, and the highest image with the longest caption.
        self.cell: int = max(image.shape[1] for image in self.images) + 2 * BORDER
        lines = max(len(tile.caption) for tile in strip.tiles)
        self.step = max(image.shape[0] for image in self.images) + 2 * BORDER + lines * LINE + GAP

        # A row holds as many whole groups as fit, at least one.
        group_width = strip.group * (self.cell + 2) + GAP
        self.columns = max(1, (WIDE + GAP) // group_width) * strip.group
        rows = math.ceil(len(strip.tiles) / self.columns)

        # A title takes about 9 pixels per character.
        self.width = max(self._left(min(self.columns, len(strip.tiles)) - 1) + self.cell, 9 * len(strip.title))
        self.height = TITLE + rows * self.step + GAP

    def _left(self, column: int) -> int:
        """Return the left edge of a column, with a gap before each group but the first."""
        return column * (self.cell + 2) + column // self.strip.group * GAP

    def paint(self, sheet: Image.Image, draw: ImageDraw.ImageDraw, top: int) -> None:
        """Draw the strip onto the sheet, from `top` down."""
        from PIL import Image, ImageFont

        large = ImageFont.load_default(size=17)
        small = ImageFont.load_default(size=11)
        draw.text((MARGIN, top), self.strip.title, fill=INK, font=large)

        for index, (tile, image) in enumerate(zip(self.strip.tiles, self.images, strict=True)):
            left = MARGIN + self._left(index % self.columns)
            tile_top = top + TITLE + index // self.columns * self.step

            # The border is a filled rectangle behind the image.
            height, width = image.shape[:2]
            box = (left, tile_top, left + width + 2 * BORDER - 1, tile_top + height + 2 * BORDER - 1)
            draw.rectangle(box, fill=tile.colour)
            sheet.paste(Image.fromarray(np.ascontiguousarray(image)), (left + BORDER, tile_top + BORDER))

            # Caption lines are shortened to the width of the cell.
            for number, text in enumerate(tile.caption):
                position = (left, tile_top + height + 2 * BORDER + number * LINE)
                draw.text(position, _fitted(text, self.cell, small), fill=INK, font=small)


def _fitted(text: str, width: int, font: Any) -> str:
    """Return the text, with an ellipsis in its middle if it is too wide."""
    if font.getlength(text) <= width:
        return text
    for keep in range(len(text) - 1, 1, -1):
        short = f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"
        if font.getlength(short) <= width:
            return short
    return text[:1]
