"""Live terminal progress: tables and bars for training, collection and fitting."""

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
    """Training callback that shows progress on stderr.

    Draws a live bar on a terminal; otherwise prints a line every few seconds.

    Args:
        headline: Success metric to show, without its `rollout/` or `eval/` prefix.
        stream: Output stream; stderr by default.
        interval: Seconds between lines if the stream is not a terminal.
        clock: Monotonic clock in seconds.
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
        self._line = ""  # The newest line, until it is printed.
        self._console: Console | None = None
        self._bar: tuple[Progress, TaskID] | None = None

    def on_start(self, step: int, total_steps: int) -> None:
        """Start or continue the display at `step` of `total_steps` env steps."""
        self.total = total_steps
        self._first_step = step
        self._started = self.clock()
        if self.stream.isatty():
            self._open_bar(step)

    def on_prolonged(self, total_steps: int) -> None:
        """Raise the total number of steps after training was extended."""
        self.total = total_steps
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, total=total_steps)

    def on_resume(self, step: int) -> None:
        """Print the step of the checkpoint that was loaded."""
        self._say(f"resumed at step {step:,}")

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show success, return, speed and time left after an iteration."""
        parts = self.progress_words(metrics)
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=step, summary="  ".join([*parts, self._time_left(step)]))
            return

        # Without a bar, keep the newest line and print it once the interval has passed.
        percentage = f"({step / self.total:.0%})" if self.total else ""
        self._line = "  ".join([f"step {step:,}/{self.total:,} {percentage}", *parts, self._time_left(step)])
        if self.clock() - self._printed >= self.interval:
            self._flush()

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the result of an evaluation, always on its own line."""
        self._flush()
        self._say("  ".join([f"step {step:,}", *self.eval_words(metrics)]))

    def progress_words(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the texts to show for an iteration."""
        parts = _summary(metrics, "rollout/", self.headline)
        if "charts/steps_per_second" in metrics:
            parts.append(f"{compact(metrics['charts/steps_per_second'])} steps/s")
        return parts

    def eval_words(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the texts to show for an evaluation."""
        return ["evaluation:", *_summary(metrics, "eval/", self.headline)]

    def close(self) -> None:
        """Stop the display, leaving the last numbers on the screen."""
        self._flush()
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _open_bar(self, step: int) -> None:
        """Start the live bar at `step`."""
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
        """Return the time left at the mean speed since the start, evaluations included."""
        done = step - self._first_step
        elapsed = self.clock() - self._started
        if done <= 0 or step >= self.total:
            return f"{duration(elapsed)} in all" if done > 0 else ""
        return f"{duration(elapsed * (self.total - step) / done)} left"

    def _flush(self) -> None:
        """Print the newest line if it has not been printed."""
        if self._line:
            self._printed = self.clock()
            line = self._line
            self._line = ""
            self._say(line)

    def _say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._console is not None:
            self._console.print(line, markup=False)
        else:
            print(line, file=self.stream, flush=True)


def compact(number: float) -> str:
    """Format a number in three digits with a unit: 950, 12.3k, 1.25M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Format seconds as minutes or hours: 0:42, 3:05, 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _summary(metrics: Mapping[str, float], prefix: str, headline: str) -> list[str]:
    """Return success and return as texts, each only if it is known and finite."""
    parts = []
    success = metrics.get(f"{prefix}{headline}")
    episode_return = metrics.get(f"{prefix}return")
    if success is not None and math.isfinite(success):
        parts.append(f"success {success:.0%}")
    if episode_return is not None and math.isfinite(episode_return):
        parts.append(f"return {episode_return:.3g}")
    return parts


T = TypeVar("T")

PLAIN_WIDTH = 120
"""Line width in characters if stdout is not a terminal."""


def show_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), rule: bool = False
) -> None:
    """Print a table to stdout.

    Args:
        head: Column names.
        rows: Cell texts, one sequence per row.
        right: Names of the columns that are right-aligned.
        rule: Whether to draw a line between rows, for rows of several lines.
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
    """Yield the items one by one, with a progress bar if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        yield from progress.track(items, len(items), description=what)


