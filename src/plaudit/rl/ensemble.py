"""Several networks of one shape as one: a layer of all of them is one batched product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

aten = torch.ops.aten

EPSILON = 1e-6
"""Added to the variance in LayerNorm."""

NARROW = 16
"""Of layers with fewer outputs, as an actor's last, weights have their gradient from a product of exchanged sides."""


class Activation(NamedTuple):
    """A function, and its derivative.

    Attributes:
        forward: Of a tensor, which it may overwrite.
        backward: From the gradient of the output, which it may overwrite, the input, unless `forward` has overwritten
            that, and the output to the gradient of the input.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _tanh(x: torch.Tensor) -> torch.Tensor:
    # As 2 sigmoid(2x) - 1, which torch computes three times as fast.
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


ACTIVATIONS = {
    "relu": Activation(torch.relu_, lambda g, x, y: aten.threshold_backward.grad_input(g, y, 0, grad_input=g)),
    "tanh": Activation(_tanh, lambda g, x, y: aten.tanh_backward.grad_input(g, y, grad_input=g)),
    "elu": Activation(nn.functional.elu, lambda g, x, y: aten.elu_backward(g, 1, 1, 1, False, x)),
    "silu": Activation(nn.functional.silu, lambda g, x, y: aten.silu_backward(g, x)),
    "gelu": Activation(nn.functional.gelu, lambda g, x, y: aten.gelu_backward(g, x)),
}


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
    multiplied as a row and not as a column, and an actor's, of a few, has its weights' gradient turned round.

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
        self.network, self.activation = network, ACTIVATIONS[network.activation]
        self.weights = [weight.detach() for weight in network.weights]
        self.biases = [bias.detach() for bias in network.biases]
        self.scales = [scale.detach() for scale in network.scales]
        self.shifts = [shift.detach() for shift in network.shifts]
        if gradients is not None:
            self.d_weights, self.d_biases, self.d_scales, self.d_shifts = (
                [gradients(part) for part in parts]
                for parts in (network.weights, network.biases, network.scales, network.shifts)
            )
        self._rooms: dict[tuple[int, int, str], list[torch.Tensor]] = {} if beside is None else beside._rooms
        self._scraps: dict[tuple[int, ...], torch.Tensor] = {}
        self._plain: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._at_once = network.activation == "relu" and not self.scales and self.weights[0].device.type == "cpu"

    def forward(self, x: torch.Tensor, chosen: Sequence[int] | None = None) -> torch.Tensor:
        """(n, inputs) to (E, n, outputs), good until the next call; of the members `chosen` alone, in rising order.

        `backward` is for a pass of all members.
        """
        weights, biases, scales, shifts = self._members(chosen)
        count = len(weights[0])
        room, normed = (self._room(count, len(x), use) for use in ("product", "normed"))
        self.inputs, self.normed = [x.expand(count, *x.shape)], []
        self.before: list[torch.Tensor] = []
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if number == len(weights) - 1:
                return self._last(self.inputs[-1], weight, bias, room[number])
            if self._at_once:  # One way through the product instead of three: bias, product, activation.
                y = aten._add_relu_.Tensor(torch.bmm(self.inputs[-1], weight, out=room[number]), bias)
                self.before.append(y)
                self.inputs.append(y)
                continue
            y = torch.baddbmm(bias, self.inputs[-1], weight, out=room[number])
            if scales:
                # With a scale of ones, which changes nothing, since without any torch takes twice as long on a CPU.
                ones, zeros = self._no_change(y)
                hat, mean, rstd = torch.native_layer_norm(y, [y.shape[-1]], ones, zeros, EPSILON)
                self.normed.append((y, hat, mean, rstd))
                y = torch.addcmul(shifts[number], hat, scales[number], out=normed[number])
            self.before.append(y)
            self.inputs.append(self.activation.forward(y))
        raise AssertionError("an ensemble has a last layer")

    @staticmethod
    def _last(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The last layer's product."""
        if out.shape[-1] > 1:
            return torch.baddbmm(bias, x, weight, out=out)
        members, count, _ = out.shape
        torch.bmm(weight.view(members, 1, -1), x.transpose(1, 2), out=out.view(members, 1, count))
        return out.add_(bias)

    def _scratch(self, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Room for what is used up at once: it is kept."""
        if shape not in self._scraps:
            self._scraps[shape] = like.new_empty(shape)
        return self._scraps[shape]

    def _no_change(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A scale of ones and a shift of zeros."""
        width = like.shape[-1]
        if width not in self._plain:
            self._plain[width] = like.new_ones(width), like.new_zeros(width)
        return self._plain[width]

    def _members(self, chosen: Sequence[int] | None) -> tuple[list[torch.Tensor], ...]:
        parts = self.weights, self.biases, self.scales, self.shifts
        if chosen is None:
            return parts
        which = _evenly(chosen)
        if which is None:
            index = torch.tensor(chosen, device=self.weights[0].device)
            return tuple([part.index_select(0, index) for part in some] for some in parts)
        return tuple([part[which] for part in some] for some in parts)

    def _room(self, members: int, count: int, use: str) -> list[torch.Tensor]:
        """For the outputs of every layer, (members, count, width), or for their gradients: it is kept."""
        key = members, count, use
        if key not in self._rooms:
            self._rooms[key] = [weight.new_empty(members, count, weight.shape[-1]) for weight in self.weights]
        return self._rooms[key]

    def narrow(self, rows: slice) -> None:
        """Forgets all but some of the n inputs of the last `forward`: `backward` is for those."""
        self.inputs, self.before = ([part[:, rows] for part in parts] for parts in (self.inputs, self.before))
        self.normed = [tuple(part[:, rows] for part in parts) for parts in self.normed]

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
        for number in range(len(self.weights) - 1, -1, -1):
            if number < len(self.weights) - 1:
                gradient = self._through_activation(number, gradient, learns)
            if learns:
                self._to_weights(number, gradient)
                torch.sum(gradient, 1, keepdim=True, out=self.d_biases[number])
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

    def _through_activation(self, number: int, gradient: torch.Tensor, learns: bool) -> torch.Tensor:
        """From the gradient of a hidden layer's output to that of its product."""
        gradient = self.activation.backward(gradient, self.before[number], self.inputs[number + 1])
        if not self.scales:
            return gradient
        product, hat, mean, rstd = self.normed[number]
        if learns:
            along = torch.mul(gradient, hat, out=self._scratch(hat, tuple(hat.shape)))
            torch.sum(along, 1, keepdim=True, out=self.d_scales[number])
            torch.sum(gradient, 1, keepdim=True, out=self.d_shifts[number])
        scaled = gradient.mul_(self.scales[number])
        shape = [product.shape[-1]]
        found: torch.Tensor = aten.native_layer_norm_backward(
            scaled, product, shape, mean, rstd, None, None, [True, False, False]
        )[0]
        return found


def _evenly(chosen: Sequence[int]) -> slice | None:
    """The slice that takes the members `chosen`, which needs no copy: there is one for any two; `None` else."""
    steps = {after - before for before, after in pairwise(chosen)}
    return slice(chosen[0], chosen[-1] + 1, steps.pop() if steps else 1) if len(steps) <= 1 else None
