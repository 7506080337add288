"""Who is told what happens in a fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Listener(Protocol):
    """Is told what happens in a fit."""

    def on_start(self, step: int, total_steps: int) -> None:
        """Training begins, or goes on, at a step."""

    def on_resume(self, step: int) -> None:
        """A checkpoint was loaded."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Some steps are over; the names begin with `train/`."""

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """A validation is over; the names begin with `val/`."""

    def close(self) -> None:
        """Training is over."""
