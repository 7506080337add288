"""Who gets which core."""

from __future__ import annotations

import ctypes
import os

import pytest
import torch

from plaudit import compute


def test_a_fit_has_every_core_unless_told_or_too_small() -> None:
    assert compute.fit_threads() == compute.cores() >= 1
    assert compute.fit_threads(3) == 3
    assert compute.fit_threads(3, head_only=True) == compute.fit_threads(head_only=True) == 1
    assert compute.fit_threads(5, processes=2) == 2 and compute.fit_threads(1, processes=2) == 1


def test_torch_gets_its_share() -> None:
    before = torch.get_num_threads()
    try:
        compute.claim_threads(2)
        assert torch.get_num_threads() == 2
        compute.claim_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_what_the_user_says_of_waiting_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    compute.wait_quietly()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    compute.wait_quietly()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Glibc:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            asked.append((option, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Glibc)
    compute.keep_freed_memory()
    assert asked == [(-3, 2**30), (-1, 2**31 - 1)]

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    compute.keep_freed_memory()
