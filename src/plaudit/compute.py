"""Who gets which core. Simulation, rendering and torch share one machine; the split is decided here and nowhere else.

Simulation and rendering use every core while they run, and torch uses one: the phases of training take turns, nets for
control are small, and a second torch thread that spins while the simulator works makes both many times slower. Where a
policy looks at pictures there is enough to share, and torch uses every core in its turn. So do the critics, which our
own kernel computes: it asks for the others once for all that is to be done. And so does torch in a fit, which has no
simulator beside it, divided between the processes that fit together. Where one process learns while another acts,
nobody takes turns: learning has one core, or from pictures half of them, and acting the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("plaudit")

GIVES_WAY = 10
"""The nice value of whoever steps back: a tenth of a core, where another one wants all of it."""

_of_kernels = 0  # What was claimed.

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # From glibc's malloc.h.


def cores() -> int:
    """Cores that this process may use, a container's limits included."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return there if quota is None else max(1, min(there, math.ceil(quota)))


def _quota(cgroups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Seconds of CPU in a second that a container may take; `None` where nothing says."""
    try:
        if (whole := cgroups / "cpu.max").exists():
            limit, period = whole.read_text().split()
        else:
            limit, period = ((cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        quota = float(limit) / float(period)  # "max" is no number.
    except (OSError, ValueError):
        return None
    return quota if quota > 0 else None


def has_gpu() -> bool:
    """Whether torch can calculate on a GPU. Torch, which takes seconds to import, is asked only where a driver is."""
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def simulation_threads(requested: int = 0) -> int:
    """Threads for stepping and rendering: what was asked for, or every core."""
    return requested if requested > 0 else cores()


def apart_threads(requested: int = 0, *, looks: bool = False) -> tuple[int, int]:
    """Threads of a process that acts, for stepping, rendering and scoring, and of torch in one that learns meanwhile:
    what was asked for, or every core, of which learning has one, or half where it `looks` at pictures.
    """
    there = requested if requested > 0 else cores()
    learning = max(1, there // 2) if looks else 1
    return max(1, there - learning), learning


def learning_threads(requested: int = 0, *, looks: bool = False) -> int:
    """Threads of torch while a policy learns: one; where it `looks` at pictures what was asked for, or every core."""
    return (requested if requested > 0 else cores()) if looks else 1


def fit_threads(requested: int = 0, *, head_only: bool = False, processes: int = 1) -> int:
    """Threads of torch in one process of a fit.

    Args:
        requested: Of all processes together; 0 is every core.
        head_only: Only a head is trained, which is too small to share: one.
        processes: How many share the machine.
    """
    return 1 if head_only else max(1, (requested if requested > 0 else cores()) // processes)


def scoring_threads(requested: int = 0) -> int:
    """Threads of ONNX Runtime: what was asked for, or every core. They sleep while the simulator has its turn."""
    return requested if requested > 0 else cores()


def claim_threads(count: int = 1, of_kernels: int | None = None) -> int:
    """Gives torch its share, and tells what it had. Whoever starts a run calls it before the first tensor.

    Args:
        count: Of torch's operations.
        of_kernels: Of our own kernels; 0 for as many as torch has, `None` for what they have.
    """
    import torch

    global _of_kernels
    if of_kernels is not None:
        _of_kernels = of_kernels
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


def kernel_threads() -> int:
    """Threads of our own kernels: what was claimed for them, or torch's."""
    import torch

    return _of_kernels or torch.get_num_threads()


def wait_quietly() -> None:
    """Lets torch's threads sleep while they wait. Must be called before torch is imported, and then costs nothing.

    They would spin otherwise, and with anything else on the machine a step takes several times as long. The GNU library
    may spin for some microseconds first: to fall asleep and be woken between two small operations takes longer.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


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


def available_memory() -> int | None:
    """Bytes that may be taken without swapping (a container's limit included); `None` where the system does not say."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        found.append(_numbers("/proc/meminfo")["MemAvailable:"] * 1024)
    with contextlib.suppress(OSError, KeyError, ValueError):
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text()) - _numbers(group / "memory.stat")["inactive_file"]
        found.append(int((group / "memory.max").read_text()) - used)
    return max(0, min(found)) if found else None


def _numbers(path: str | Path) -> dict[str, int]:
    """First words of the lines of a file to the numbers after them."""
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
