"""What a person sees while episodes are collected."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from plaudit.report.display import compact, duration

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


@dataclass(frozen=True)
class Tally:
    """What has been collected, earlier runs included.

    Attributes:
        positive: Episodes with success.
        negative: Episodes without.
        wanted: How many of each are wanted, positive first; `None` for no limit.
        frames: Frames of all.
        success_frames: Those labelled a success.
        unknown_frames: Those without a label.
        size: Bytes of all, near enough.
    """

    positive: int
    negative: int
    wanted: tuple[int | None, int | None]
    frames: int
    success_frames: int
    unknown_frames: int
    size: int

    @property
    def episodes(self) -> int:
        """All of them."""
        return self.positive + self.negative

    @property
    def balance(self) -> str:
        """How the labels are shared out, in words."""
        if not self.frames:
            return ""
        success, unknown = self.success_frames / self.frames, self.unknown_frames / self.frames
        words = [f"{success:.0%} success", f"{1 - success - unknown:.0%} failure"]
        return ", ".join([*words, f"{unknown:.0%} unknown"] if unknown else words)


class CollectionDisplay:
    """A live table on a terminal, else a line every few seconds. Writes to stderr.

    Args:
        stream: Where to write; stderr by default.
        interval: Seconds between lines where there is no terminal.
        clock: Seconds that only go up.
    """

    def __init__(
        self, stream: TextIO | None = None, interval: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self._live: Live | None = None
        self._interval = interval
        self._started = clock()
        self._shown = -math.inf
        self._first: Tally | None = None
        self._newest: Tally | None = None

    def update(self, tally: Tally) -> None:
        """Shows the newest numbers, unless it has just shown some."""
        if self._first is None:
            self._first, self._started = tally, self.clock()
            if self.stream.isatty():
                self._open()
        self._newest = tally
        if self.clock() - self._shown >= (0.25 if self._live else self._interval):
            self._show(tally)

    def say(self, line: str) -> None:
        """A line of its own, above the table."""
        if self._live is not None:
            self._live.console.print(line, markup=False)
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Leaves the last numbers on the screen."""
        if self._newest is not None:
            self._show(self._newest)
            self._newest = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self.stream, highlight=False), auto_refresh=False)
        self._live.start()

    def _show(self, tally: Tally) -> None:
        self._shown = self.clock()
        if self._live is not None:
            self._live.update(self._table(tally), refresh=True)
        else:
            counts = [f"{name} {_of(number, wanted)}" for name, number, wanted in _classes(tally)]
            self.say("  ".join([*counts, *(text for text in self._rest(tally).values() if text)]))

    def _table(self, tally: Tally) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, number, wanted in _classes(tally):
            bar = ProgressBar(total=wanted, completed=number, width=24) if wanted else ""
            table.add_row(f"{name} episodes", _of(number, wanted), bar)
        for name, text in self._rest(tally).items():
            table.add_row(name, text)
        return table

    def _rest(self, tally: Tally) -> dict[str, str]:
        """Names and words of all but the two counts."""
        assert self._first is not None
        elapsed = self.clock() - self._started
        new = tally.frames - self._first.frames
        speed = f"{compact(new / elapsed)} frames/s" if elapsed > 0 and new else ""
        return {
            "frames": f"{tally.frames:,} frames",
            "labels": tally.balance,
            "speed": speed,
            "size": f"{tally.size / 1e6:,.0f} MB",
            "time": self._time(tally, elapsed),
        }

    def _time(self, tally: Tally, elapsed: float) -> str:
        """How long it still takes for the slower class at its mean speed so far, where that is known."""
        assert self._first is not None
        left = 0.0
        for (_, number, wanted), (_, before, _) in zip(_classes(tally), _classes(self._first), strict=True):
            missing = math.inf if wanted is None else max(0, wanted - number)
            gained = number - before
            if missing:
                left = max(left, missing * elapsed / gained if gained else math.inf)
        if not left:
            return f"{duration(elapsed)} in all"
        return f"{duration(left)} left" if math.isfinite(left) else f"{duration(elapsed)} so far"


def _classes(tally: Tally) -> list[tuple[str, int, int | None]]:
    return [("positive", tally.positive, tally.wanted[0]), ("negative", tally.negative, tally.wanted[1])]


def _of(number: int, wanted: int | None) -> str:
    return f"{number:,}" if wanted is None else f"{number:,}/{wanted:,}"
