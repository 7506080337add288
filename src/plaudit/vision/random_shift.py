"""Pictures moved by a few pixels."""

from __future__ import annotations

import torch


def moved_pixels(shift: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Which pixel each pixel of a moved picture shows, counted row by row, int64 (n, height * width).

    The pictures are seen from `shift` pixels farther right and down, int64 (n, 2). What comes into view repeats the
    edge.
    """
    columns = (torch.arange(width) + shift[:, :1]).clamp_(0, width - 1)
    rows = (torch.arange(height) + shift[:, 1:]).clamp_(0, height - 1)
    return (rows[:, :, None] * width + columns[:, None]).flatten(1)
