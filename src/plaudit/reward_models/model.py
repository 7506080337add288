"""What the rest of Plaudit asks of a reward model, and the table of reward models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from plaudit.config.structured import fill
from plaudit.errors import DataError
from plaudit.registry import Registry
from plaudit.reward_models.config import RewardModelConfig

T = TypeVar("T", bound="RewardModel")


class RewardModel(nn.Module, ABC):
    """Camera frames to logits of success.

    Scoring is `decide(encode(prepare(frames)))`. With a frozen encoder `encode` is run once for each frame and kept,
    and training repeats only `decide`.

    Args:
        config: Its config.
        encoder: What `encode` runs; it stays as it is where the config says `freeze_encoder`.

    Attributes:
        cameras: Names, in the order in which they are taken.
        image_size: (H, W) of each.
        heads: Size of the ensemble.
    """

    config: RewardModelConfig

    def __init__(self, config: RewardModelConfig, encoder: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.cameras = tuple(config.image_keys)
        self.image_size = (config.image_size[1], config.image_size[2])
        self.heads = config.heads
        self.encoder = encoder
        encoder.requires_grad_(not config.freeze_encoder)
        self.train()

    @abstractmethod
    def encode(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Prepared images, float32 (n, 3, H, W) for each camera, to the features (n, ...) that the heads start from."""

    @abstractmethod
    def decide(self, features: torch.Tensor) -> torch.Tensor:
        """Features (n, ...) to logits (n, heads)."""

    def forward(self, frames: Mapping[str, torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """Frames as `prepare` takes them to logits (n, heads); with one camera, its frames alone will do."""
        return self.decide(self.encode(self.prepare(frames)))

    def prepare(self, frames: Mapping[str, torch.Tensor] | torch.Tensor) -> dict[str, torch.Tensor]:
        """Frames to float32 (n, 3, H, W) in [0, 1], for the cameras of this model.

        Args:
            frames: For each camera uint8 (n, H, W, 3), or floats (n, 3, H, W) that are in [0, 1] already.
        """
        if isinstance(frames, torch.Tensor):
            if len(self.cameras) > 1:
                raise DataError(f"this reward model needs the cameras {', '.join(self.cameras)}; got one tensor alone.")
            frames = {self.cameras[0]: frames}
        missing = [name for name in self.cameras if name not in frames]
        if missing:
            raise DataError(f"this reward model needs the camera '{missing[0]}'; got {', '.join(frames) or 'none'}.")
        return {name: self._to_unit(name, frames[name]) for name in self.cameras}

    def _to_unit(self, camera: str, frames: torch.Tensor) -> torch.Tensor:
        height, width = self.image_size
        shape = tuple(frames.shape[1:])
        if frames.dtype == torch.uint8 and shape == (height, width, 3):
            return frames.permute(0, 3, 1, 2).to(torch.float32) / 255.0
        if frames.dtype.is_floating_point and shape == (3, height, width):
            return frames.to(torch.float32)
        raise DataError(
            f"camera '{camera}': this reward model takes {height}x{width} pixels, uint8 (n, {height}, {width}, 3) or "
            f"floats (n, 3, {height}, {width}); got {frames.dtype} {tuple(frames.shape)}."
        )

    def load_pretrained(self) -> None:
        """Fills the encoder with the pretrained weights that the config asks for, where it asks for any."""

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def train(self: T, mode: bool = True) -> T:
        """As any module's, but a frozen encoder stays in evaluation mode: BatchNorm would learn and vary."""
        super().train(mode)
        if self.config.freeze_encoder:
            self.encoder.eval()
        return self


REWARD_MODELS: Registry[RewardModel] = Registry("reward model")
REWARD_MODELS.add(
    "binary_classifier",
    "plaudit.reward_models.classifiers:BinaryRewardClassifier",
    config="plaudit.reward_models.config:BinaryClassifierConfig",
)
REWARD_MODELS.add(
    "resnet_reward",
    "plaudit.reward_models.classifiers:ResNetRewardModel",
    config="plaudit.reward_models.config:ResNetRewardConfig",
)


def register_reward_model(name: str, *, override: bool = False) -> Callable[[type[RewardModel]], type[RewardModel]]:
    """Registers a reward model class, to be named in `reward.model.model_type`.

    The class is made from its config alone; the dataclass that annotates its `config` checks the keys.
    """
    return REWARD_MODELS.register(name, override=override)


def model_config(block: Mapping[str, Any], where: str = "reward.model") -> RewardModelConfig:
    """The config in a block `reward.model`, of which `model_type` is 'binary_classifier' if it says nothing else.

    Args:
        block: Its keys.
        where: What messages call the block.
    """
    block = {"model_type": "binary_classifier", **block}
    return fill(REWARD_MODELS.config_type(str(block["model_type"])) or RewardModelConfig, block, where)


def build_reward_model(config: RewardModelConfig | Mapping[str, Any], *, pretrained: bool = True) -> RewardModel:
    """Builds the reward model that a config describes.

    Args:
        config: The config, or the block `reward.model` itself, as `model_config` takes it.
        pretrained: Load the pretrained weights that the config asks for. False for whoever loads all weights next.
    """
    if not isinstance(config, RewardModelConfig):
        config = model_config(config)
    model: RewardModel = REWARD_MODELS.get(config.model_type)(config)
    if pretrained:
        model.load_pretrained()
    return model
