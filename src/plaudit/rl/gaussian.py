"""The diagonal Gaussian."""

from __future__ import annotations

import math

import torch

LOG_2PI = math.log(2.0 * math.pi)


def gaussian_log_prob(mean: torch.Tensor, log_std: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Log density (n,) of x (n, d) under means (n, d) and one standard deviation (d,)."""
    squares = ((x - mean) * (-log_std).exp()).square()
    constant = log_std.sum() + 0.5 * LOG_2PI * len(log_std)
    return torch.sub(-constant, squares.sum(-1), alpha=0.5)
