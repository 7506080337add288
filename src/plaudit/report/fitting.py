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


class FitDisplay(ProgressDisplay):
    """A fit's listener: loss and speed on the way, a line for every validation, and the time left."""

    what = "fitting"

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
