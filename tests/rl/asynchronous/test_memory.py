"""Memory that two processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from plaudit.rl.async_.shared_memory import SharedMemory


def test_the_other_side_sees_the_same_numbers() -> None:
    ours = SharedMemory()
    kinds = {"a": torch.float32, "b": torch.bool, "c": torch.int64, "d": torch.uint8}
    made = {name: ours.allocate(name, (3, 2), kind) for name, kind in kinds.items()}
    theirs = SharedMemory(os.dup(ours.handle), ours.places)
    seen = {name: theirs.open(name) for name in kinds}
    assert all(not tensor.any() for tensor in seen.values())
    made["a"][1, 1] = 0.5
    seen["c"].fill_(7)
    made["b"][2] = True
    assert seen["a"].tolist() == [[0, 0], [0, 0.5], [0, 0]]
    assert made["c"].tolist() == [[7, 7]] * 3
    assert seen["b"].dtype == torch.bool and seen["b"].sum() == 2
    assert not seen["d"].any()
    for memory in (ours, theirs):
        memory.close()
    assert made["a"][1, 1] == seen["a"][1, 1] == 0.5  # Tensors outlive the descriptors.


def test_it_has_no_name_and_takes_only_what_is_written_to() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("no shared memory with names here")
    before = set(shared.iterdir())
    memory = SharedMemory()
    large = memory.allocate("large", (2**34,), torch.uint8)
    large[2**33] = 1
    assert os.fstat(memory.handle).st_blocks * 512 < 2**20
    assert set(shared.iterdir()) <= before
    memory.close()


def test_something_empty_has_a_place_too() -> None:
    memory = SharedMemory()
    assert memory.allocate("none", (0, 3), torch.float32).shape == (0, 3)
    memory.allocate("some", (1,), torch.float32)[0] = 1.0
    assert float(memory.open("some")) == 1.0
    memory.close()
