from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from plaudit.errors import ConfigError, DataError, RegistryError
from plaudit.rewards import (
    REWARD_MODELS,
    BinaryClassifierConfig,
    BinaryRewardClassifier,
    ResNetRewardModel,
    RewardModel,
    RewardModelConfig,
    build_reward_model,
    register_reward_model,
)

SMALL = {"width": 8, "image_size": [3, 32, 40], "hidden_dim": 16, "freeze_encoder": False}


def pixels(batch: int = 3, height: int = 32, width: int = 40) -> torch.Tensor:
    return torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8)


def test_prepare_makes_unit_floats_with_channels_first() -> None:
    model = build_reward_model(SMALL)
    frames = pixels()
    images = model.prepare({"base_camera": frames, "another": frames})
    assert list(images) == ["base_camera"]
    image = images["base_camera"]
    assert image.dtype == torch.float32
    assert image.shape == (3, 3, 32, 40)
    assert image[1, 2, 5, 7] == frames[1, 5, 7, 2] / 255
    torch.testing.assert_close(model.prepare(image.double())["base_camera"], image)


def test_bytes_and_floats_score_the_same() -> None:
    model = build_reward_model(SMALL).eval()
    frames = pixels()
    floats = frames.permute(0, 3, 1, 2) / 255
    logits = model({"base_camera": frames})
    assert logits.shape == (3, 1)
    for other in (frames, floats, floats.contiguous(), {"base_camera": floats.double()}):
        torch.testing.assert_close(model(other), logits)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (pixels(height=64), r"'base_camera'.*32x40.*\(3, 64, 40, 3\)"),
        (pixels().permute(0, 3, 1, 2), r"uint8 \(3, 3, 32, 40\)"),
        (pixels().float(), r"float32 \(3, 32, 40, 3\)"),
        (pixels().int(), "int32"),
        (pixels()[0], r"\(32, 40, 3\)"),
    ],
)
def test_frames_that_do_not_fit_are_named(frames: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        build_reward_model(SMALL)(frames)


def test_missing_cameras_are_named() -> None:
    model = build_reward_model({**SMALL, "image_keys": ["base_camera", "wrist_camera"]})
    with pytest.raises(DataError, match=r"needs the camera 'wrist_camera'; got base_camera\."):
        model({"base_camera": pixels()})
    with pytest.raises(DataError, match="base_camera, wrist_camera; got one tensor"):
        model(pixels())


def test_which_class_a_block_is_for() -> None:
    assert isinstance(build_reward_model({}, pretrained=False), BinaryRewardClassifier)
    assert isinstance(build_reward_model({"model_type": "resnet_reward"}), ResNetRewardModel)
    assert isinstance(build_reward_model(BinaryClassifierConfig(width=8), pretrained=False), BinaryRewardClassifier)
    with pytest.raises(RegistryError, match=r"unknown reward model 'resnet_rewards'.*'resnet_reward'"):
        build_reward_model({"model_type": "resnet_rewards"})


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"hiden_dim": 8}, r"reward\.model\.hiden_dim: unknown key.*'hidden_dim'"),
        ({"model_type": "resnet_reward", "arch": "resnet19"}, r"reward\.model\.arch: expected one of 'resnet10'"),
        ({"width": 10}, "width: must be a multiple of 4"),
        ({"image_size": [1, 64, 64]}, r"image_size: must be \[3, height, width\]"),
        ({"image_keys": []}, "image_keys: must name at least one"),
        ({"image_keys": ["a", "a"]}, "image_keys: names a camera twice"),
        ({"heads": 0}, "heads: must be at least 1"),
        ({"hidden_dim": None}, "hidden_dim: must be at least 1"),
        ({"dropout": 1.0}, "dropout: must be"),
        ({"encoder_stages": 5}, "encoder_stages: must be 1, 2, 3 or 4"),
    ],
)
def test_wrong_configs_are_named(block: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_reward_model(block)


@dataclass(frozen=True)
class BrightnessConfig(RewardModelConfig):
    """Keys of a user's own model."""

    slope: float = 1.0  # How fast the logit grows.


class Brightness(RewardModel):
    """A user's own model: success is a bright image."""

    config: BrightnessConfig

    def __init__(self, config: BrightnessConfig) -> None:
        super().__init__(config, nn.AdaptiveAvgPool2d(1))
        self.bias = nn.Parameter(torch.zeros(config.heads))

    def encode(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.encoder(images[name]).mean((1, 2, 3)) for name in self.cameras], 1)

    def decide(self, features: torch.Tensor) -> torch.Tensor:
        return self.config.slope * features.mean(1, keepdim=True) + self.bias


def test_a_model_of_one_s_own_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARD_MODELS, "_entries", dict(REWARD_MODELS._entries))
    register_reward_model("brightness")(Brightness)
    model = build_reward_model({"model_type": "brightness", "slope": 2.0, "heads": 3, "image_size": [3, 2, 2]})
    white = torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)
    assert model(white).tolist() == [[2.0, 2.0, 2.0]]
    assert [parameter.shape for parameter in model.trainable()] == [(3,)]
    with pytest.raises(ConfigError, match=r"slop.*'slope'"):
        build_reward_model({"model_type": "brightness", "slop": 2.0})
    with pytest.raises(RegistryError, match="already registered"):
        register_reward_model("brightness")(Brightness)


def test_reading_a_config_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, plaudit.rewards as r; r.BinaryClassifierConfig(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
