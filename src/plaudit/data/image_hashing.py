"""Pictures in few numbers: thumbnails to compare, hashes to look up."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import Episode, Frames

Thumbnails = NDArray[np.float32]
"""(n, h, w), grey levels from 0 to 255."""

Hashes = NDArray[np.uint64]
"""(n, 4)."""

SIDE = 32
"""Height and width of a thumbnail, or less where the frame is smaller."""

_SHARP = 128
"""Of frames that are twice as large or more, every other pixel is enough, and so on."""

_CELLS = 16
BITS = 256


def thumbnails(pixels: Frames) -> Thumbnails:
    """Mean grey levels of the cells of a 32×32 grid over each frame, uint8 (n, H, W, 3)."""
    step = max(1, min(pixels.shape[1:3]) // _SHARP)
    pixels = pixels[:, ::step, ::step]
    count, height, width = pixels.shape[:3]
    lines = pixels.reshape(count, height, 3 * width).astype(np.float32)
    colours = np.repeat(_means(width, SIDE), 3, axis=1) / np.float32(3)
    small: Thumbnails = _means(height, SIDE) @ (lines @ colours.T)
    return small


def _cells(pictures: Thumbnails, side: int) -> Thumbnails:
    """Means over the cells of a grid of at most side×side."""
    cells: Thumbnails = _means(pictures.shape[1], side) @ (pictures @ _means(pictures.shape[2], side).T)
    return cells


@lru_cache
def _means(length: int, side: int) -> NDArray[np.float32]:
    """A matrix (k, length) that takes means over k = min(length, side) stretches of about the same length."""
    count = min(length, side)
    matrix = np.equal.outer(np.arange(count), np.arange(length) * count // length).astype(np.float32)
    matrix /= matrix.sum(1, keepdims=True)
    return matrix


def digest(episode: Episode) -> bytes:
    """Equal only for the same pixels in the same order."""
    whole = hashlib.blake2b(digest_size=16)
    for camera in episode.cameras:
        pixels = episode.frames[camera]
        whole.update(f"{camera}{pixels.shape}".encode())
        whole.update(np.ascontiguousarray(pixels).data)
    return whole.digest()


class PerceptualHash:
    """256 bits for a picture, of which few differ between pictures that look alike.

    A hash of neighbouring pixels would say little here: in a robot's data set the background is the same everywhere,
    and the difference that counts is a cube of a few pixels. So each bit is the sign of a random projection of how the
    thumbnail departs from the data set's mean picture, measured in how much that place usually varies
    (Charikar 2002, Similarity estimation techniques from rounding algorithms).

    Args:
        sample: Thumbnails from all over the data set, (n, h, w).

    Attributes:
        shape: (h, w), which all thumbnails must have.
    """

    def __init__(self, sample: Thumbnails) -> None:
        self.shape = sample.shape[1:]
        cells = self._level(sample)
        self.mean = cells.mean(0)
        self.spread = cells.std(0) + 4.0  # In grey levels; sensor noise in a still background is not to count.
        shape = (cells.shape[1], BITS)
        self.directions = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def __call__(self, pictures: Thumbnails) -> Hashes:
        """Hashes (n, 4) of thumbnails (n, h, w)."""
        cells = (self._level(pictures) - self.mean) / self.spread
        # Not a matrix product: that of a few pictures would wait for a second thread longer than it takes.
        signs = np.einsum("nc,cb->nb", cells, self.directions) > 0
        return np.packbits(signs, axis=1).view(np.uint64)

    @staticmethod
    def _level(pictures: Thumbnails) -> NDArray[np.float32]:
        """Cells (n, k) of a coarser grid, without the mean: a brighter copy is still a copy."""
        cells = _cells(pictures, _CELLS).reshape(len(pictures), -1)
        cells -= cells.mean(1, keepdims=True)
        return cells


def distance(ours: Hashes, theirs: Hashes) -> NDArray[np.uint16]:
    """In how many bits hashes (n, 4) and (m, 4) differ, (n, m)."""
    bits = np.zeros((len(ours), len(theirs)), np.uint16)
    for word in range(ours.shape[1]):
        bits += np.bitwise_count(ours[:, word, None] ^ theirs[:, word])
    return bits


def difference(ours: Thumbnails, theirs: Thumbnails) -> NDArray[np.float32]:
    """How far pictures (n, h, w) are apart where they differ most, in grey levels, light and dark levelled out."""
    gap = ours - theirs
    gap -= gap.mean((1, 2), keepdims=True)
    most: NDArray[np.float32] = np.abs(gap).max((1, 2))
    return most
