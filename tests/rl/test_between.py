"""The ways between two products, against each other and against autograd."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from plaudit.rl import between as module
from plaudit.rl.between import ACTIVATIONS, EPSILON, AddRelu, Between, Layer, NormRelu, Plain, quickest

needs_kernels = pytest.mark.skipif(module.LACKS is not None, reason=f"no kernels: {module.LACKS}")


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def some_layer(members: int, width: int, *, norm: bool = True) -> Layer:
    numbers = torch.Generator().manual_seed(5)
    parts = [0.5 * torch.randn(members, 1, width, generator=numbers) for _ in range(3)]
    return Layer(parts[0], 1.0 + parts[1], parts[2]) if norm else Layer(parts[0])


def used_room(layer: Layer) -> Layer:
    """For gradients; something lies there already."""
    return Layer(*(None if part is None else torch.full_like(part, 7.0) for part in layer))  # type: ignore[arg-type]


def both_ways(way: Between, layer: Layer, rows: int) -> dict[str, torch.Tensor]:
    """Forward and back, with numbers that are always the same."""
    members, _, width = layer.bias.shape
    numbers = torch.Generator().manual_seed(6)
    product, gradient = torch.randn(2, members, rows, width, generator=numbers)
    found = used_room(layer)
    kept = way.forward(product.clone(), layer, torch.empty_like(product))
    out = kept.out.clone()
    back = way.backward(gradient.clone(), kept, layer, found)
    alone = way.backward(gradient.clone(), kept, layer, None)
    torch.testing.assert_close(alone, back)
    names = {f"d_{name}": part for name, part in zip(Layer._fields, found, strict=True) if part is not None}
    return {"out": out, "back": back, **names}


def by_autograd(layer: Layer, rows: int) -> dict[str, torch.Tensor]:
    members, _, width = layer.bias.shape
    numbers = torch.Generator().manual_seed(6)
    product, gradient = torch.randn(2, members, rows, width, generator=numbers)
    leaves = [product.requires_grad_(), *(part.clone().requires_grad_() for part in layer if part is not None)]
    y = leaves[0] + leaves[1]
    if layer.scale is not None:
        y = nn.functional.layer_norm(y, [width], eps=EPSILON) * leaves[2] + leaves[3]
    out = y.relu()
    found = torch.autograd.grad(out, leaves, gradient)
    names = ["back", *(f"d_{name}" for name in Layer._fields)]
    return {"out": out.detach(), **dict(zip(names, found, strict=False))}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-4, msg=name)


def test_the_kernels_are_there_where_a_compiler_is() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    could = sys.platform in ("linux", "darwin") and shutil.which(compiler) is not None and headers.exists()
    assert module.LACKS is None or not could


def test_the_quickest_way_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    module._tell.cache_clear()
    with caplog.at_level("INFO", "plaudit"):
        assert isinstance(quickest("relu", single, norm=False), AddRelu)
        assert isinstance(quickest("tanh", single, norm=True), Plain)
        assert isinstance(quickest("relu", double, norm=True), Plain)
        monkeypatch.setattr(module, "LACKS", None)
        assert isinstance(quickest("relu", single, norm=True), NormRelu)
        assert not caplog.records
        monkeypatch.setattr(module, "LACKS", "no module named x")
        for _ in range(2):
            assert isinstance(quickest("relu", single, norm=True), Plain)
    assert len(caplog.records) == 1 and "(no module named x)" in caplog.text


@needs_kernels
@pytest.mark.parametrize(("members", "rows", "width"), [(1, 1, 1), (1, 5, 7), (3, 4, 16), (10, 33, 130)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_kernel_does_what_autograd_does(threads: Any, members: int, rows: int, width: int, count: int) -> None:
    layer = some_layer(members, width)
    threads(count)
    assert_same(both_ways(NormRelu(), layer, rows), by_autograd(layer, rows))


def test_so_do_torchs_operations() -> None:
    relu = ACTIVATIONS["relu"]
    for norm in (True, False):
        layer = some_layer(3, 8, norm=norm)
        assert_same(both_ways(Plain(relu), layer, 5), by_autograd(layer, 5))
    assert_same(both_ways(AddRelu(), layer, 5), by_autograd(layer, 5))


@needs_kernels
def test_threads_change_nothing(threads: Any) -> None:
    layer = some_layer(5, 128)
    results = []
    for count in (1, 2, 7):
        threads(count)
        results.append(both_ways(NormRelu(), layer, 50))
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


@needs_kernels
def test_parameters_of_some_members_of_many() -> None:
    layer, product = some_layer(7, 16), torch.randn(2, 4, 16)
    chosen = Layer(*(part[1:6:4] for part in layer if part is not None))
    apart = Layer(*(part.clone() for part in chosen if part is not None))
    kept, expected = (NormRelu().forward(product.clone(), one, torch.empty_like(product)) for one in (chosen, apart))
    assert not chosen.bias.is_contiguous()
    assert torch.equal(kept.out, expected.out)


@needs_kernels
def test_some_rows_go_back_alone() -> None:
    layer, product, gradient = some_layer(3, 16), torch.randn(3, 8, 16), torch.randn(3, 8, 16)
    way = NormRelu()
    kept = way.forward(product, layer, torch.empty_like(product))
    whole = way.backward(gradient.clone(), kept, layer, None)
    some = way.backward(gradient[:, 5:], kept.rows(slice(5, None)), layer, None)
    assert torch.equal(some, whole[:, 5:])


@needs_kernels
def test_what_is_not_a_number_is_not_hidden() -> None:
    layer, product = some_layer(2, 8), torch.randn(2, 3, 8)
    product[1, 2, 4] = torch.nan
    kept = NormRelu().forward(product, layer, torch.empty_like(product))
    assert kept.out[1, 2].isnan().all() and kept.out.isnan().sum() == 8
    back = NormRelu().backward(torch.ones(2, 3, 8), kept, layer, None)
    assert back[1, 2].isnan().all() and back.isnan().sum() == 8
