"""A terminal and a clock that tests can look at and set."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that go on when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
