"""Contact sheets: titled rows of small pictures, for a person to look at."""

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
"""Pixels that a tile is high at least; smaller frames are blown up by whole numbers, so that pixels stay pixels."""

TALLEST = 256
"""Pixels that a tile is high at most."""

WIDE = 1200
"""Pixels that a sheet is wide at most, unless one tile alone is wider."""

BORDER, GAP, MARGIN, TITLE, LINE = 3, 8, 16, 30, 15


@dataclass(frozen=True)
class Tile:
    """One picture.

    Attributes:
        frame: uint8 (H, W, 3).
        caption: Lines below it.
        colour: Of its border.
    """

    frame: Array
    caption: tuple[str, ...] = ()
    colour: Colour = UNSURE


@dataclass(frozen=True)
class Strip:
    """Tiles under one title; `group` of them at a time stand close together."""

    title: str
    tiles: Sequence[Tile]
    group: int = 1


def write_sheet(path: str | Path, strips: Sequence[Strip]) -> None:
    """Writes a PNG of all strips that have tiles, one below the other; folders are made."""
    strips = [strip for strip in strips if strip.tiles]
    if not strips:
        raise OutputError(f"cannot write {path}: there is no picture to show.")
    sheet = draw_sheet(strips)
    with whole_file(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def draw_sheet(strips: Sequence[Strip]) -> Image.Image:
    """The sheet as a picture."""
    from PIL import Image, ImageDraw

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
    """A frame uint8 (H, W, 3) at a size for people: repeated pixels where it is small, averaged ones where large."""
    from PIL import Image

    height, width = frame.shape[:2]
    if height > tallest:
        size = (max(1, round(width * tallest / height)), tallest)
        return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).resize(size, Image.Resampling.BOX))
    scale = max(1, math.ceil(tall / height))
    return frame.repeat(scale, axis=0).repeat(scale, axis=1)


class _Block:
    """A strip, laid out: how many tiles fit in a line, and how large it all is."""

    def __init__(self, strip: Strip) -> None:
        self.strip = strip
        self.pictures = [enlarge(tile.frame) for tile in strip.tiles]
        self.cell: int = max(picture.shape[1] for picture in self.pictures) + 2 * BORDER
        lines = max(len(tile.caption) for tile in strip.tiles)
        self.step = max(picture.shape[0] for picture in self.pictures) + 2 * BORDER + lines * LINE + GAP
        pair = strip.group * (self.cell + 2) + GAP
        self.columns = max(1, (WIDE + GAP) // pair) * strip.group
        rows = math.ceil(len(strip.tiles) / self.columns)
        self.width = max(self._left(min(self.columns, len(strip.tiles)) - 1) + self.cell, 9 * len(strip.title))
        self.height = TITLE + rows * self.step + GAP

    def _left(self, column: int) -> int:
        return column * (self.cell + 2) + column // self.strip.group * GAP

    def paint(self, sheet: Image.Image, draw: ImageDraw.ImageDraw, top: int) -> None:
        """Draws it onto the sheet, from `top` down."""
        from PIL import Image, ImageFont

        large, small = ImageFont.load_default(size=17), ImageFont.load_default(size=11)
        draw.text((MARGIN, top), self.strip.title, fill=INK, font=large)
        for index, (tile, picture) in enumerate(zip(self.strip.tiles, self.pictures, strict=True)):
            left = MARGIN + self._left(index % self.columns)
            line = top + TITLE + index // self.columns * self.step
            height, width = picture.shape[:2]
            box = (left, line, left + width + 2 * BORDER - 1, line + height + 2 * BORDER - 1)
            draw.rectangle(box, fill=tile.colour)
            sheet.paste(Image.fromarray(np.ascontiguousarray(picture)), (left + BORDER, line + BORDER))
            for number, text in enumerate(tile.caption):
                spot = (left, line + height + 2 * BORDER + number * LINE)
                draw.text(spot, _fitted(text, self.cell, small), fill=INK, font=small)


def _fitted(text: str, width: int, font: Any) -> str:
    """The text, its middle left out where it is too wide."""
    if font.getlength(text) <= width:
        return text
    for keep in range(len(text) - 1, 1, -1):
        short = f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"
        if font.getlength(short) <= width:
            return short
    return text[:1]
