"""How many gradient steps are due."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from plaudit.rl.checkpoint import check_complete


class Pace:
    """Counts env steps and gradient steps, so that their ratio is what was asked for: exactly, at any time, over any
    number of resumes, and for fractions too.

    Args:
        ratio: Gradient steps for each env step.
        starts: Env steps for which none is due.

    Attributes:
        steps: Env steps so far, all envs counted.
        updates: Gradient steps so far.
    """

    def __init__(self, ratio: float, starts: int) -> None:
        # The decimal that was written: 0.1 is a tenth, and not the binary number next to it.
        self.ratio = Fraction(repr(ratio))
        self.steps = self.updates = 0
        self._starts = self._since = starts
        self._before = 0

    @property
    def owed(self) -> int:
        """Gradient steps that are due now."""
        return self._before + math.floor(self.ratio * max(0, self.steps - self._since)) - self.updates

    def state_dict(self) -> dict[str, Any]:
        """The counts, and where they are counted from."""
        return {
            "ratio": str(self.ratio),
            "steps": self.steps,
            "updates": self.updates,
            "since": self._since,
            "before": self._before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave. Where that was of another ratio, ours holds from here on; and our `starts`
        does, where learning had not begun.
        """
        check_complete(state, self.state_dict(), "the gradient steps that are due")
        self.steps, self.updates = int(state["steps"]), int(state["updates"])
        if not self.updates:
            self._since, self._before = self._starts, 0
            return
        self._since, self._before = int(state["since"]), int(state["before"])
        if Fraction(state["ratio"]) != self.ratio:
            self._since, self._before = max(self.steps, self._since), self.updates
