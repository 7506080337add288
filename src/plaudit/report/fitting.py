"""What a person sees while a reward model is fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from plaudit.report.display import ProgressDisplay, compact

VALIDATION = {
    "val/log_loss": ("log loss", ".4f"),
    "val/balanced_accuracy": ("balanced accuracy", ".1%"),
    "val/recall": ("recall", ".1%"),
    "val/episode_false_positive_rate": ("false positives per episode", ".1%"),
}
"""What is shown of a validation: in which words and digits. The last three are at the threshold chosen there."""


GAP = 2.0
"""Seconds between the lines of validations: small data sets have several in a second."""


class FitDisplay(ProgressDisplay):
    """A fit's listener: loss and speed on the way, a line for every validation, and the time left."""

    what = "fitting"
    _told = -math.inf
    _last: tuple[int, Mapping[str, float]] | None = None

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """A validation is over: a line of its own, unless the last one was just shown."""
        self._last = step, metrics
        if self.clock() - self._told >= GAP:
            self._tell()

    def close(self) -> None:
        self._tell()
        super().close()

    def _tell(self) -> None:
        if self._last is not None:
            self._told = self.clock()
            super().on_eval(*self._last)
            self._last = None

    def progress_words(self, metrics: Mapping[str, float]) -> list[str]:
        return [
            f"epoch {metrics['train/epoch']:.1f}",
            f"loss {metrics['train/loss']:.4f}",
            f"accuracy {metrics['train/accuracy']:.1%}",
            f"{compact(metrics['train/frames_per_second'])} frames/s",
        ]

    def eval_words(self, metrics: Mapping[str, float]) -> list[str]:
        shown = {words: (metrics[name], digits) for name, (words, digits) in VALIDATION.items()}
        numbers = [f"{words} {value:{digits}}" for words, (value, digits) in shown.items() if math.isfinite(value)]
        return ["validation:", *numbers]
