"""What comes between two products of an ensemble, forward and back: bias, LayerNorm if there is one, activation.

With torch's operations LayerNorm and ReLU are five ways through memory forward and eight back, which on a CPU takes
longer than the products between them. There is a kernel that does it in one each, compiled where the package is
installed; where it was not, for want of a compiler, and for other devices, types and activations, torch's operations do
the same. It is loaded after torch, whose threads it uses.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import nn

try:
    from plaudit.rl import _kernels
except ImportError as error:
    LACKS: str | None = str(error)
else:
    LACKS = None if _kernels.VERSION == 1 else "it is of another version"
"""Why there are no kernels; `None` where there are."""

log = logging.getLogger("plaudit")

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


def quickest(activation: str, weight: torch.Tensor, *, norm: bool) -> Between:
    """The quickest way for a layer with such weights."""
    if activation == "relu" and weight.device.type == "cpu":
        if not norm:
            return AddRelu()
        if weight.dtype == torch.float32:
            if LACKS is None:
                return NormRelu()
            _tell(LACKS)
    return Plain(ACTIVATIONS[activation])


@functools.cache
def _tell(why: str) -> None:
    """Says once that learning is slower than it could be."""
    log.info(
        "LayerNorm's kernel was not compiled when Plaudit was installed (%s), so that networks which have it learn "
        "more slowly. To have it, install a C compiler and Python's headers, and then Plaudit again.",
        why,
    )


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
        product, hat, mean, rstd = normed
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


class NormRelu:
    """With LayerNorm, on a CPU: all in one way, by the kernel."""

    def forward(self, product: torch.Tensor, layer: Layer, room: torch.Tensor) -> Kept:
        bias, scale, shift = _parameters(layer)
        members, rows, width = product.shape
        stride = bias.stride(0)  # Of members that are taken from others, parameters lie further apart.
        assert product.is_contiguous() and room.is_contiguous() and room.shape == product.shape
        for part in (bias, scale, shift):
            assert part.shape == (members, 1, width) and (part.stride(0), part.stride(2)) == (stride, 1)
        mean, rstd = product.new_empty(2, members, rows)
        at, threads = torch.Tensor.data_ptr, torch.get_num_threads()
        given = at(product), at(bias), at(scale), at(shift), at(room), at(mean), at(rstd)
        _kernels.norm_relu(*given, members, rows, width, stride, EPSILON, threads)
        return Kept(room, (product, mean, rstd))

    def backward(self, gradient: torch.Tensor, kept: Kept, layer: Layer, found: Layer | None) -> torch.Tensor:
        # Copied only where some rows of several members go back alone.
        gradient, out, product, mean, rstd = (part.contiguous() for part in (gradient, kept.out, *kept.rest))
        bias, scale, _ = _parameters(layer)
        members, rows, width = gradient.shape
        assert product.shape == out.shape == gradient.shape and bias.shape == scale.shape == (members, 1, width)
        wanted = () if found is None else _parameters(found)
        assert all(part.is_contiguous() and part.shape == bias.shape for part in (bias, scale, *wanted))
        at, threads = torch.Tensor.data_ptr, torch.get_num_threads()
        sums = (0, 0, 0) if not wanted else (at(wanted[0]), at(wanted[1]), at(wanted[2]))
        given = at(gradient), at(product), at(out), at(bias), at(scale), at(mean), at(rstd)
        _kernels.norm_relu_backward(*given, *sums, members, rows, width, threads)
        return gradient


def _parameters(layer: Layer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a layer that has LayerNorm."""
    assert layer.scale is not None and layer.shift is not None
    return layer.bias, layer.scale, layer.shift
