"""Residual networks that encode images as feature maps.

Parameters have torchvision's names; its last layers (pooling and classifier) are left out. Therefore torchvision's
checkpoints load without conversion, and so does the ResNet-10 with GroupNorm that HIL-SERL and RLinf start from.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn

Norm: TypeAlias = Literal["group", "batch"]
Stem: TypeAlias = Literal["7x7", "5x5", "3x3"]

GROUPS = 4
"""Number of groups of every GroupNorm."""

LAYERS = {
    "resnet10": (1, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
"""Number of blocks in each of the four stages, by architecture."""

DEEP = ("resnet50", "resnet101", "resnet152")
"""Architectures whose blocks are bottlenecks of three convolutions."""


class Encoder(nn.Module):
    """Base class of networks that encode images as feature maps.

    Attributes:
        channels: Channels of the feature map.
        stride: Image pixels, in each direction, per position of the feature map.
        mean, std: Mean and standard deviation of the colours, in [0, 1], with which the pretraining normalised images.
        stages: Number of stages in use, 1 to 4.
    """

    channels: int
    stride: int
    stages: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def map_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the feature map.

        Every halving rounds up, which equals rounding up once after all of them.
        """
        return -(-image_size[0] // self.stride), -(-image_size[1] // self.stride)

    def adapt(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rename weights from a file to our names, and drop layers outside the encoder."""
        raise NotImplementedError


class GroupNorm(nn.GroupNorm):
    """GroupNorm that accepts a single image with a 1x1 feature map.

    Torch's own refuses a batch of one whose map has one position, although a group has several channels to normalise
    over.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, channels, h, w) to the same shape."""
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Return the normalisation layer after a convolution."""
    return GroupNorm(GROUPS, channels) if norm == "group" else nn.BatchNorm2d(channels)


class Block(nn.Module):
    """Residual block of two 3x3 convolutions.

    Args:
        inputs: Channels of the input.
        width: Channels inside the block, and of its output.
        stride: Stride of the first convolution.
        norm: Normalisation after each convolution.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = norm_layer(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        y: torch.Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + (x if self.downsample is None else self.downsample(x))
        return torch.relu_(y)


class Bottleneck(nn.Module):
    """Residual block of a 3x3 convolution between two 1x1 convolutions.

    The arguments are those of `Block`, but the output has 4 `width` channels, and the stride is that of the
    3x3 convolution.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = norm_layer(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = norm_layer(norm, width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = norm_layer(norm, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, h, w) to (n, 4 width, h / stride, w / stride)."""
        y: torch.Tensor = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x))
        return torch.relu_(y)


def shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """Return the projection of a residual connection, or `None` for the identity.

    A projection is needed only if the block changes the shape.
    """
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm_layer(norm, outputs))


class ResNet(Encoder):
    """Stem and stages of a residual network (He et al., 2016).

    Args:
        arch: A key of `LAYERS`.
        width: Channels of the first stage.
        stem: `7x7` is the paper's: a strided 7x7 convolution and a strided max pooling. The others are one convolution,
            for narrow networks: `3x3` halves each side of the image, `5x5` reduces it to a quarter in one step.
        norm: Normalisation after each convolution.
        stages: Number of stages, 1 to 4.
    """

    def __init__(
        self, arch: str, *, width: int = 64, stem: Stem = "7x7", norm: Norm = "batch", stages: int = 4
    ) -> None:
        super().__init__()
        block = Bottleneck if arch in DEEP else Block

        size, stride = {"7x7": (7, 2), "5x5": (5, 4), "3x3": (3, 2)}[stem]
        self.conv1 = nn.Conv2d(3, width, size, stride, size // 2, bias=False)
        self.bn1 = norm_layer(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "7x7" else nn.Identity()

        # The first block of every stage but the first halves the map. `channels` is the output width so far, which is
        # the input width of the next block.
        self.stages = stages
        self.channels = width
        for stage, count in enumerate(LAYERS[arch][:stages]):
            blocks: list[nn.Module] = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(self.channels, width * 2**stage, stride, norm))
                self.channels = width * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stride = (2 if stem == "3x3" else 4) * 2 ** (stages - 1)

        # Initialise as torchvision does.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images, float32 (n, 3, H, W), to features (n, channels, h, w)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x

    def adapt(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        unused = ("fc.", *(f"layer{stage + 1}." for stage in range(self.stages, 4)))
        return {name: value for name, value in state.items() if not name.startswith(unused)}
