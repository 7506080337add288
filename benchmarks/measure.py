"""What the benchmarks share: rows of results, the table, taking turns on a noisy machine, and the machine itself."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("plaudit", "torch", "mujoco", "numpy", "gymnasium", "stable-baselines3")


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        name: What was measured.
        value: Ours, in `unit`.
        unit: Such as `steps/s`.
        against: Who the peer or the limit is; empty where there is none.
        peer: The peer's value in the same unit.
        ratio: Ours over the peer's.
        target: What `ratio` (or `value`, where there is no peer) should be; `None` where it is only told.
        lower_is_better: Whether the target is an upper bound.
        note: What the reader should know, such as the thread settings.
    """

    name: str
    value: float
    unit: str
    against: str = ""
    peer: float | None = None
    ratio: float | None = None
    target: float | None = None
    lower_is_better: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; `None` without one."""
        if self.target is None:
            return None
        score = self.value if self.ratio is None else self.ratio
        return score <= self.target if self.lower_is_better else score >= self.target

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}


def median_and_worst(
    name: str, values: Sequence[float], target: float | None = None, unit: str = "", lower: bool = False
) -> list[Row]:
    """What some seeds come to."""
    note = f"by seed: {', '.join(f'{value:.3g}' for value in values)}"
    picked = {"median": statistics.median(values), "worst": (max if lower else min)(values)}
    return [
        Row(f"{name}, {which}", value, unit, target=target, lower_is_better=lower, note=note)
        for which, value in picked.items()
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows for people, in columns."""
    cells = [("", "ours", "peer or limit", "ratio", "target", "")]
    for row in rows:
        peer = "" if row.peer is None else f"{number(row.peer)} {row.unit} ({row.against})"
        bound = "" if row.target is None else f"{'<=' if row.lower_is_better else '>='} {row.target:g}"
        verdict = {None: "", True: "met", False: "NOT MET"}[row.met]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells.append((row.name, f"{number(row.value)} {row.unit}", peer, ratio, bound, verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row_cells, note in zip(cells, ["", *(row.note for row in rows)], strict=True):
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row_cells, widths, strict=True))
        lines.append(padded.rstrip())
        if note:
            lines.append(f"    {note}")
    return "\n".join(lines)


def number(value: float) -> str:
    """A number as people write it: 12,345 or 3.21."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def take_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Calls each run in turn, `rounds` times, so that what disturbs the machine disturbs all of them.

    Args:
        runs: Name to a function that runs once and returns its measurement, such as steps/s.
        rounds: Turns of each.

    Returns:
        Name to the measurements, in the order of the rounds.
    """
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            seen[name].append(run())
        say(f"  {turn + 1}/{rounds}: " + ", ".join(f"{name} {number(values[-1])}" for name, values in seen.items()))
    return seen


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the rounds' ratios: each compares two runs of the same moment."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


class Stopwatch:
    """Adds up the seconds spent inside a method of an object."""

    def __init__(self, owner: Any, method: str) -> None:
        self.seconds = 0.0
        self._inner = getattr(owner, method)
        setattr(owner, method, self._timed)

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._inner(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - started


def machine() -> dict[str, Any]:
    """Where this runs."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions,
    }


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main(benchmark: Callable[[bool], list[Row]]) -> None:
    """Runs one benchmark as a script: the table to stderr, the rows as the last line of stdout."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")
    rows = benchmark(parser.parse_args().quick)
    say(table(rows))
    print(json.dumps([row.as_dict() for row in rows]), flush=True)
