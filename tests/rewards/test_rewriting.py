"""A network in other words says the same."""

from typing import Any

import pytest
import torch
from torch import nn

from plaudit.reward_models.inference.winograd import ChannelwiseGroupNorm, DenseConvolution, TiledConvolution, rewritten
from plaudit.reward_models.model import RewardModel
from plaudit.rewards import build_reward_model

torch.set_num_threads(1)

DEEP = {"model_type": "resnet_reward", "encoder_stages": 3}


def conv(inputs: int, outputs: int, **kind: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(inputs, outputs, 3, padding=1, **kind)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (DenseConvolution, (1, 1)),
        (DenseConvolution, (2, 1)),
        (DenseConvolution, (1, 2)),
        (DenseConvolution, (2, 2)),
        (TiledConvolution, (4, 4)),
        (TiledConvolution, (4, 8)),
        (TiledConvolution, (12, 4)),
    ],
)
def test_a_convolution_of_a_small_map(kind: Any, size: tuple[int, int], bias: bool) -> None:
    usual = conv(6, 10, bias=bias)
    images = torch.randn(3, 6, *size)
    torch.testing.assert_close(kind(usual, size)(images), usual(images), rtol=1e-5, atol=2e-5)


def test_group_norm_channel_by_channel() -> None:
    torch.manual_seed(0)
    usual = nn.GroupNorm(4, 16)
    nn.init.normal_(usual.weight)
    nn.init.normal_(usual.bias)
    images = 3 * torch.randn(2, 16, 5, 6) + 1
    torch.testing.assert_close(ChannelwiseGroupNorm(usual)(images), usual(images), rtol=1e-5, atol=1e-5)


def vary_norms(model: RewardModel) -> RewardModel:
    """Statistics and scales as a trained net has, so that leaving one out would show."""
    for value in model.state_dict().values():
        if value.dim() == 1:
            value.uniform_(0.5, 1.5)
    return model.eval()


def kinds(model: nn.Module) -> list[str]:
    ours = (DenseConvolution, TiledConvolution, ChannelwiseGroupNorm)
    return sorted({type(module).__name__ for module in model.modules() if isinstance(module, ours)})


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"width": 32}, ["ChannelwiseGroupNorm", "DenseConvolution", "TiledConvolution"]),
        ({"width": 32, "norm": "batch"}, ["DenseConvolution", "TiledConvolution"]),
        ({"width": 12, "image_size": [3, 72, 40]}, ["ChannelwiseGroupNorm"]),
        ({"width": 8, "image_keys": ["a", "b"], "share_encoder": True}, ["ChannelwiseGroupNorm", "DenseConvolution"]),
        ({**DEEP, "arch": "resnet18", "image_size": [3, 64, 64]}, ["TiledConvolution"]),
        ({**DEEP, "arch": "resnet50", "image_size": [3, 32, 32]}, ["DenseConvolution", "TiledConvolution"]),
        ({**DEEP, "arch": "efficientnet_lite0", "image_size": [3, 32, 32]}, []),
    ],
)
def test_a_whole_model_says_the_same(block: dict[str, Any], expected: list[str]) -> None:
    torch.manual_seed(0)
    model = vary_norms(build_reward_model({"freeze_encoder": False, **block}, pretrained=False))
    height, width = model.image_size
    frames = {name: torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8) for name in model.cameras}
    other = rewritten(model)
    assert kinds(model) == []
    assert kinds(other) == expected
    with torch.no_grad():
        torch.testing.assert_close(other(frames), model(frames), rtol=1e-4, atol=1e-4)


def test_only_what_is_worth_it_is_tiled() -> None:
    def tiled(width: int, pixels: int) -> list[str]:
        block = {"width": width, "image_size": [3, pixels, pixels], "freeze_encoder": False, "norm": "batch"}
        model = rewritten(build_reward_model(block, pretrained=False))
        return [name for name, module in model.named_modules() if isinstance(module, TiledConvolution)]

    # Maps of 16, 8, 4 and 2 with 64, 128, 256 and 512 channels: those in the middle, and of their strided ones none.
    assert [name.split(".", 3)[3] for name in tiled(64, 64)] == ["layer2.0.conv2", "layer3.0.conv2"]
    # With 32 channels the detour costs more than it saves on maps of 8.
    assert [name.split(".", 3)[3] for name in tiled(16, 64)] == ["layer3.0.conv2"]
    # Maps of 12, which take too many tiles, 6, 3 and 2.
    assert tiled(64, 48) == []
