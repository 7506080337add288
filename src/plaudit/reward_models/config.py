"""Config dataclasses of the reward models. Imports no torch, so that a wrong key is found in a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from plaudit.config.structured import REQUIRED, require

Arch: TypeAlias = Literal[
    "resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "efficientnet_lite0"
]
"""Encoders of `resnet_reward`. The last one's ImageNet weights come with a package."""

Pooling: TypeAlias = Literal["spatial", "conv", "avg"]
"""From the encoder's map to a vector: learned weights for every place, a 1x1 convolution, or the mean."""


DEFAULT_MODEL = {
    "model_type": "binary_classifier",
    "width": 16,
    "stem": "5x5",
    "pooling": "conv",
    "freeze_encoder": False,
    "use_pretrain": False,
}
"""`reward.model` of a fit that names no `model_type`: a narrow net, trained end to end in about a minute on a CPU."""


@dataclass(frozen=True)
class RewardModelConfig:
    """`reward.model`: the keys that every reward model has. A model of your own may add to them."""

    model_type: str = REQUIRED  # Registered reward model.
    image_keys: tuple[str, ...] = ("base_camera",)  # Cameras, in the order in which the model takes them.
    image_size: tuple[int, int, int] = (3, 64, 64)  # Channels, height and width of each camera's image.
    heads: int = 1  # Size of the ensemble: independent heads on the same features.
    freeze_encoder: bool = True  # Train the head only.

    def __post_init__(self) -> None:
        require(bool(self.image_keys), "image_keys", "must name at least one camera")
        require(len(set(self.image_keys)) == len(self.image_keys), "image_keys", "names a camera twice")
        require(self.image_size[0] == 3, "image_size", "must be [3, height, width]")
        require(min(self.image_size) >= 1, "image_size", "must be [3, height, width]")
        require(self.heads >= 1, "heads", "must be at least 1")


@dataclass(frozen=True)
class EncodedConfig(RewardModelConfig):
    """What the models with an encoder of ours have in common."""

    hidden_dim: int | None = 256  # Width of the head's hidden layer; null for a linear head.
    pooling: Pooling = "spatial"  # How the encoder's map becomes a vector.
    num_spatial_blocks: int = 8  # Learned weights for each channel and place, with pooling 'spatial'.
    dropout: float = 0.1  # Share of the hidden layer that training leaves out at random.
    normalize: bool = True  # Shift and scale the colours as the encoder's pretraining did.
    use_pretrain: bool = True  # Start from pretrained weights where there are any.
    pretrained_encoder_path: str | None = None  # Encoder weights (.pt, .pth, .safetensors) with torchvision's names.
    share_encoder: bool | None = None  # One encoder for all cameras, not one each; null: if it is frozen.
    encoder_stages: int = 4  # Stages of the encoder in use; fewer make a finer map, and are quicker.

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.hidden_dim is None or self.hidden_dim >= 1, "hidden_dim", "must be at least 1")
        require(self.num_spatial_blocks >= 1, "num_spatial_blocks", "must be at least 1")
        require(0 <= self.dropout < 1, "dropout", "must be at least 0 and less than 1")
        require(1 <= self.encoder_stages <= 4, "encoder_stages", "must be 1, 2, 3 or 4")


@dataclass(frozen=True)
class BinaryClassifierConfig(EncodedConfig):
    """`reward.model` of `binary_classifier`: a ResNet-10 with a head of Linear, LayerNorm, Tanh, Linear."""

    model_type: str = "binary_classifier"  # Registered reward model.
    width: int = 64  # Channels of the first stage; each further one doubles them. 16 is quick on a CPU.
    stem: Literal["7x7", "5x5", "3x3"] = "7x7"  # The first convolution; 3x3 is the finest, 5x5 the quickest.
    norm: Literal["group", "batch"] = "group"  # group is the pretrained file's; batch quantises better.
    bottleneck: bool = False  # First a vector for each camera (Linear, LayerNorm, Tanh), as HIL-SERL does.
    activation: Literal["tanh", "relu"] = "tanh"  # Of the head's hidden layer.

    def __post_init__(self) -> None:
        super().__post_init__()
        # With fewer channels the gradient of a strided 1x1 convolution writes past its memory in torch 2.13 on CPUs.
        require(self.width >= 8, "width", "must be at least 8")
        require(self.norm != "group" or self.width % 4 == 0, "width", "must be a multiple of 4 with norm 'group'")
        require(self.hidden_dim is not None, "hidden_dim", "must be at least 1")


@dataclass(frozen=True)
class ResNetRewardConfig(EncodedConfig):
    """`reward.model` of `resnet_reward`: any encoder, with a head of Linear, ReLU, Dropout, Linear."""

    model_type: str = "resnet_reward"  # Registered reward model.
    arch: Arch = "resnet18"  # The encoder.
    image_size: tuple[int, int, int] = (3, 128, 128)  # Channels, height and width of each camera's image.
    pooling: Pooling = "avg"  # How the encoder's map becomes a vector.
    dropout: float = 0.0  # Share of the hidden layer that training leaves out at random.
    freeze_encoder: bool = False  # Train the head only.
