"""Priority, garbage collection and malloc settings for control loops and learners."""

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
"""Nice value of a low-priority process: a tenth of a core if another process wants all of it."""

# Parameters of `mallopt`, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_way(autogroup: Path = Path("/proc/self/autogroup")) -> None:
    """Lower the priority of this process permanently.

    The process yields its core to any other process that wants it. The priority of the whole session is lowered too, so
    that the process should run in a session of its own.
    """
    os.nice(GIVES_WAY)
    # Linux shares a core between sessions first; a nice value counts only within the session.
    with contextlib.suppress(OSError):
        autogroup.write_text(str(GIVES_WAY))


def keep_freed_memory() -> None:
    """Keep large freed blocks in the process instead of returning them to the system.

    Every gradient step allocates the same blocks again, and the system has to clear fresh ones first, which took a
    tenth of SAC's time. If the C library is not glibc, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        # An older glibc accepts 32 MiB at most. If this threshold were not set, setting the trim threshold below would
        # fix it at 128 KiB permanently.
        _ = libc.mallopt(_M_MMAP_THRESHOLD, 2**30) or libc.mallopt(_M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextlib.contextmanager
def undisturbed(wanted: bool = True) -> Iterator[None]:
    """Exclude existing objects from garbage collection during a control loop.

    With torch loaded, each full collection of them takes a tenth of a second.

    Args:
        wanted: If false, do nothing.
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
    """Give this thread the lowest real-time priority, if the system allows it.

    The thread then runs before every thread without a real-time priority. Threads and processes that it starts do not
    inherit the priority. By Linux's default settings, all real-time threads together get 95 % of a core, so that a loop
    that never sleeps cannot lock out the others.

    Args:
        wanted: If false, do nothing.
    """
    raised = wanted and _raise_priority()
    try:
        yield
    finally:
        if raised:
            # Only root may clear SCHED_RESET_ON_FORK, and the flag does no harm without a priority.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def has_priority() -> bool:
    """Return whether this thread has a real-time priority."""
    if not hasattr(os, "SCHED_RESET_ON_FORK"):
        return False
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO)


def _raise_priority() -> bool:
    """Request a real-time priority; return whether this call changed the policy."""
    if not hasattr(os, "SCHED_RESET_ON_FORK"):  # It exists on Linux only.
        return False

    try:
        # A scheduling policy that the user has chosen for this process stays.
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
