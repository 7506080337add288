"""Critics by the kernel and by torch's operations, against autograd and torch's Adam."""

from __future__ import annotations

import copy
import ctypes
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from plaudit.rl.accel import critic_kernel as module
from plaudit.rl.accel.critic_kernel import MemberByMember, quickest_critics
from plaudit.rl.accel.critics import Critics, Together, Training
from plaudit.rl.accel.flat_adam import FlatAdam, FlatParameters
from plaudit.rl.networks.ensemble import Ensemble

LACKS = module.lacks()
needs_kernel = pytest.mark.skipif(LACKS is not None, reason=f"no kernel: {LACKS}")
WAYS = [pytest.param(MemberByMember, marks=needs_kernel), Together]
LR, TAU, EPS = 3e-3, 0.1, 1e-3  # With less, Adam would make steps of what is nothing but rounding.


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Made:
    """Critics, their targets, and autograd's copy of both."""

    def __init__(self, way: type[Any], members: int, hidden: tuple[int, ...], norm: bool, inputs: int = 5) -> None:
        torch.manual_seed(1)
        self.network = Ensemble(members, inputs, hidden, 1, "relu", norm, 1.0)
        for part in self.network.parameters():  # LayerNorm begins as nothing, and biases as zeros.
            part.data += 0.3 * torch.randn_like(part)
        self.other = copy.deepcopy(self.network)
        self.adam = torch.optim.Adam(self.other.parameters(), LR, eps=EPS)
        self.target, self.other_target = copy.deepcopy(self.network), copy.deepcopy(self.network)
        self.flat, self.flat_target = FlatParameters(self.network), FlatParameters(self.target)
        self.optimizer = FlatAdam(self.flat, LR, eps=EPS)
        self.critics: Critics = way(self.network, Training(self.optimizer, self.flat_target, TAU))

    def expected(self, x: torch.Tensor, aim: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The step as a textbook has it: squares, values and the inputs' gradient."""
        x = x.clone().requires_grad_()
        said = self.other(x)[..., 0]
        squares = (said - aim).square().mean(1)
        self.adam.zero_grad()
        (0.5 * squares.sum()).backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        for slow, quick in zip(self.other_target.parameters(), self.other.parameters(), strict=True):
            slow.data.lerp_(quick.data, TAU)
        assert x.grad is not None
        return squares.detach(), said.detach().mean(1), x.grad


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-3)


