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
from typing import NamedTuple

from plaudit.utils.realtime import ahead


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


class Used(NamedTuple):
    """What a thread has had of the machine; 0 where nobody tells.

    Attributes:
        work: Seconds for which it had a core. What the host of a virtual machine took meanwhile is left out where Linux
            is told of it: a page of memory that the host has to fetch is not told of.
        line: Seconds for which it stood in line while another thread had its core, or the host did.
        waits: How often it has waited for something: until a time, for another thread, for a disk.
        faults: How often it has come to a page of memory that it had not.
    """

    work: float
    line: float
    waits: int
    faults: int

    def since(self, before: Used) -> Used:
        """What it has had since it had had `before`."""
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


NOTHING = Used(0.0, 0.0, 0, 0)


def used(stat: Path = Path("/proc/thread-self/schedstat")) -> Used:
    """What this thread has had so far."""
    line = 0.0
    with contextlib.suppress(OSError, IndexError, ValueError):
        line = int(stat.read_text().split()[1]) / 1e9
    who = getattr(resource, "RUSAGE_THREAD", None)  # Linux's.
    if who is None:
        return NOTHING._replace(work=time.thread_time())
    told = resource.getrusage(who)
    return Used(time.thread_time(), line, told.ru_nvcsw, told.ru_minflt + told.ru_majflt)


def main() -> None:
    """Ticks until its input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with ahead():  # As an arm's loop is.
        missed, longest = tick(float(sys.argv[1]), ended)
    print(json.dumps([missed, longest]))


if __name__ == "__main__":
    main()
