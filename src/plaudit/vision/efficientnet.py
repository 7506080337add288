"""EfficientNet-lite0 (Tan and Le, 2019; the lite variant has ReLU6 and no squeeze-and-excitation)."""

from __future__ import annotations

import torch
from torch import nn

from plaudit.vision.resnet import Encoder

GROUPS = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1))  # fmt: skip
"""Groups of blocks: expansion, kernel size, stride of the first block, channels, number of blocks."""

STAGES = ((2, 4), (3, 8), (5, 16), (7, 32))
"""Number of block groups, and total stride, of an encoder with 1 to 4 stages."""

NAMES = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_expand_conv": "expand.conv",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
"""Layer names in the published weights, and ours. `_bn0` is the stem's; in a block it is the expansion's."""


class Convolution(nn.Module):
    """Convolution with batch normalisation and an optional ReLU6.

    The weights were trained in TensorFlow, whose padding adds the odd row and column after the image, not before it.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        size: Kernel size.
        stride: Stride of the convolution.
        groups: Groups of the convolution.
        clip: Whether to apply ReLU6.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, *, clip: bool = True
    ) -> None:
        super().__init__()
        padding = size // 2 if stride == 1 else 0  # With a stride, `forward` pads as TensorFlow does.
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False, groups=groups)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        self.act = nn.ReLU6(inplace=True) if clip else nn.Identity()
        self.size = size
        self.stride = stride
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, h, w) to (n, outputs, ceil(h / stride), ceil(w / stride))."""
        if self.stride > 1:
            top, bottom = self._padding(x.shape[2])
            left, right = self._padding(x.shape[3])
            x = nn.functional.pad(x, (left, right, top, bottom))
        y: torch.Tensor = self.act(self.norm(self.conv(x)))
        return y

    def _padding(self, length: int) -> tuple[int, int]:
        """Return the number of zeros before and after an axis of the given length."""
        output_length = -(-length // self.stride)
        total = max((output_length - 1) * self.stride + self.size - length, 0)
        return total // 2, total - total // 2


class InvertedBlock(nn.Module):
    """Inverted residual block with a depthwise convolution.

    It expands the channels, convolves each one separately, projects them back, and adds the input if input and output
    have the same shape.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        expansion: Factor by which the channels are expanded.
        size: Kernel size of the depthwise convolution.
        stride: Stride of the depthwise convolution.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, size: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = Convolution(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(inner, inner, size, stride, inner)
        self.project = Convolution(inner, outputs, 1, clip=False)
        self.adds = inputs == outputs and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, h, w) to (n, outputs, ceil(h / stride), ceil(w / stride))."""
        y: torch.Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds else y


class EfficientNetLite0(Encoder):
    """Stem and blocks of EfficientNet-lite0.

    Args:
        stages: Number of stages, 1 to 4; the strides are 4, 8, 16 and 32.
    """

    mean = (127 / 255, 127 / 255, 127 / 255)
    std = (128 / 255, 128 / 255, 128 / 255)

    def __init__(self, stages: int = 4) -> None:
        super().__init__()
        self.stages = stages
        group_count, self.stride = STAGES[stages - 1]

        # `channels` is the output width so far, which is the input width of the next block.
        self.channels = 32
        self.stem = Convolution(3, self.channels, 3, 2)
        self.blocks = nn.Sequential()
        for expansion, size, first_stride, channels, repeats in GROUPS[:group_count]:
            for index in range(repeats):
                stride = first_stride if index == 0 else 1
                self.blocks.append(InvertedBlock(self.channels, channels, expansion, size, stride))
                self.channels = channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images, float32 (n, 3, H, W), to features (n, channels, h, w)."""
        y: torch.Tensor = self.blocks(self.stem(x))
        return y

    def adapt(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        adapted = {}
        for name, value in state.items():
            layer, _, rest = name.partition(".")
            if layer == "_blocks":
                # Inside a block `_bn0` follows the expansion, not the stem. Blocks of unused stages are dropped.
                index, layer, rest = rest.split(".", 2)
                own_layer = "expand.norm" if layer == "_bn0" else NAMES.get(layer, layer)
                if int(index) < len(self.blocks):
                    adapted[f"blocks.{index}.{own_layer}.{rest}"] = value
            # The classifier's layers, after the blocks, are not part of the encoder.
            elif layer not in ("_conv_head", "_bn1", "_fc"):
                adapted[f"{NAMES.get(layer, layer)}.{rest}"] = value

        return adapted