@dataclass(frozen=True)
class CollectionCounts:
    """Totals of a collection, earlier runs included.

    Attributes:
        positive: Number of successful episodes.
        negative: Number of unsuccessful episodes.
        wanted: Target number of positive and of negative episodes; `None` for no limit.
        frames: Number of frames in all episodes.
        success_frames: Number of frames labelled a success.
        unknown_frames: Number of frames without a label.
        size: Approximate size of all episodes in bytes.
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
        """Number of episodes, positive and negative."""
        return self.positive + self.negative

    @property
    def balance(self) -> str:
        """Shares of the labels as text; empty if there are no frames."""
        if not self.frames:
            return ""
        success = self.success_frames / self.frames
        unknown = self.unknown_frames / self.frames
        shares = [f"{success:.0%} success", f"{1 - success - unknown:.0%} failure"]
        return ", ".join([*shares, f"{unknown:.0%} unknown"] if unknown else shares)


class CollectionDisplay:
    """Display of the progress of a collection on stderr.

    Draws a live table on a terminal; otherwise prints a line every few seconds.

    Args:
        stream: Output stream; stderr by default.
        interval: Seconds between lines if the stream is not a terminal.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, interval: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self._live: Live | None = None
        self._interval = interval
        self._started = clock()
        self._refreshed = -math.inf
        self._first: CollectionCounts | None = None
        self._newest: CollectionCounts | None = None

    def update(self, tally: CollectionCounts) -> None:
        """Show the newest totals, unless the display was refreshed just before."""
        # Speed and time left count from the first totals, which may include earlier runs.
        if self._first is None:
            self._first = tally
            self._started = self.clock()
            if self.stream.isatty():
                self._open()

        self._newest = tally
        if self.clock() - self._refreshed >= (0.25 if self._live else self._interval):
            self._show(tally)

    def say(self, line: str) -> None:
        """Print a line, above the table if there is one."""
        if self._live is not None:
            self._live.console.print(line, markup=False)
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        """Stop the display, leaving the last numbers on the screen."""
        if self._newest is not None:
            self._show(self._newest)
            self._newest = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _open(self) -> None:
        """Start the live table."""
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=self.stream, highlight=False), auto_refresh=False)
        self._live.start()

    def _show(self, tally: CollectionCounts) -> None:
        """Refresh the table, or print a line if there is none."""
        self._refreshed = self.clock()
        if self._live is not None:
            self._live.update(self._table(tally), refresh=True)
        else:
            counts = [f"{name} {_count_of_target(number, wanted)}" for name, number, wanted in _classes(tally)]
            self.say("  ".join([*counts, *(text for text in self._statistics(tally).values() if text)]))

    def _table(self, tally: CollectionCounts) -> Table:
        """Return the totals as a table, with a bar for each class that has a target."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, number, wanted in _classes(tally):
            bar = ProgressBar(total=wanted, completed=number, width=24) if wanted else ""
            table.add_row(f"{name} episodes", _count_of_target(number, wanted), bar)
        for name, text in self._statistics(tally).items():
            table.add_row(name, text)
        return table

    def _statistics(self, tally: CollectionCounts) -> dict[str, str]:
        """Return names and texts of all statistics except the two episode counts."""
        assert self._first is not None

        # Frames of earlier runs do not count towards the speed.
        elapsed = self.clock() - self._started
        new_frames = tally.frames - self._first.frames
        speed = f"{compact(new_frames / elapsed)} frames/s" if elapsed > 0 and new_frames else ""

        return {
            "frames": f"{tally.frames:,} frames",
            "labels": tally.balance,
            "speed": speed,
            "size": f"{tally.size / 1e6:,.0f} MB",
            "time": self._time(tally, elapsed),
        }

    def _time(self, tally: CollectionCounts, elapsed: float) -> str:
        """Return the time left for the slower class at its mean speed so far, if known.

        Otherwise return the time elapsed.
        """
        assert self._first is not None

        # Infinite if a class has no target, or has one but gained no episode yet.
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
    """Return name, number and target of episodes for both classes."""
    return [("positive", tally.positive, tally.wanted[0]), ("negative", tally.negative, tally.wanted[1])]


def _count_of_target(number: int, wanted: int | None) -> str:
    """Format a count, followed by its target if there is one."""
    return f"{number:,}" if wanted is None else f"{number:,}/{wanted:,}"


VALIDATION = {
    "val/log_loss": ("log loss", ".4f"),
    "val/balanced_accuracy": ("balanced accuracy", ".1%"),
    "val/recall": ("recall", ".1%"),
    "val/episode_false_positive_rate": ("false positives per episode", ".1%"),
}
"""Validation metrics to show, with their names and formats.

The last three are at the threshold chosen in that validation.
"""


GAP = 2.0
"""Minimum seconds between validation lines: small data sets have several validations a second."""


class FitDisplay(ProgressDisplay):
    """Callback that shows the progress of fitting a reward model.

    Shows loss, speed and time left during training, and a line per validation.
    """

    what = "fitting"
    _printed_validation = -math.inf
    _pending: tuple[int, Mapping[str, float]] | None = None

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the result of a validation, unless another was printed just before."""
        self._pending = step, metrics
        if self.clock() - self._printed_validation >= GAP:
            self._flush_validation()

    def close(self) -> None:
        """Print the last validation, if still pending, and stop the display."""
        self._flush_validation()
        super().close()

    def _flush_validation(self) -> None:
        """Print the pending validation, if any."""
        if self._pending is not None:
            self._printed_validation = self.clock()
            super().on_eval(*self._pending)
            self._pending = None

    def progress_words(self, metrics: Mapping[str, float]) -> list[str]:
        """Return epoch, loss, accuracy and speed as texts."""
        return [
            f"epoch {metrics['train/epoch']:.1f}",
            f"loss {metrics['train/loss']:.4f}",
            f"accuracy {metrics['train/accuracy']:.1%}",
            f"{compact(metrics['train/frames_per_second'])} frames/s",
        ]

    def eval_words(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the finite validation metrics as texts."""
        values = {label: (metrics[name], digits) for name, (label, digits) in VALIDATION.items()}
        numbers = [f"{label} {value:{digits}}" for label, (value, digits) in values.items() if math.isfinite(value)]
        return ["validation:", *numbers]
