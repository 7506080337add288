"""EfficientNet-lite0 (Tan and Le, 2019; the lite variant has ReLU6 and no squeeze-and-excitation)."""

from __future__ import annotations

import torch
from torch import nn

from plaudit.vision.resnet import Encoder

GROUPS = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1))  # fmt: skip
"""Groups of blocks: expansion, size of the kernel, stride of the first block, channels, how many blocks."""

STAGES = ((2, 4), (3, 8), (5, 16), (7, 32))
"""Groups of blocks in use, and the stride, with 1 to 4 stages."""

NAMES = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_expand_conv": "expand.conv",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
"""Layers as the published weights name them, and as we do. `_bn0` is the stem's, or in a block its expansion's."""


class Convolution(nn.Module):
    """A convolution, its normalisation, and ReLU6 where `clip`.

    The weights were trained in TensorFlow, whose padding puts the odd row and column behind the image, not before it.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, *, clip: bool = True
    ) -> None:
        super().__init__()
        within = size // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, size, stride, within, bias=False, groups=groups)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        self.act = nn.ReLU6(inplace=True) if clip else nn.Identity()
        self.size, self.stride = size, stride
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, outputs, ceil(h / stride), ceil(w / stride))."""
        if self.stride > 1:
            top, bottom = self._padding(x.shape[2])
            left, right = self._padding(x.shape[3])
            x = nn.functional.pad(x, (left, right, top, bottom))
        y: torch.Tensor = self.act(self.norm(self.conv(x)))
        return y

    def _padding(self, length: int) -> tuple[int, int]:
        """Zeros before and behind."""
        places = -(-length // self.stride)
        total = max((places - 1) * self.stride + self.size - length, 0)
        return total // 2, total - total // 2


class InvertedBlock(nn.Module):
    """Expands the channels, convolves each alone, projects them back, and adds the input where the shape allows."""

    def __init__(self, inputs: int, outputs: int, expansion: int, size: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = Convolution(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(inner, inner, size, stride, inner)
        self.project = Convolution(inner, outputs, 1, clip=False)
        self.adds = inputs == outputs and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, outputs, ceil(h / stride), ceil(w / stride))."""
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds else y


class EfficientNetLite0(Encoder):
    """The stem and blocks of EfficientNet-lite0.

    Args:
        stages: How many of its four stages, at strides 4, 8, 16 and 32.
    """

    mean = (127 / 255, 127 / 255, 127 / 255)
    std = (128 / 255, 128 / 255, 128 / 255)

    def __init__(self, stages: int = 4) -> None:
        super().__init__()
        self.stages = stages
        count, self.stride = STAGES[stages - 1]
        self.channels = 32
        self.stem = Convolution(3, self.channels, 3, 2)
        self.blocks = nn.Sequential()
        for expansion, size, first_stride, channels, repeats in GROUPS[:count]:
            for index in range(repeats):
                stride = first_stride if index == 0 else 1
                self.blocks.append(InvertedBlock(self.channels, channels, expansion, size, stride))
                self.channels = channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 (n, 3, H, W) to (n, channels, h, w)."""
        y: torch.Tensor = self.blocks(self.stem(x))
        return y

    def adapt(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        own = {}
        for name, value in state.items():
            layer, _, rest = name.partition(".")
            if layer == "_blocks":
                index, layer, rest = rest.split(".", 2)
                own_layer = "expand.norm" if layer == "_bn0" else NAMES.get(layer, layer)
                if int(index) < len(self.blocks):
                    own[f"blocks.{index}.{own_layer}.{rest}"] = value
            elif layer not in ("_conv_head", "_bn1", "_fc"):
                own[f"{NAMES.get(layer, layer)}.{rest}"] = value
        return own
