"""Memory of training PushCube with 256 envs on state, and the time that `import plaudit` and `plaudit --help` take."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Row, main, say

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
FLAT = 0.02
"""Growth, as a share of the peak, up to which memory counts as flat."""


def train(iterations: int, folder: str) -> tuple[list[tuple[float, int]], int]:
    """Trains in a process of its own.

    Returns:
        Samples of (share of the iterations done, resident bytes), and the peak that the kernel saw, in bytes.
    """
    options = [f"runtime.iterations={iterations}", "runtime.video_episodes=0", f"runtime.output_dir={folder}"]
    command = [sys.executable, "-m", "plaudit", "train", "push_cube", "env.cfg.num_envs=256", *options, "--quiet"]
    child = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    samples: list[tuple[float, int]] = []
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(child.pid, Path(folder), iterations, samples, finished))
    watcher.start()
    assert child.stdout is not None
    output = child.stdout.read()
    finished.set()
    watcher.join()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"training failed: {output}")
    say(f"trained {json.loads(output.splitlines()[-1])['steps']:,} steps")
    return samples, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _watch(
    pid: int, folder: Path, iterations: int, samples: list[tuple[float, int]], finished: threading.Event
) -> None:
    """Reads the process's resident memory twenty times a second, with how far its log says it has come."""
    while not finished.wait(0.05):
        logs = list(folder.glob("*/logs/metrics.jsonl"))
        if logs:
            lines = sum('"charts/' in line for line in logs[0].read_text().splitlines())
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                return
            samples.append((lines / iterations, pages * PAGE))


def growth(samples: Sequence[tuple[float, int]]) -> float:
    """Bytes that memory grew from the first third of a run to its last tenth, medians of both."""
    early = [size for share, size in samples if 0.28 <= share <= 0.38]
    late = [size for share, size in samples if share >= 0.9]
    return statistics.median(late) - statistics.median(early)


def seconds(command: Sequence[str], times: int = 7) -> float:
    """Median wall-clock of a command, after one run that fills the disk cache."""
    found = []
    for _ in range(times + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def benchmark(quick: bool) -> list[Row]:
    """Memory, then start-up."""
    iterations = 30 if quick else 120
    say(f"training {iterations} iterations of 256 envs x 16 steps")
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        samples, peak = train(iterations, folder)
    grown = growth(samples)
    bare = seconds(["-c", "pass"])
    note = f"of which Python itself takes {bare:.2f} s; median of 7"
    return [
        Row("training memory, peak", peak / MIB, "MiB", target=1536, lower_is_better=True),
        Row(
            "training memory, growth",
            grown / MIB,
            "MiB",
            target=round(FLAT * peak / MIB, 1),
            lower_is_better=True,
            note="from the first third to the end; flat is up to 2 % of the peak",
        ),
        Row("import plaudit", seconds(["-c", "import plaudit"]), "s", target=0.5, lower_is_better=True, note=note),
        Row("plaudit --help", seconds(["-m", "plaudit", "--help"]), "s", target=0.5, lower_is_better=True),
    ]


if __name__ == "__main__":
    main(benchmark)
