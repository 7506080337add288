"""Live progress in the terminal: tables and bars of training, collecting and fitting."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress, TaskID
    from rich.table import Table


class ProgressDisplay:
    """A training listener: a live bar on a terminal, else a line every few seconds. Writes to stderr.

    Args:
        headline: The success metric to show, without its `rollout/` or `eval/`.
        stream: Where to write; stderr by default.
        interval: Seconds between lines where there is no terminal.
        clock: Seconds that only go up.
    """

    what = "training"

    def __init__(
        self,
        headline: str = "success_once",
        stream: TextIO | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.headline = headline
        self.stream = sys.stderr if stream is None else stream
        self.interval = interval
        self.clock = clock
        self.total = 0
        self._first_step = 0
        self._started = clock()
        self._printed = -math.inf
        self._line = ""  # The newest line, while it has not been printed.
        self._console: Console | None = None
        self._bar: tuple[Progress, TaskID] | None = None

    def on_start(self, step: int, total_steps: int) -> None:
        """Training begins, or goes on, at `step` of `total_steps` env steps."""
        self.total, self._first_step, self._started = total_steps, step, self.clock()
        if self.stream.isatty():
            self._open_bar(step)

    def on_prolonged(self, total_steps: int) -> None:
        """Training will take more steps than was said."""
        self.total = total_steps
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, total=total_steps)

    def on_resume(self, step: int) -> None:
        """A checkpoint was loaded."""
        self._say(f"resumed at step {step:,}")

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """An iteration is over: shows success, return, speed and the time left."""
        parts = self.progress_words(metrics)
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=step, summary="  ".join([*parts, self._time_left(step)]))
            return
        share = f"({step / self.total:.0%})" if self.total else ""
        self._line = "  ".join([f"step {step:,}/{self.total:,} {share}", *parts, self._time_left(step)])
        if self.clock() - self._printed >= self.interval:
            self._flush()

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is over: always a line of its own."""
        self._flush()
        self._say("  ".join([f"step {step:,}", *self.eval_words(metrics)]))

    def progress_words(self, metrics: Mapping[str, float]) -> list[str]:
        """What is shown of an iteration."""
        parts = _summary(metrics, "rollout/", self.headline)
        if "charts/steps_per_second" in metrics:
            parts.append(f"{compact(metrics['charts/steps_per_second'])} steps/s")
        return parts

    def eval_words(self, metrics: Mapping[str, float]) -> list[str]:
        """What is shown of an evaluation."""
        return ["evaluation:", *_summary(metrics, "eval/", self.headline)]

    def close(self) -> None:
        """Leaves the last numbers on the screen."""
        self._flush()
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _open_bar(self, step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._console = Console(file=self.stream, highlight=False)
        progress = Progress(
            TextColumn(self.what),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[summary]}"),
            console=self._console,
        )
        self._bar = progress, progress.add_task("", total=self.total, completed=step, summary="")
        progress.start()

    def _time_left(self, step: int) -> str:
        """From the mean speed since the start, evaluations included."""
        done, elapsed = step - self._first_step, self.clock() - self._started
        if done <= 0 or step >= self.total:
            return f"{duration(elapsed)} in all" if done > 0 else ""
        return f"{duration(elapsed * (self.total - step) / done)} left"

    def _flush(self) -> None:
        if self._line:
            self._printed = self.clock()
            line, self._line = self._line, ""
            self._say(line)

    def _say(self, line: str) -> None:
        if self._console is not None:
            self._console.print(line, markup=False)
        else:
            print(line, file=self.stream, flush=True)


def compact(number: float) -> str:
    """950, 12.3k, 1.25M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """0:42, 3:05, 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _summary(metrics: Mapping[str, float], prefix: str, headline: str) -> list[str]:
    """Success and return in words, where they are known."""
    parts = []
    success, total = metrics.get(f"{prefix}{headline}"), metrics.get(f"{prefix}return")
    if success is not None and math.isfinite(success):
        parts.append(f"success {success:.0%}")
    if total is not None and math.isfinite(total):
        parts.append(f"return {total:.3g}")
    return parts


T = TypeVar("T")

PLAIN_WIDTH = 120
"""Characters in a line where there is no terminal."""


def show_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), rule: bool = False
) -> None:
    """Prints a table to stdout.

    Args:
        head: Names of the columns.
        rows: Texts.
        right: Columns that are aligned to the right.
        rule: A line between rows, where they are of several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_lines=rule, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False).print(table)


def track(items: Collection[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """The items one by one, with a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        yield from progress.track(items, len(items), description=what)


@dataclass(frozen=True)
class CollectionCounts:
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
        self._first: CollectionCounts | None = None
        self._newest: CollectionCounts | None = None

    def update(self, tally: CollectionCounts) -> None:
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

    def _show(self, tally: CollectionCounts) -> None:
        self._shown = self.clock()
        if self._live is not None:
            self._live.update(self._table(tally), refresh=True)
        else:
            counts = [f"{name} {_of(number, wanted)}" for name, number, wanted in _classes(tally)]
            self.say("  ".join([*counts, *(text for text in self._rest(tally).values() if text)]))

    def _table(self, tally: CollectionCounts) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, number, wanted in _classes(tally):
            bar = ProgressBar(total=wanted, completed=number, width=24) if wanted else ""
            table.add_row(f"{name} episodes", _of(number, wanted), bar)
        for name, text in self._rest(tally).items():
            table.add_row(name, text)
        return table

    def _rest(self, tally: CollectionCounts) -> dict[str, str]:
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

    def _time(self, tally: CollectionCounts, elapsed: float) -> str:
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


def _classes(tally: CollectionCounts) -> list[tuple[str, int, int | None]]:
    return [("positive", tally.positive, tally.wanted[0]), ("negative", tally.negative, tally.wanted[1])]


def _of(number: int, wanted: int | None) -> str:
    return f"{number:,}" if wanted is None else f"{number:,}/{wanted:,}"


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
