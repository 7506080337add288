"""The ways between two products, against each other and against autograd."""

from __future__ import annotations

import torch
from torch import nn

from plaudit.rl.accel.ensemble_layer import ACTIVATIONS, EPSILON, AddRelu, Between, Layer, Plain, quickest


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


def test_the_quickest_way_is_taken() -> None:
    here = torch.device("cpu")
    assert isinstance(quickest("relu", here, norm=False), AddRelu)
    assert isinstance(quickest("relu", here, norm=True), Plain)
    assert isinstance(quickest("tanh", here, norm=False), Plain)
    assert isinstance(quickest("relu", torch.device("meta"), norm=False), Plain)


def test_they_do_what_autograd_does() -> None:
    relu = ACTIVATIONS["relu"]
    for norm in (True, False):
        layer = some_layer(3, 8, norm=norm)
        assert_same(both_ways(Plain(relu), layer, 5), by_autograd(layer, 5))
    assert_same(both_ways(AddRelu(), layer, 5), by_autograd(layer, 5))
