"""Several networks of one shape as one: a layer of all of them is one batched product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest

import torch
from torch import nn

from plaudit.rl.accel.ensemble_layer import EPSILON, Kept, Layer, quickest

NARROW = 16
"""A last layer with fewer outputs, as an actor's, is computed by a product of exchanged sides, and so is its weights'
gradient."""


class Ensemble(nn.Module):
    """E perceptrons of one shape, each with weights of its own.

    Args:
        members: E.
        inputs: Length of an input.
        hidden: Width of each hidden layer.
        outputs: Length of an output.
        activation: After each hidden layer.
        layer_norm: Normalise before it.
        gain: Scale of the last layer's first weights.

    Attributes:
        weights: (E, in, out) of each layer.
        biases: (E, 1, out) of each layer.
        scales, shifts: (E, 1, out) of each hidden layer's LayerNorm; empty without.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: str,
        layer_norm: bool,
        gain: float,
    ) -> None:
        super().__init__()
        self.members, self.activation = members, activation
        widths = [inputs, *hidden, outputs]
        gains = [*(math.sqrt(2.0) for _ in hidden), gain]
        self.weights = nn.ParameterList(
            _orthogonal(members, rows, columns, gain)
            for rows, columns, gain in zip(widths[:-1], widths[1:], gains, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, width) for width in widths[1:])
        norms = hidden if layer_norm else ()
        self.scales = nn.ParameterList(torch.ones(members, 1, width) for width in norms)
        self.shifts = nn.ParameterList(torch.zeros(members, 1, width) for width in norms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs) to (E, n, outputs); with gradients where autograd is on."""
        y = x.expand(self.members, *x.shape)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = torch.baddbmm(bias, y, weight)
            if number < len(self.weights) - 1:
                if self.scales:
                    y = nn.functional.layer_norm(y, y.shape[-1:], eps=EPSILON)
                    y = torch.addcmul(self.shifts[number], y, self.scales[number])
                y = getattr(nn.functional, self.activation)(y)
        return y


def _orthogonal(members: int, rows: int, columns: int, gain: float) -> torch.Tensor:
    """First weights (members, rows, columns)."""
    weights = torch.empty(members, rows, columns)
    for weight in weights:
        nn.init.orthogonal_(weight, gain)
    return weights


class Pass:
    """Forward and backward through an `Ensemble`, written out.

    Networks for control are so small that autograd's bookkeeping, and the room that every product asks for anew, cost
    as much as their arithmetic: here the room is kept, and only those gradients are computed that somebody wants. And
    the libraries take long over a matrix that is high and narrow, on a CPU: so a critic's last layer, of one output, is
    multiplied as a row and not as a column, and an actor's, of a few, is turned round, and so is its weights' gradient.

    Args:
        network: The ensemble. Its parameters must not move in memory any more.
        gradients: From a parameter to where its gradient goes; `None` where nobody wants any.
        beside: Another pass, of an ensemble of the same shape, that is done with its numbers when this one goes
            forward: they share their room, which is still in the processor's cache then.
    """

    def __init__(
        self,
        network: Ensemble,
        gradients: Callable[[torch.Tensor], torch.Tensor] | None = None,
        beside: Pass | None = None,
    ) -> None:
        self.network = network
        self.weights = [weight.detach() for weight in network.weights]
        self.layers = _layers(network, torch.Tensor.detach)
        if gradients is not None:
            self.d_weights, self.d_layers = [gradients(part) for part in network.weights], _layers(network, gradients)
        self._between = quickest(network.activation, self.weights[0].device, norm=bool(network.scales))
        self._rooms: dict[tuple[int, int, str], list[torch.Tensor]] = {} if beside is None else beside._rooms
        self._scraps: dict[tuple[int, ...], torch.Tensor] = {}

    def forward(self, x: torch.Tensor, chosen: Sequence[int] | None = None) -> torch.Tensor:
        """(n, inputs) to (E, n, outputs), good until the next call; of the members `chosen` alone, in rising order.

        `backward` is for a pass of all members.
        """
        weights, layers = self._members(chosen)
        count = len(weights[0])
        products = self._room(count, len(x), "product")
        rooms = self._room(count, len(x), "normed") if self.network.scales else products
        self.inputs: list[torch.Tensor] = [x.expand(count, *x.shape)]
        self.kept: list[Kept] = []
        for weight, layer, product, room in zip(weights[:-1], layers, products, rooms, strict=False):
            self.kept.append(self._between.forward(torch.bmm(self.inputs[-1], weight, out=product), layer, room))
            self.inputs.append(self.kept[-1].out)
        return self._last(self.inputs[-1], weights[-1], layers[-1].bias, products[-1])

    def _last(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The last layer's product."""
        members, count, width = out.shape
        if width >= NARROW:
            return torch.baddbmm(bias, x, weight, out=out)
        if width > 1:
            turned = self._scratch(x, (members, width, count))
            torch.bmm(weight.transpose(1, 2), x.transpose(1, 2), out=turned)
            return torch.add(turned.transpose(1, 2), bias, out=out)
        torch.bmm(weight.view(members, 1, -1), x.transpose(1, 2), out=out.view(members, 1, count))
        return out.add_(bias)

    def _scratch(self, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Room for what is used up at once: it is kept."""
        if shape not in self._scraps:
            self._scraps[shape] = like.new_empty(shape)
        return self._scraps[shape]

    def _members(self, chosen: Sequence[int] | None) -> tuple[list[torch.Tensor], list[Layer]]:
        if chosen is None:
            return self.weights, self.layers
        which = _evenly(chosen)
        return [weight[which] for weight in self.weights], [layer.members(which) for layer in self.layers]

    def _room(self, members: int, count: int, use: str) -> list[torch.Tensor]:
        """For the outputs of every layer, (members, count, width), or for their gradients: it is kept."""
        key = members, count, use
        if key not in self._rooms:
            self._rooms[key] = [weight.new_empty(members, count, weight.shape[-1]) for weight in self.weights]
        return self._rooms[key]

    def narrow(self, rows: slice) -> None:
        """Forgets all but some of the n inputs of the last `forward`: `backward` is for those."""
        self.inputs = [part[:, rows] for part in self.inputs]
        self.kept = [kept.rows(rows) for kept in self.kept]

    def backward(
        self, gradient: torch.Tensor, *, learns: bool = True, inputs: slice | None = None
    ) -> torch.Tensor | None:
        """From the gradient of the outputs, (E, n, outputs), to that of parameters and inputs.

        Args:
            gradient: Of the last `forward`, which was of all members.
            learns: Whether the parameters' gradients are wanted.
            inputs: Of which inputs the gradient is wanted.

        Returns:
            That of the inputs, (n, inputs), all members together; `None` where it is not wanted.
        """
        room = self._room(len(gradient), gradient.shape[1], "gradient")
        last = len(self.weights) - 1
        for number in range(last, -1, -1):
            found = self.d_layers[number] if learns else None
            if number < last:
                gradient = self._between.backward(gradient, self.kept[number], self.layers[number], found)
            elif found is not None:
                torch.sum(gradient, 1, keepdim=True, out=found.bias)
            if learns:
                self._to_weights(number, gradient)
            if number:
                product = torch.bmm if gradient.shape[-1] > 1 else torch.mul
                gradient = product(gradient, self.weights[number].transpose(1, 2), out=room[number - 1])
        if inputs is None:
            return None
        return torch.bmm(gradient, self.weights[0][:, inputs].transpose(1, 2)).sum(0)

    def _to_weights(self, number: int, gradient: torch.Tensor) -> None:
        """From the gradient of a layer's output to that of its weights."""
        x, found = self.inputs[number], self.d_weights[number]
        if gradient.shape[-1] >= NARROW:
            torch.bmm(x.transpose(1, 2), gradient, out=found)
        elif gradient.shape[-1] > 1:
            turned = self._scratch(x, (len(x), gradient.shape[-1], x.shape[-1]))
            found.copy_(torch.bmm(gradient.transpose(1, 2), x, out=turned).transpose(1, 2))
        else:
            members, count, _ = gradient.shape
            torch.bmm(gradient.reshape(members, 1, count), x, out=found.view(members, 1, -1))


def _layers(network: Ensemble, of: Callable[[torch.Tensor], torch.Tensor]) -> list[Layer]:
    """The parameters of each layer but for its weights, or what there is of them."""
    biases, scales, shifts = ([of(part) for part in some] for some in (network.biases, network.scales, network.shifts))
    return [Layer(*parts) for parts in zip_longest(biases, scales, shifts)]


def _evenly(chosen: Sequence[int]) -> slice | list[int]:
    """An index that takes the members `chosen`: where it can be a slice, as for any two, nothing is copied."""
    steps = {after - before for before, after in pairwise(chosen)} or {1}
    return slice(chosen[0], chosen[-1] + 1, steps.pop()) if len(steps) == 1 else list(chosen)