def flat(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([part.detach().flatten() for part in network.parameters()])


SHAPES = [
    (1, (3,), 1),
    (2, (7,), 6),
    (3, (16, 16), 33),
    (2, (9, 5, 12), 40),
    (10, (40, 24), 8),
    (2, (512, 512), 300),  # More rows than go through a network together.
    (2, (100,), 658),  # 655 go through together, and then three.
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("members", "hidden", "rows"), SHAPES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_autograd_and_torchs_adam_do(
    threads: Any, way: type[Any], members: int, hidden: tuple[int, ...], rows: int, norm: bool, count: int
) -> None:
    threads(count)
    made, (x, aim) = Made(way, members, hidden, norm), (torch.randn(rows, 5), torch.randn(rows))
    for turn in range(3):  # Later in room that is used already.
        wanted = slice(1, 4) if turn != 1 else None
        squares, values, d_x = made.expected(x, aim)
        with torch.no_grad():
            found = made.critics.improve(x.clone(), aim, wanted)
        close(found.square, squares)
        close(found.value, values)
        assert (found.d_inputs is None) == (wanted is None)
        if found.d_inputs is not None:
            close(found.d_inputs, d_x[:, 1:4])
        close(made.flat.data, flat(made.other))
        close(made.flat_target.data, flat(made.other_target))
    assert float(made.optimizer.steps) == 3.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("members", "hidden", "rows"), SHAPES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("by", ["min", "mean"])
def test_the_way_up(
    way: type[Any], members: int, hidden: tuple[int, ...], rows: int, norm: bool, by: Literal["min", "mean"]
) -> None:
    made, x = Made(way, members, hidden, norm), torch.randn(rows, 5, requires_grad=True)
    said = made.other(x)[..., 0]
    value = said.mean(0) if by == "mean" else said.min(0).values
    (expected,) = torch.autograd.grad(-value.mean(), x)
    before = made.flat.data.clone()
    with torch.no_grad():
        found = made.critics.ascend(x.detach(), by, slice(3, 5))
    close(found.value, value.detach())
    torch.testing.assert_close(found.d_inputs, expected[:, 3:], atol=1e-6, rtol=1e-3)
    assert torch.equal(made.flat.data, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chosen", [None, [1], [0, 3], [0, 1, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("norm", [False, True])
def test_any_can_be_asked(way: type[Any], chosen: list[int] | None, norm: bool) -> None:
    made, x = Made(way, 5, (16, 16), norm), torch.randn(4, 5)
    with torch.no_grad():
        said = made.other(x)[..., 0]
        close(made.critics.values(x, chosen), said if chosen is None else said[chosen])


@needs_kernel
@pytest.mark.parametrize("norm", [False, True])
def test_threads_change_nothing(threads: Any, norm: bool) -> None:
    x, aim, results = torch.randn(300, 5), torch.randn(300), []
    for count in (1, 2, 7):
        threads(1)  # First weights are not the same with every number.
        made = Made(MemberByMember, 5, (128, 128), norm)
        threads(count)
        with torch.no_grad():
            told = made.critics.improve(x, aim, slice(0, 5))
            up = [part for by in ("min", "mean") for part in made.critics.ascend(x, by, slice(0, 5))]  # type: ignore
        assert told.d_inputs is not None
        results.append([told.square, told.value, told.d_inputs, *up, made.flat.data, made.flat_target.data])
    for other in results[1:]:
        assert all(torch.equal(one, first) for one, first in zip(other, results[0], strict=True))


@needs_kernel
def test_targets_may_share_room_with_those_that_learn() -> None:
    made, x, aim = Made(MemberByMember, 3, (16, 16), True), torch.randn(8, 5), torch.randn(8)
    target = quickest_critics(made.target, beside=made.critics)
    with torch.no_grad():
        for _ in range(2):
            close(target.values(x, [0, 2]), made.other_target(x)[[0, 2], :, 0])
            made.critics.improve(x, aim)
            with torch.enable_grad():
                made.expected(x, aim)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norm", [False, True])
def test_what_is_not_a_number_is_not_hidden(way: type[Any], norm: bool) -> None:
    made, x = Made(way, 2, (16, 16), norm), torch.randn(4, 5)
    x[2, 1] = torch.nan
    with torch.no_grad():
        assert made.critics.values(x).isnan().nonzero()[:, 1].unique().tolist() == [2]
        told = made.critics.improve(x, torch.zeros(4))
    assert told.square.isnan().all() and made.flat.data.isnan().any() and made.flat_target.data.isnan().any()


@needs_kernel
@pytest.mark.parametrize(("hidden", "rows"), [((16, 16), 5), ((16, 8), 7), ((100,), 655), ((100,), 658)])
def test_what_is_left_in_the_room_does_not_matter_and_nothing_is_written_behind_it(
    threads: Any, hidden: tuple[int, ...], rows: int
) -> None:
    threads(1)
    x, aim, results = torch.randn(rows, 5), torch.randn(rows), []
    for left in (0.0, torch.nan):
        made = Made(MemberByMember, 1, hidden, norm=True)  # The least of all in all rows, so that it gathers them all.
        size = module._kernels.room(made.critics._widths, rows)  # type: ignore[attr-defined]
        larger, behind = torch.full([size + 64], left), torch.full([64], 7.0)
        larger[size:] = behind
        made.critics._rooms[rows] = larger[:size]  # type: ignore[attr-defined]
        with torch.no_grad():
            up = made.critics.ascend(x, "min", slice(0, 5))
            found = made.critics.improve(x, aim, slice(0, 5))
        assert found.d_inputs is not None
        assert torch.equal(larger[size:], behind)
        results.append([*up, found.square, found.value, found.d_inputs, made.flat.data, made.flat_target.data])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_the_kernel_is_there_where_a_compiler_is() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    known = sys.platform == "linux" and platform.machine() == "x86_64"
    could = known and shutil.which(compiler) is not None and headers.exists()
    assert LACKS is None or not could


def test_the_quickest_way_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def taken(activation: str = "relu", hidden: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32) -> type:
        return type(quickest_critics(Ensemble(2, 3, hidden, 1, activation, True, 1.0).to(dtype)))

    module._tell.cache_clear()
    monkeypatch.setattr(module, "lacks", lambda: None)
    with caplog.at_level("INFO", "plaudit"):
        assert taken() is MemberByMember
        assert taken("tanh") is taken(hidden=()) is taken(dtype=torch.float64) is Together
        assert not caplog.records
        monkeypatch.setattr(module, "lacks", lambda: "no module named x")
        assert taken() is taken() is Together
    assert len(caplog.records) == 1 and "(no module named x)" in caplog.text


def test_a_torch_that_shares_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSING", None)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
    module.product.cache_clear()
    try:
        assert "no product of matrices" in str(module.lacks())
    finally:
        module.product.cache_clear()


@needs_kernel
def test_memory_that_moves_is_found_again() -> None:
    made, x, aim = Made(MemberByMember, 2, (16, 16), True), torch.randn(6, 5), torch.randn(6)
    made.network.share_memory()
    for vector in (made.optimizer.first, made.optimizer.second, made.flat.data, made.flat_target.data):
        vector.share_memory_()
    made.expected(x, aim)
    with torch.no_grad():
        made.critics.improve(x, aim)
    close(made.flat.data, flat(made.other))
    close(made.flat_target.data, flat(made.other_target))


@needs_kernel
def test_whatever_numbers_torch_prefers() -> None:
    critics, x = MemberByMember(Ensemble(2, 5, (16, 16), 1, "relu", True, 1.0)), torch.randn(6, 5)
    torch.set_default_dtype(torch.float16)
    try:
        critics.values(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [room.dtype for room in critics._rooms.values()] == [torch.float32]  # Half of it would be too small.


@needs_kernel
def test_what_would_be_wrong_in_memory_is_refused() -> None:
    made, x = Made(MemberByMember, 2, (4,), False), torch.randn(6, 5)
    for bad in (x.t().contiguous().t(), x.double(), x[:, :4].contiguous()):
        with pytest.raises(AssertionError):
            made.critics.values(bad)
    for aim in (torch.zeros(5), torch.zeros(6, dtype=torch.float64), torch.zeros(12)[::2]):
        with pytest.raises(AssertionError):
            made.critics.improve(x, aim)
    with pytest.raises(AssertionError):
        MemberByMember(Ensemble(2, 5, (4,), 2, "relu", False, 1.0))
