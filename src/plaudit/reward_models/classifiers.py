"""The reward models of the specification: an encoder over the cameras, a pooling of its maps, and heads on top."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from plaudit.reward_models.config import BinaryClassifierConfig, EncodedConfig, ResNetRewardConfig
from plaudit.reward_models.heads import Heads, build_pooling
from plaudit.reward_models.model import RewardModel
from plaudit.vision.efficientnet import EfficientNetLite0
from plaudit.vision.pretrained import efficientnet_weights, load_encoders
from plaudit.vision.resnet import Encoder, Norm, ResNet

logger = logging.getLogger("plaudit")


class CameraEncoder(nn.Module):
    """One encoder for all cameras, or one each.

    HIL-SERL runs one frozen encoder over all cameras, RLinf trains one each; both pool every camera on its own.

    Args:
        nets: One, or as many as there are cameras.
        normalize: Shift and scale the colours as the pretraining did.

    Attributes:
        layout: Of the images in memory. Convolution and GroupNorm are up to a third faster on the CPU with the channels
            innermost.
    """

    mean: torch.Tensor
    std: torch.Tensor
    layout: torch.memory_format = torch.channels_last

    def __init__(self, nets: list[Encoder], normalize: bool) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.normalize = normalize
        self.register_buffer("mean", torch.tensor(nets[0].mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(nets[0].std).view(3, 1, 1), persistent=False)

    def encoders(self) -> list[Encoder]:
        """The encoders, one or as many as there are cameras."""
        return [net for net in self.nets if isinstance(net, Encoder)]

    def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
        """(n, 3, H, W) for each camera, in [0, 1], to maps (n, k, C, h, w)."""
        if self.normalize:
            images = [(image - self.mean) / self.std for image in images]
        images = [image.contiguous(memory_format=self.layout) for image in images]
        if len(self.nets) < len(images):
            maps: torch.Tensor = self.nets[0](torch.cat(images))
            return maps.reshape(len(images), -1, *maps.shape[1:]).transpose(0, 1)
        return torch.stack([net(image) for net, image in zip(self.nets, images, strict=True)], 1)


class EncodedRewardModel(RewardModel):
    """An encoder over the cameras, a pooling of its maps, and heads.

    Args:
        config: Its config.
        build_net: Makes the encoder of one camera.
        head: What `Heads` is told besides.

    Attributes:
        feature_shape: (k, C, h, w) of what `encode` gives for one frame.
    """

    config: EncodedConfig
    encoder: CameraEncoder

    def __init__(self, config: EncodedConfig, build_net: Callable[[], Encoder], **head: Any) -> None:
        shared = config.freeze_encoder if config.share_encoder is None else config.share_encoder
        cameras = len(config.image_keys)
        nets = [build_net() for _ in range(1 if shared else cameras)]
        super().__init__(config, CameraEncoder(nets, config.normalize))
        # The mean learns nothing, so it is taken before features are kept.
        self.averages = config.pooling == "avg"
        places = (1, 1) if self.averages else nets[0].map_size(self.image_size)
        self.feature_shape = (cameras, nets[0].channels, *places)
        self.pooling = build_pooling(config.pooling, self.feature_shape, config.num_spatial_blocks, config.heads)
        features = self.pooling.features
        self.head = Heads(cameras, features, config.heads, hidden=config.hidden_dim, dropout=config.dropout, **head)

    def encode(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        maps: torch.Tensor = self.encoder([images[name] for name in self.cameras])
        return maps.mean((3, 4), keepdim=True) if self.averages else maps

    def decide(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.pooling(features))
        return logits

    def load_pretrained(self) -> None:
        path = self._pretrained_path()
        if path is not None:
            load_encoders(self.encoder.encoders(), path)
        elif self.config.freeze_encoder:
            logger.warning(
                "freeze_encoder is true, but there are no pretrained weights: the encoder stays as random as it is; "
                "give pretrained_encoder_path, or set freeze_encoder to false."
            )

    def _pretrained_path(self) -> str | None:
        """The file to start from: the config's, or the one that comes with a package."""
        path = self.config.pretrained_encoder_path
        if not self.config.use_pretrain:
            if path is not None:
                logger.info("use_pretrain is false: the encoder does not start from '%s'.", path)
            return None
        bundled = isinstance(self.encoder.encoders()[0], EfficientNetLite0)
        return efficientnet_weights() if path is None and bundled else path


class BinaryRewardClassifier(EncodedRewardModel):
    """ResNet-10 with GroupNorm, spatial embeddings, and a head of Linear, LayerNorm, Tanh, Linear."""

    config: BinaryClassifierConfig

    def __init__(self, config: BinaryClassifierConfig) -> None:
        def net() -> ResNet:
            return ResNet(
                "resnet10", width=config.width, stem=config.stem, norm=config.norm, stages=config.encoder_stages
            )

        super().__init__(config, net, activation=config.activation, layer_norm=True, bottleneck=config.bottleneck)


class ResNetRewardModel(EncodedRewardModel):
    """A ResNet or EfficientNet-lite0, averaged, and a head of Linear, ReLU, Dropout, Linear."""

    config: ResNetRewardConfig

    def __init__(self, config: ResNetRewardConfig) -> None:
        def net() -> Encoder:
            if config.arch == "efficientnet_lite0":
                return EfficientNetLite0(config.encoder_stages)
            norm: Norm = "group" if config.arch == "resnet10" else "batch"
            return ResNet(config.arch, norm=norm, stages=config.encoder_stages)

        super().__init__(config, net)
