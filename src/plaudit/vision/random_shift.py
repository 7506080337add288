"""Shift images by a few pixels, for data augmentation."""

from __future__ import annotations

import torch


def moved_pixels(shift: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the source pixel of each pixel of shifted images.

    The viewpoint moves right and down, so that the content moves left and up. Pixels from outside the image repeat its
    edge.

    Args:
        shift: Pixels to the right and down for each of n images, int64 (n, 2).
        height: Height of the images, in pixels.
        width: Width of the images, in pixels.

    Returns:
        Indices of the source pixels, counted row by row, int64 (n, height * width).
    """
    columns = (torch.arange(width) + shift[:, :1]).clamp_(0, width - 1)
    rows = (torch.arange(height) + shift[:, 1:]).clamp_(0, height - 1)
    return (rows[:, :, None] * width + columns[:, None]).flatten(1)
