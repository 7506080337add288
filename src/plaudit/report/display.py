"""What a person sees while training runs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


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
