"""Who gets which core. Simulation, rendering and torch share one machine; the split is decided here and nowhere else.

Simulation and rendering use every core while they run, and torch uses one: the phases of training take turns, nets for
control are small, and a second torch thread that spins while the simulator works makes both many times slower.
"""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may use (a container's limit included)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def simulation_threads(requested: int = 0) -> int:
    """Threads for stepping and rendering: what was asked for, or every core."""
    return requested if requested > 0 else cores()


def claim_threads() -> None:
    """Gives torch its share. Called once by whoever starts a run, before the first tensor."""
    import torch

    torch.set_num_threads(1)
