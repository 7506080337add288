"""The state of the global random number generators: torch's, numpy's and Python's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """The generators' states, as tensors and plain containers."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(cached)],
        "python": random.getstate(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts back what `rng_state` gave."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    random.setstate(state["python"])


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Whatever is drawn inside, the generators go on outside as if nothing had been."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
