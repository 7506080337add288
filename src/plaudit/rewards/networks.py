"""The encoders of reward models, defined in `plaudit.vision`, since policies that look at pictures share them."""

from plaudit.vision.efficientnet import EfficientNetLite0
from plaudit.vision.resnet import Block, Bottleneck, Encoder, GroupNorm, ResNet

__all__ = ["Block", "Bottleneck", "EfficientNetLite0", "Encoder", "GroupNorm", "ResNet"]
