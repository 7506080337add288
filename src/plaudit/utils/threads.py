"""Allocate CPU cores to simulation, rendering and torch.

Simulation, rendering and torch share one machine; this module alone decides the split:

- Simulation and rendering use every core while they run, and torch uses one: the phases of training alternate, networks
  for control are small, and a second torch thread that spins while the simulator runs makes both many times slower.
- If a policy observes images, there is enough work to share, and torch uses every core in its phase.
- The critics that our own kernel computes also use every core: the kernel asks for the other cores once
  for the whole computation.
- Torch also uses every core in a fit, which has no simulator beside it; the cores are divided between the processes
  that fit together.
- If one process learns while another acts, the phases overlap: learning has one core, or half of them if it learns from
  images, and acting has the others.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from pathlib import Path

logger = logging.getLogger("plaudit")

_of_kernels = 0  # Threads that were claimed for our own kernels; 0 for as many as torch has.


def cores() -> int:
    """Return the number of cores that this process may use, within container limits."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def _quota(cgroups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the container's CPU quota in cores, or `None` if there is no limit."""
    try:
        # cgroup v2 has one file for limit and period, v1 has two.
        if (limits := cgroups / "cpu.max").exists():
            limit, period = limits.read_text().split()
        else:
            limit, period = ((cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        quota = float(limit) / float(period)  # "max", for no limit, is a ValueError.
    except (OSError, ValueError):
        return None

    return quota if quota > 0 else None


def has_gpu() -> bool:
    """Return whether torch can use a GPU.

    Torch takes seconds to import, so that it is imported only if there is a driver.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def simulation_threads(requested: int = 0) -> int:
    """Return the threads for stepping and rendering: `requested`, or every core."""
    return requested if requested > 0 else cores()


def apart_threads(requested: int = 0, *, looks: bool = False) -> tuple[int, int]:
    """Split the cores between a process that acts and one that learns.

    Args:
        requested: Threads of both processes together; 0 is every core.
        looks: Whether the policy learns from images. Learning then has half of the threads, otherwise one.

    Returns:
        The threads of the process that acts, for stepping, rendering and scoring, and the threads of torch in the
        process that learns at the same time.
    """
    total = requested if requested > 0 else cores()
    learning = max(1, total // 2) if looks else 1
    return max(1, total - learning), learning


def learning_threads(requested: int = 0, *, looks: bool = False) -> int:
    """Return the threads of torch while a policy learns.

    Args:
        requested: Threads for a policy that learns from images; 0 is every core.
        looks: Whether the policy learns from images; if not, torch has one thread.
    """
    return (requested if requested > 0 else cores()) if looks else 1


def fit_threads(requested: int = 0, *, head_only: bool = False, processes: int = 1) -> int:
    """Return the threads of torch in one process of a fit.

    Args:
        requested: Threads of all processes together; 0 is every core.
        head_only: Only a head is trained, which is too small to parallelise: one thread.
        processes: Number of processes that share the machine.
    """
    return 1 if head_only else max(1, (requested if requested > 0 else cores()) // processes)


def scoring_threads(requested: int = 0) -> int:
    """Return the threads of ONNX Runtime: `requested`, or every core.

    These threads sleep while the simulator runs.
    """
    return requested if requested > 0 else cores()


def claim_threads(count: int = 1, of_kernels: int | None = None) -> int:
    """Set the number of threads of torch and of our own kernels.

    The entry point of a run calls it before the first tensor is created.

    Args:
        count: Threads of torch's operations.
        of_kernels: Threads of our own kernels; 0 for as many as torch has, `None` to leave the number unchanged.

    Returns:
        The number of threads that torch had before.
    """
    import torch

    global _of_kernels
    if of_kernels is not None:
        _of_kernels = of_kernels

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


def kernel_threads() -> int:
    """Return the threads of our own kernels: the number claimed for them, or torch's."""
    import torch

    return _of_kernels or torch.get_num_threads()


def wait_quietly() -> None:
    """Make torch's threads sleep while they wait.

    Call it before torch is imported; it costs nothing then. Otherwise the threads spin, and with any other load on the
    machine a step takes several times as long. The GNU library may spin for some microseconds first, because sleeping
    and waking up between two small operations takes longer.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
