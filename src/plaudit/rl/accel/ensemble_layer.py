"""What comes between two products of an ensemble, forward and back: bias, LayerNorm if there is one, activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import nn

aten = torch.ops.aten

EPSILON = 1e-6
"""Added to the variance in LayerNorm."""


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


class Layer(NamedTuple):
    """A hidden layer's parameters but for its weights, or their gradients: (E, 1, width) each."""

    bias: torch.Tensor
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None

    def members(self, which: slice | list[int]) -> Layer:
        """Those of some members."""
        scale, shift = (None if part is None else part[which] for part in (self.scale, self.shift))
        return Layer(self.bias[which], scale, shift)


class Kept(NamedTuple):
    """What the way back needs, (E, n, ...) each.

    Attributes:
        out: What was given on.
        rest: What else there is.
    """

    out: torch.Tensor
    rest: tuple[torch.Tensor, ...] = ()

    def rows(self, which: slice) -> Kept:
        """Of some of the n."""
        return Kept(self.out[:, which], tuple(part[:, which] for part in self.rest))


class Between(Protocol):
    """One way to do it."""

    def forward(self, product: torch.Tensor, layer: Layer, room: torch.Tensor) -> Kept:
        """From a product, which is overwritten or kept, as `room` may be, of the same shape."""

    def backward(self, gradient: torch.Tensor, kept: Kept, layer: Layer, found: Layer | None) -> torch.Tensor:
        """From the gradient of what was given on, which is overwritten, to that of the product. Those of the layer's
        parameters are put into `found`; `None` where nobody wants them.
        """


def quickest(activation: str, device: torch.device, *, norm: bool) -> Between:
    """The quickest way on a device."""
    if activation == "relu" and device.type == "cpu" and not norm:
        return AddRelu()
    return Plain(ACTIVATIONS[activation])


class Plain:
    """By torch's operations, whatever the layer has."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self._unchanging: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, product: torch.Tensor, layer: Layer, room: torch.Tensor) -> Kept:
        y = product.add_(layer.bias)
        if layer.scale is None or layer.shift is None:
            return Kept(self.activation.forward(y), (y,))
        # With a scale of ones, which changes nothing, since without any torch takes twice as long on a CPU.
        hat, mean, rstd = torch.native_layer_norm(product, [product.shape[-1]], *self._ones(product), EPSILON)
        y = torch.addcmul(layer.shift, hat, layer.scale, out=room)
        return Kept(self.activation.forward(y), (y, product, hat, mean, rstd))

    def backward(self, gradient: torch.Tensor, kept: Kept, layer: Layer, found: Layer | None) -> torch.Tensor:
        before, *normed = kept.rest
        gradient = self.activation.backward(gradient, before, kept.out)
        if layer.scale is not None:
            gradient = self._through_norm(gradient, normed, layer.scale, found)
        if found is not None:
            torch.sum(gradient, 1, keepdim=True, out=found.bias)
        return gradient

    @staticmethod
    def _through_norm(
        gradient: torch.Tensor, normed: list[torch.Tensor], scale: torch.Tensor, found: Layer | None
    ) -> torch.Tensor:
        product, hat, *moments = normed
        mean, rstd = (part.contiguous() for part in moments)  # Torch takes it for granted that they are.
        if found is not None:
            torch.sum(gradient * hat, 1, keepdim=True, out=found.scale)
            torch.sum(gradient, 1, keepdim=True, out=found.shift)
        scaled, shape = gradient.mul_(scale), [product.shape[-1]]
        through: torch.Tensor = aten.native_layer_norm_backward(
            scaled, product, shape, mean, rstd, None, None, [True, False, False]
        )[0]
        return through

    def _ones(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A scale of ones and a shift of zeros."""
        width = like.shape[-1]
        if width not in self._unchanging:
            self._unchanging[width] = like.new_ones(width), like.new_zeros(width)
        return self._unchanging[width]


class AddRelu:
    """Without LayerNorm, on a CPU: bias and ReLU in one way."""

    def forward(self, product: torch.Tensor, layer: Layer, room: torch.Tensor) -> Kept:
        return Kept(aten._add_relu_.Tensor(product, layer.bias))

    def backward(self, gradient: torch.Tensor, kept: Kept, layer: Layer, found: Layer | None) -> torch.Tensor:
        gradient = ACTIVATIONS["relu"].backward(gradient, kept.out, kept.out)
        if found is not None:
            torch.sum(gradient, 1, keepdim=True, out=found.bias)
        return gradient
