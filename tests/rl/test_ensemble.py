"""Networks side by side, and their gradients, against autograd and against networks by themselves."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from plaudit.rl.accel.ensemble_layer import EPSILON
from plaudit.rl.accel.flat_adam import FlatParameters
from plaudit.rl.networks.ensemble import NARROW, Ensemble, Pass


def make(members: int, activation: str, layer_norm: bool, outputs: int = 2) -> Ensemble:
    made = Ensemble(members, 5, (NARROW + 1, 6), outputs, activation, layer_norm, 1.0).double()
    for part in made.parameters():  # LayerNorm begins as nothing, and biases as zeros: a mistake there must show.
        part.data += 0.3 * torch.randn_like(part)
    return made


def alone(ensemble: Ensemble, member: int) -> nn.Sequential:
    """One member as torch's own layers."""
    layers: list[nn.Module] = []
    for number, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        linear = nn.Linear(weight.shape[1], weight.shape[2]).double()
        linear.weight.data, linear.bias.data = weight[member].t().clone(), bias[member, 0].clone()
        layers.append(linear)
        if number < len(ensemble.weights) - 1:
            if ensemble.scales:
                norm = nn.LayerNorm(weight.shape[2], eps=EPSILON).double()
                norm.weight.data = ensemble.scales[number][member, 0].clone()
                norm.bias.data = ensemble.shifts[number][member, 0].clone()
                layers.append(norm)
            name = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU", "silu": "SiLU", "gelu": "GELU"}[ensemble.activation]
            layers.append(getattr(nn, name)())
    return nn.Sequential(*layers)


CASES = list(product(("relu", "tanh", "elu", "silu", "gelu"), (False, True)))


@pytest.mark.parametrize(("activation", "layer_norm"), CASES)
@pytest.mark.parametrize("outputs", [1, 2, NARROW])
def test_each_member_is_a_network_of_its_own(activation: str, layer_norm: bool, outputs: int) -> None:
    ensemble, x = make(3, activation, layer_norm, outputs), torch.randn(4, 5, dtype=torch.float64)
    expected = torch.stack([alone(ensemble, member)(x) for member in range(3)])
    torch.testing.assert_close(ensemble(x), expected)
    with torch.no_grad():
        written = Pass(ensemble)
        torch.testing.assert_close(written.forward(x), expected)
        torch.testing.assert_close(written.forward(x, [0, 2]), expected[[0, 2]])


@pytest.mark.parametrize(("activation", "layer_norm"), CASES)
@pytest.mark.parametrize(("members", "outputs"), [(1, 2), (3, 2), (1, 1), (3, 1), (3, NARROW)])
def test_the_gradient_is_autograds(activation: str, layer_norm: bool, members: int, outputs: int) -> None:
    ensemble = make(members, activation, layer_norm, outputs)
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    parameters = FlatParameters(ensemble)
    wanted = torch.randn(members, 4, outputs, dtype=torch.float64)
    expected = torch.autograd.grad(ensemble(x), [*parameters.parts, x], wanted)
    with torch.no_grad():
        written = Pass(ensemble, parameters.gradient_of)
        for _ in range(2):  # The second time in room that is used already.
            written.forward(x.detach())
            inputs = written.backward(wanted.clone(), inputs=slice(1, 4))
        torch.testing.assert_close(inputs, expected[-1][:, 1:4])
        torch.testing.assert_close(parameters.gradient, torch.cat([part.flatten() for part in expected[:-1]]))
        parameters.gradient.fill_(7.0)
        written.forward(x.detach())
        torch.testing.assert_close(written.backward(wanted.clone(), learns=False, inputs=slice(0, 5)), expected[-1])
        assert (parameters.gradient == 7.0).all()
        assert written.forward(x.detach()).shape == (members, 4, outputs)
        assert written.backward(wanted.clone()) is None


@pytest.mark.parametrize("chosen", [[1], [0, 3], [1, 2, 3], [0, 1, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_any_members_can_be_asked(chosen: list[int], layer_norm: bool) -> None:
    ensemble, x = make(5, "relu", layer_norm, 1).float(), torch.randn(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(Pass(ensemble).forward(x, chosen), ensemble(x)[chosen])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_some_rows_go_back_alone(layer_norm: bool) -> None:
    ensemble, x = make(3, "relu", layer_norm).float(), torch.randn(6, 5)
    parameters, wanted = FlatParameters(ensemble), torch.randn(3, 2, 2)
    expected = torch.autograd.grad(ensemble(x[4:]), parameters.parts, wanted)
    with torch.no_grad():
        written = Pass(ensemble, parameters.gradient_of)
        written.forward(x)
        written.narrow(slice(4, None))
        written.backward(wanted.clone())
    found = torch.cat([part.flatten() for part in expected])
    torch.testing.assert_close(parameters.gradient, found, atol=1e-5, rtol=1e-4)


def test_members_begin_apart() -> None:
    ensemble = Ensemble(4, 5, (8,), 1, "relu", False, 1.0)
    values = ensemble(torch.randn(6, 5))
    assert len({tuple(row) for row in values[..., 0].tolist()}) == 4
    square = ensemble.weights[0][1] @ ensemble.weights[0][1].t()
    torch.testing.assert_close(square, 2.0 * torch.eye(5))
