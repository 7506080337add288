"""From the encoder's maps to logits: pooling and heads, as many independent ones as the ensemble has, in one go.

Where shapes are given, n is the batch, k the cameras, e the heads, and the map is (C, h, w).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from plaudit.reward_models.config import Pooling

CONV_CHANNELS = 32
"""Channels that the `conv` pooling leaves at every place."""

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class SpatialEmbeddings(nn.Module):
    """Learned sums over the places of each channel (SpatialLearnedEmbeddings of HIL-SERL; Luo et al., 2024).

    Args:
        shape: (k, C, h, w).
        blocks: Sums for each channel.
        heads: How many poolings.

    Attributes:
        features: Length of each camera's vector.
        kernel: (k, C, h * w, heads * blocks).
    """

    def __init__(self, shape: tuple[int, int, int, int], blocks: int, heads: int) -> None:
        super().__init__()
        cameras, channels, height, width = shape
        self.blocks, self.heads, self.features = blocks, heads, channels * blocks
        places = height * width
        self.kernel = nn.Parameter(torch.randn(cameras, channels, places, heads * blocks) / math.sqrt(places))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, k, C, h, w) to (e, k, n, C * blocks)."""
        sums = x.flatten(3).permute(1, 2, 0, 3) @ self.kernel
        return sums.reshape(*sums.shape[:3], self.heads, self.blocks).permute(3, 0, 2, 1, 4).flatten(3)


class ConvPooling(nn.Module):
    """A 1x1 convolution to few channels, of which every place is kept; arguments as `SpatialEmbeddings`'."""

    def __init__(self, shape: tuple[int, int, int, int], heads: int) -> None:
        super().__init__()
        cameras, channels, height, width = shape
        self.cameras, self.heads, self.features = cameras, heads, CONV_CHANNELS * height * width
        self.conv = nn.Conv2d(cameras * channels, cameras * heads * CONV_CHANNELS, 1, groups=cameras)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, k, C, h, w) to (e, k, n, features)."""
        places = self.conv(x.flatten(1, 2)).relu()
        vectors: torch.Tensor = places.unflatten(1, (self.cameras, self.heads, CONV_CHANNELS)).flatten(3)
        return vectors.permute(2, 1, 0, 3)


class MeanPooling(nn.Module):
    """The mean over all places, the same for every head; arguments as `SpatialEmbeddings`'."""

    def __init__(self, shape: tuple[int, int, int, int], heads: int) -> None:
        super().__init__()
        self.heads, self.features = heads, shape[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, k, C, h, w) to (e, k, n, C)."""
        return x.mean((3, 4)).transpose(0, 1).expand(self.heads, -1, -1, -1)


def build_pooling(
    kind: Pooling, shape: tuple[int, int, int, int], blocks: int, heads: int
) -> SpatialEmbeddings | ConvPooling | MeanPooling:
    """The pooling that a config names."""
    if kind == "spatial":
        return SpatialEmbeddings(shape, blocks, heads)
    return ConvPooling(shape, heads) if kind == "conv" else MeanPooling(shape, heads)


class Linears(nn.Module):
    """Independent linear layers, each with an input of its own.

    Attributes:
        weight: (count, outputs, inputs).
        bias: (count, outputs).
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # As `nn.Linear` starts.
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(count, n, inputs) to (count, n, outputs)."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.transpose(1, 2))


class LayerNorms(nn.Module):
    """Independent layer normalisations: the same formula with a scale and a shift each, (count, size)."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, size))
        self.bias = nn.Parameter(torch.zeros(count, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(count, n, size) to the same."""
        normal = nn.functional.layer_norm(x, x.shape[-1:])
        return normal * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)


class Heads(nn.Module):
    """Pooled vectors to logits.

    Args:
        cameras: k.
        features: Length of each camera's vector.
        heads: e.
        hidden: Width of the hidden layer; `None` for a linear head.
        activation: A key of `ACTIVATIONS`.
        layer_norm: Normalise the hidden layer.
        dropout: Share of the hidden layer that training leaves out.
        bottleneck: First a vector of `hidden` numbers for each camera, by Linear, LayerNorm, Tanh.
    """

    def __init__(
        self,
        cameras: int,
        features: int,
        heads: int,
        *,
        hidden: int | None,
        activation: str = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        self.count = heads
        self.bottleneck: nn.Sequential | None = None
        if bottleneck and hidden is not None:
            each = heads * cameras
            self.bottleneck = nn.Sequential(Linears(each, features, hidden), LayerNorms(each, hidden), nn.Tanh())
            features = hidden
        layers: list[nn.Module] = []
        inputs = cameras * features
        if hidden is not None:
            norms = [LayerNorms(heads, hidden)] if layer_norm else []
            layers = [Linears(heads, inputs, hidden), *norms, ACTIVATIONS[activation](), nn.Dropout(dropout)]
            inputs = hidden
        self.layers = nn.Sequential(*layers, Linears(heads, inputs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(e, k, n, features) to logits (n, e)."""
        if self.bottleneck is not None:
            x = self.bottleneck(x.flatten(0, 1)).unflatten(0, (self.count, -1))
        logits: torch.Tensor = self.layers(x.transpose(1, 2).flatten(2))
        return logits.squeeze(2).transpose(0, 1)
