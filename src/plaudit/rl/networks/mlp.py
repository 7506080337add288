"""Networks of policies: the multi-layer perceptron, and the running normaliser of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    """Orthogonal weights and zero bias, which PPO learns best from (Andrychowicz et al., 2021; Huang et al., 2022)."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, hidden: Sequence[int], outputs: int, activation: str, gain: float) -> MLP:
    """Linear layers with activations between them; `gain` scales the last one's first weights."""
    layers: list[nn.Module] = []
    width = inputs
    for size in hidden:
        layers += [orthogonal(nn.Linear(width, size), math.sqrt(2.0)), ACTIVATIONS[activation]()]
        width = size
    return MLP(*layers, orthogonal(nn.Linear(width, outputs), gain))


class MLP(nn.Sequential):
    """A `Sequential` of linear layers and activations that is quicker where no gradient is wanted.

    Attributes:
        tanh: Whether all activations are tanh.
        by_hand: Whether all are tanh or all relu, of which `rl.gradients` knows the derivative.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        kinds = {type(layer) for layer in layers[1::2]}
        self.tanh = kinds == {nn.Tanh}
        self.by_hand = kinds in ({nn.Tanh}, {nn.ReLU})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs) to (n, outputs)."""
        if torch.is_grad_enabled() or not self.tanh or x.dim() != 2:
            y: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return y
        *hidden, last = [layer for layer in self if isinstance(layer, nn.Linear)]
        for layer in hidden:
            x = tanh_linear(layer, x)
        return torch.addmm(last.bias, x, last.weight.t())


def tanh_linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Tanh of a linear layer, as 2 sigmoid(2z) - 1: the same to within 2e-7, and torch's sigmoid is three times as
    fast as its tanh.
    """
    hidden = torch.addmm(layer.bias, x, layer.weight.t(), beta=2, alpha=2).sigmoid_()
    return hidden.mul_(2.0).sub_(1.0)


SETTLED = 2**40
"""Vectors after which statistics hardly change any more."""


class Normalizer(nn.Module):
    """Running mean and variance of vectors, kept as buffers so that they are saved with the model.

    Args:
        size: Length of the vectors.
        clip: Normalised values are kept within plus and minus this.
    """

    mean: torch.Tensor
    var: torch.Tensor
    scale: torch.Tensor
    count: torch.Tensor

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, size) to zero mean and unit variance, clipped."""
        return ((x - self.mean) * self.scale).clamp_(-self.clip, self.clip)

    def freeze(self) -> None:
        """Has the statistics stay as they are, now and where they are loaded again: as if they were of very many."""
        if self.count > 0:
            self.count.fill_(SETTLED)

    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        """Takes a batch (n, size) into the statistics (Chan et al., 1979, parallel variance)."""
        count = len(x)
        var, mean = torch.var_mean(x, 0, correction=0)
        before = self.count.item()
        total = before + count
        delta = mean - self.mean
        self.mean += delta * (count / total)
        self.var.mul_(before / total).add_(var * (count / total)).add_(delta.square() * (before * count / total**2))
        self.count.fill_(total)
        # The floor (1 mm, if the unit is a metre) keeps a number that hardly ever moves from filling the whole range.
        self.scale.copy_((self.var + 1e-6).rsqrt())
