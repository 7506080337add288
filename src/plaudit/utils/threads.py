"""Who gets which core. Simulation, rendering and torch share one machine; the split is decided here and nowhere else.

Simulation and rendering use every core while they run, and torch uses one: the phases of training take turns, nets for
control are small, and a second torch thread that spins while the simulator works makes both many times slower. Where a
policy looks at pictures there is enough to share, and torch uses every core in its turn. So do the critics, which our
own kernel computes: it asks for the others once for all that is to be done. And so does torch in a fit, which has no
simulator beside it, divided between the processes that fit together. Where one process learns while another acts,
nobody takes turns: learning has one core, or from pictures half of them, and acting the others.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from pathlib import Path

logger = logging.getLogger("plaudit")

_of_kernels = 0  # What was claimed.


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
