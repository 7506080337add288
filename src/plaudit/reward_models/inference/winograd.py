"""A network in other words: the same function in operations that ONNX Runtime is quick at on a CPU.

Its convolutions run as fast as a core can multiply, so that only fewer multiplications are quicker still. On small maps
a 3x3 convolution needs less than half of them (Winograd, 1980; Lavin and Gray, 2016), and can be written as products of
matrices. GroupNorm it does not know: written the usual way it passes over the map six times.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from plaudit.reward_models.model import RewardModel
from plaudit.vision.resnet import Block, Bottleneck

TILE = 4
"""Rows and columns of the result that are calculated together."""

LANES = 8
"""ONNX Runtime convolves channel by channel quickly if their number is a multiple of this."""

WORTHWHILE = 0.6
"""Share of the usual multiplications that a tiled convolution may need; what else it does costs time too."""

# For tiles of four from six pixels, with interpolation at 0, 1, -1, 2, -2 and infinity.
_INPUT = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
_KERNEL = [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
           [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]  # fmt: skip
_OUTPUT = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]


def rewritten(model: RewardModel) -> RewardModel:
    """A copy of a model in evaluation mode that gives the same logits, up to rounding."""
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        if isinstance(module, (Block, Bottleneck)):
            _fold_norms(module)
    maps = _map_sizes(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and child in maps:
                setattr(parent, name, _quicker(child, maps[child]))
            elif isinstance(child, nn.GroupNorm) and child.num_channels % LANES == 0:
                setattr(parent, name, ChannelwiseGroupNorm(child))
    return model.eval()


def _fold_norms(block: Block | Bottleneck) -> None:
    """Puts BatchNorm into the convolution before it, where ONNX Runtime would no longer find it."""
    for index in (1, 2, 3):
        norm = getattr(block, f"bn{index}", None)
        if isinstance(norm, nn.BatchNorm2d):
            setattr(block, f"conv{index}", fuse_conv_bn_eval(getattr(block, f"conv{index}"), norm))
            setattr(block, f"bn{index}", nn.Identity())


def _map_sizes(model: RewardModel) -> dict[nn.Conv2d, tuple[int, int]]:
    """(H, W) of the maps that the ordinary 3x3 convolutions take and give; without those that see several sizes."""
    seen: dict[nn.Conv2d, set[tuple[int, int]]] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        seen.setdefault(module, set()).add((output.shape[2], output.shape[3]))

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d) and _is_plain(m)]
    height, width = model.image_size
    with torch.inference_mode():
        model({camera: torch.zeros(1, height, width, 3, dtype=torch.uint8) for camera in model.cameras})
    for hook in hooks:
        hook.remove()
    return {conv: sizes.pop() for conv, sizes in seen.items() if len(sizes) == 1}


def _is_plain(conv: nn.Conv2d) -> bool:
    kind = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
    return kind == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")


def _quicker(conv: nn.Conv2d, size: tuple[int, int]) -> nn.Module:
    """The quickest way to convolve a map of this size."""
    height, width = size
    if height <= 2 and width <= 2:
        return DenseConvolution(conv, size)
    if height % TILE or width % TILE:
        return conv
    pairs, channels = conv.in_channels * conv.out_channels, conv.in_channels + conv.out_channels
    usual = (3 * height - 2) * (3 * width - 2) * pairs
    points = height * width // TILE**2 * len(_INPUT) ** 2
    return TiledConvolution(conv, size) if points * (pairs + height * width * channels) < WORTHWHILE * usual else conv


class DenseConvolution(nn.Module):
    """A 3x3 convolution of a map so small that every place sees all others: a product with one matrix.

    Args:
        conv: With a stride of 1 and a padding of 1.
        size: (H, W) of the map, at most (2, 2).
    """

    table: torch.Tensor

    def __init__(self, conv: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        self.size, self.weight, self.bias = size, conv.weight, conv.bias
        places = torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1]))
        offset = places[:, None] - places[None, :] + 1  # From a place of the result to one of the input.
        self.register_buffer("table", (3 * offset[..., 0] + offset[..., 1]).T.contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, H, W) to (n, outputs, H, W)."""
        taps = self.weight.flatten(2)[:, :, self.table]  # (outputs, inputs, place of the result, place of the input)
        matrix = taps.permute(1, 3, 0, 2).flatten(2).flatten(0, 1)
        return _with_bias((x.flatten(1) @ matrix).reshape(-1, len(self.weight), *self.size), self.bias)


class TiledConvolution(nn.Module):
    """A 3x3 convolution that takes 36 products for 16 places instead of 144; arguments as `DenseConvolution`'s, for
    maps whose sides are multiples of four.
    """

    into: torch.Tensor
    kernel: torch.Tensor
    back: torch.Tensor

    def __init__(self, conv: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        self.size, self.weight, self.bias = size, conv.weight, conv.bias
        self.points = len(_INPUT) ** 2
        (rows, rows_back), (columns, columns_back) = (_along(length) for length in size)
        into = torch.einsum("iah,jbw->abijhw", rows, columns).flatten(4).flatten(0, 3)
        back = torch.einsum("iah,jbw->abijhw", rows_back, columns_back).flatten(4).flatten(0, 3)
        kernel = torch.tensor(_KERNEL, dtype=torch.float64)
        self.register_buffer("into", into.float())  # (points * tiles, H * W)
        self.register_buffer("back", back.float())  # (points * tiles, H * W)
        self.register_buffer("kernel", torch.kron(kernel, kernel).float())  # (points, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, H, W) to (n, outputs, H, W)."""
        outputs, inputs = self.weight.shape[:2]
        kernels = (self.kernel @ self.weight.flatten(0, 1).flatten(1).T).reshape(-1, outputs, inputs)
        points = (self.into @ x.flatten(0, 1).flatten(1).T).reshape(self.points, -1, inputs)
        products = (points @ kernels.transpose(1, 2)).reshape(len(self.into), -1)
        return _with_bias((products.T @ self.back).reshape(-1, outputs, *self.size), self.bias)


def _along(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """From a line of pixels to the points of its tiles, and from those to a line of results, (tiles, 6, length)."""
    tiles = length // TILE
    into = torch.zeros(tiles, len(_INPUT), length + 2, dtype=torch.float64)  # A zero before the line and one behind.
    back = torch.zeros(tiles, len(_INPUT), length, dtype=torch.float64)
    for tile in range(tiles):
        start = TILE * tile
        into[tile, :, start : start + len(_INPUT)] = torch.tensor(_INPUT, dtype=torch.float64)
        back[tile, :, start : start + TILE] = torch.tensor(_OUTPUT, dtype=torch.float64).T
    return into[:, :, 1:-1], back


def _with_bias(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.view(-1, 1, 1)


class ChannelwiseGroupNorm(nn.Module):
    """GroupNorm as a normalisation of groups, then a convolution of each channel alone with its scale and shift, into
    which ONNX Runtime takes the activation and the sum that follow.
    """

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups, self.eps = norm.num_groups, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels, h, w) to the same."""
        normal = nn.functional.instance_norm(x.reshape(x.shape[0], self.groups, -1), eps=self.eps)
        return torch.conv2d(normal.reshape(x.shape), self.weight.view(-1, 1, 1, 1), self.bias, groups=x.shape[1])
