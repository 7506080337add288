"""A process that only sleeps until each tick of a clock: what a machine, or its host, misses by itself.

Ticks as often in a second as its argument says, until its input ends, and prints how many it slept through and for how
long it overslept at most, in seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType


class Ticking:
    """Such a process, while a context lasts.

    Args:
        hertz: Ticks in a second.

    Attributes:
        missed: Ticks that it slept through, once it has ended.
        longest: Seconds for which it overslept, at most.
    """

    def __init__(self, hertz: float) -> None:
        self._hertz = hertz
        self.missed, self.longest = 0, 0.0

    def __enter__(self) -> Ticking:
        words = [sys.executable, __file__, str(self._hertz)]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )  # In a session of its own, Ctrl-C does not reach it.
        return self

    def __exit__(self, error: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        told, _nothing = self._process.communicate()
        if error is None:
            self.missed, self.longest = json.loads(told)


def tick(hertz: float, ended: threading.Event) -> tuple[int, float]:
    """Sleeps until each tick, one at least, until somebody says that it has ended.

    Returns:
        How many ticks it slept through, and for how many seconds it overslept at most.
    """
    missed, longest, due = 0, 0.0, time.perf_counter()
    while not (longest and ended.is_set()):
        due += 1 / hertz
        time.sleep(max(0.0, due - time.perf_counter()))
        late = time.perf_counter() - due
        longest = max(longest, late)
        missed += int(late * hertz)
        due += int(late * hertz) / hertz
    return missed, longest


def stolen(stat: Path = Path("/proc/stat")) -> float:
    """Seconds for which the host of a virtual machine has given its cores to others so far, all cores together, in
    hundredths; 0 where nobody tells.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(stat.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def busy(stat: Path = Path("/proc/thread-self/schedstat")) -> float:
    """Seconds for which this thread was at work so far, or stood in line while another had its core, if anybody tells.

    What the host of a virtual machine took while it was at work is left out, where Linux is told of it, and what it
    took while it stood in line is not.
    """
    waited = 0.0
    with contextlib.suppress(OSError, IndexError, ValueError):
        waited = int(stat.read_text().split()[1]) / 1e9
    return time.thread_time() + waited


def blocked() -> int:
    """How often this thread has waited for something so far: until a time, for another thread, for a disk; 0 where
    nobody tells.
    """
    who = getattr(resource, "RUSAGE_THREAD", None)  # Linux's.
    return 0 if who is None else resource.getrusage(who).ru_nvcsw


def main() -> None:
    """Ticks until its input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    missed, longest = tick(float(sys.argv[1]), ended)
    print(json.dumps([missed, longest]))


if __name__ == "__main__":
    main()
