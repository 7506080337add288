"""From cameras to the vector that a policy's networks think with."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from plaudit.config.algorithm_schema import EncoderName
from plaudit.errors import ConfigError
from plaudit.rl.networks.mlp import orthogonal
from plaudit.vision.pretrained import load_encoders
from plaudit.vision.resnet import Encoder, ResNet

FEATURES = 64
"""Length of each camera's vector: places of some things, which need not many numbers."""


class SmallCNN(Encoder):
    """Two convolutions, the first of which makes a quarter of each side in one go: what a few large shapes in a small
    picture need, at a third of the price of three that halve it.

    Args:
        inputs: Channels of the pictures.
        channels: Of either layer.
    """

    stride = 8

    def __init__(self, inputs: int, channels: int = 32) -> None:
        super().__init__()
        self.channels = channels
        self.mean, self.std = (0.5,) * inputs, (1.0,) * inputs
        gain = math.sqrt(2.0)
        self.layers = nn.Sequential(
            orthogonal(nn.Conv2d(inputs, channels, 5, stride=4, padding=2), gain),
            nn.ReLU(inplace=True),
            orthogonal(nn.Conv2d(channels, channels, 3, stride=2, padding=1), gain),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 (n, inputs, H, W) to (n, channels, H / 8, W / 8)."""
        y: torch.Tensor = self.layers(x)
        return y


class Tower(nn.Module):
    """One camera's pictures to a vector: an encoder, and a layer that sees every place of its map, since where things
    are is what a policy must know.

    Args:
        net: The encoder.
        size: Height and width of the pictures.
        frozen: Leave the encoder as it is; the layer after it learns in any case.

    Attributes:
        places: Numbers in the encoder's map.
    """

    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(self, net: Encoder, size: tuple[int, int], frozen: bool) -> None:
        super().__init__()
        self.net = net.requires_grad_(not frozen)
        self.frozen = frozen
        self.places = net.channels * math.prod(net.map_size(size))
        # Without LayerNorm the tanh is soon at its ends, where no gradient comes back to the convolutions.
        self.tail = nn.Sequential(
            nn.Flatten(),
            orthogonal(nn.Linear(self.places, FEATURES), math.sqrt(2.0)),
            nn.LayerNorm(FEATURES),
            nn.Tanh(),
        )
        mean, std = torch.tensor(net.mean).view(-1, 1, 1), torch.tensor(net.std).view(-1, 1, 1)
        self.register_buffer("scale", 1.0 / (255.0 * std), persistent=False)
        self.register_buffer("offset", mean / std, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (n, H, W, channels), or what `look` made of them, to float32 (n, FEATURES)."""
        vector: torch.Tensor = self.tail(images if images.dim() == 2 else self.look(images))
        return vector

    def look(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (n, H, W, channels) to the encoder's map, float32 (n, places)."""
        # Seen as (n, channels, H, W) the channels stay innermost in memory, which convolutions are fastest with.
        x = images.permute(0, 3, 1, 2).to(torch.float32).mul_(self.scale).sub_(self.offset)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            found: torch.Tensor = self.net(x)
        return found.flatten(1)


class ImageEncoder(nn.Module):
    """Cameras to one vector, through a tower each.

    Args:
        cameras: Camera name to its shape (H, W, channels).
        kind: `cnn` is small and quick; `resnet10` is the one with GroupNorm that pretrained weights exist for.
        frozen: Leave the encoders as they are.

    Attributes:
        features: Length of the vector.
        frozen: As given.
    """

    def __init__(
        self, cameras: Mapping[str, tuple[int, ...]], kind: EncoderName = "cnn", *, frozen: bool = False
    ) -> None:
        super().__init__()
        self.names, self.frozen = tuple(cameras), frozen
        self.features = FEATURES * len(self.names)
        self.towers = nn.ModuleList(
            Tower(_net(kind, name, shape[2]), (shape[0], shape[1]), frozen) for name, shape in cameras.items()
        )

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """uint8 images (n, H, W, channels) by camera, or what `digest` made of them, to float32 (n, features)."""
        return torch.cat([tower(obs[name]) for name, tower in self.by_camera.items()], -1)

    @property
    def by_camera(self) -> dict[str, Tower]:
        """Every camera's tower."""
        pairs = zip(self.names, self.towers, strict=True)
        return {name: tower for name, tower in pairs if isinstance(tower, Tower)}

    def digest(self, obs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What never changes of what a frozen encoder makes of pictures, float32 (n, places) by camera: `forward` takes
        it in their place. What is digested already stays as it is.
        """
        return {
            name: obs[name] if obs[name].dim() == 2 else tower.look(obs[name]) for name, tower in self.by_camera.items()
        }

    def twin(self) -> ImageEncoder:
        """A copy that learns by itself; what is frozen serves both."""
        shared = {id(tower.net): tower.net for tower in self.by_camera.values() if tower.frozen}
        return copy.deepcopy(self, shared)

    def load_pretrained(self, path: str | Path) -> None:
        """Starts every camera's encoder from a file with torchvision's names, whatever else is in it."""
        load_encoders([tower.net for tower in self.by_camera.values()], path)


def _net(kind: EncoderName, camera: str, channels: int) -> Encoder:
    """The encoder of one camera."""
    if kind == "cnn":
        return SmallCNN(channels)
    if channels != 3:
        raise ConfigError(
            f"policy.cfg.encoder 'resnet10' takes pictures of 3 channels, but camera '{camera}' has {channels}; "
            "use 'cnn'."
        )
    return ResNet("resnet10", norm="group")
