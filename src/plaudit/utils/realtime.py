"""Priorities, garbage collection and malloc settings for control loops and long-running learners."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("plaudit")

GIVES_WAY = 10
"""The nice value of whoever steps back: a tenth of a core, where another one wants all of it."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # From glibc's malloc.h.


def give_way(autogroup: Path = Path("/proc/self/autogroup")) -> None:
    """Has this process step back where another one wants its core, for good; and with it those of its session, so that
    it should have one of its own.
    """
    os.nice(GIVES_WAY)
    # Linux shares a core between sessions first, and one's nice value counts only within its own.
    with contextlib.suppress(OSError):
        autogroup.write_text(str(GIVES_WAY))


def keep_freed_memory() -> None:
    """Keeps large blocks that are freed for whoever asks next, instead of handing them back to the system.

    Every gradient step asks for the same ones again, and fresh ones have to be cleared first: a tenth of SAC's time.
    Where the C library is not glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        # An older glibc takes 32 MiB at most. With none set, the second call would leave it at 128 KiB for good.
        _ = libc.mallopt(_M_MMAP_THRESHOLD, 2**30) or libc.mallopt(_M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextlib.contextmanager
def undisturbed(wanted: bool = True) -> Iterator[None]:
    """Spares a control loop, where `wanted`, the search for garbage in all that was there before it: with torch loaded
    that takes a tenth of a second, again and again.
    """
    if wanted:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if wanted:
            gc.unfreeze()


@contextlib.contextmanager
def ahead(wanted: bool = True) -> Iterator[None]:
    """Gives this thread the least of the real-time priorities, where `wanted` and allowed: it comes before everything
    that has none. What it begins has none, be it a thread or a process. As Linux is set up by default, all with such a
    priority have 95 % of a core together, so that a loop that never sleeps cannot lock others out.
    """
    taken = wanted and _takes_priority()
    try:
        yield
    finally:
        if taken:
            # Only root may take back that what it begins has none, which does no harm without a priority.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def has_priority() -> bool:
    """Whether this thread has a real-time priority."""
    if not hasattr(os, "SCHED_RESET_ON_FORK"):
        return False
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO)


def _takes_priority() -> bool:
    """Whether this thread has got a priority that it had not. What somebody has chosen for it stays."""
    if not hasattr(os, "SCHED_RESET_ON_FORK"):  # Linux's.
        return False
    try:
        if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as error:
        logger.info(
            "the control loop has no real-time priority (%s), so that other programs may make it late now and then. "
            "Users get it with a line '<user> - rtprio 1' in /etc/security/limits.conf, from their next login on, and "
            "containers with --cap-add SYS_NICE.",
            error.strerror,
        )
        return False
    return True
