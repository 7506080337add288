"""Memory that two processes share."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

Place: TypeAlias = tuple[int, tuple[int, ...], str]
"""Where a tensor begins, its shape, and the name of its type in numpy."""


class SharedMemory:
    """Tensors by name in memory that processes share.

    It has no name itself, only descriptors: it is gone with the last process that holds one, however that one ends.
    What is not written to takes nothing.

    Args:
        handle: Descriptor of the memory that another process has made; `None` makes some.
        places: What lies in it.
    """

    def __init__(self, handle: int | None = None, places: Mapping[str, Place] | None = None) -> None:
        self.handle = _new() if handle is None else handle
        self.places: dict[str, Place] = dict(places or {})

    def allocate(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """A new tensor of zeros."""
        begin = os.fstat(self.handle).st_size
        self.places[name] = begin, shape, torch.empty(0, dtype=kind).numpy().dtype.name
        os.ftruncate(self.handle, begin + self._room(name))
        return self.open(name)

    def open(self, name: str) -> torch.Tensor:
        """A tensor that was allocated, here or elsewhere."""
        begin, shape, kind = self.places[name]
        memory = mmap.mmap(self.handle, self._room(name), offset=begin)  # Lives as long as the array does.
        array: np.ndarray[Any, Any] = np.ndarray(shape, kind, memory)
        return torch.from_numpy(array)

    def find(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """As `open`, for whoever asks as if it were not there yet."""
        return self.open(name)

    def _room(self, name: str) -> int:
        """Bytes of a tensor, rounded up to where the next one may begin."""
        _, shape, kind = self.places[name]
        pages = -(-math.prod(shape) * np.dtype(kind).itemsize // mmap.ALLOCATIONGRANULARITY)
        return max(1, pages) * mmap.ALLOCATIONGRANULARITY

    def close(self) -> None:
        """Gives the descriptor back; tensors that are there stay."""
        os.close(self.handle)


def _new() -> int:
    """Descriptor of memory without a name, or of a file without one where the system has no such thing."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("plaudit")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
