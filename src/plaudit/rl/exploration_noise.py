"""Exploration noise that lasts."""

from __future__ import annotations

import math

import torch


class AR1Noise:
    """Standard normal noise of which each draw resembles the one before, so that an arm moves instead of trembling.

    Every draw by itself is an ordinary one. Draws k steps apart have the correlation `correlation`**k.

    Args:
        correlation: From one draw to the next, at least 0 and less than 1.

    Attributes:
        last: The last draw, (n, d); empty before the first.
    """

    def __init__(self, correlation: float) -> None:
        self.correlation = correlation
        self.last = torch.zeros(0)

    def draw(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        """The next numbers, (rows, width). Where there were others of another shape before, it begins anew."""
        fresh = torch.randn(rows, width, device=device)
        if self.last.shape == fresh.shape:
            fresh.mul_(math.sqrt(1.0 - self.correlation**2)).add_(self.last.to(device), alpha=self.correlation)
        self.last = fresh
        return fresh

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the next draw depends on besides chance."""
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what `state_dict` gave."""
        self.last = state["last"]
