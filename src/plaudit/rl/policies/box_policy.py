"""What policies with continuous actions have in common: what they observe, and the units that they act in."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.config.algorithm_schema import EncoderConfig
from plaudit.errors import ConfigError
from plaudit.rl.networks.image_encoder import ImageEncoder
from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.base import Policy


class BoxPolicy(Policy):
    """Takes observations apart into vectors and pictures, and thinks of actions in units in which their space is
    [-1, 1]; they leave in the space's own. Where the space has no end, both are the same.

    Args:
        obs_space: A vector `Box`, or a `Dict` of vectors and cameras (H, W, channels).
        action_space: A vector `Box`.
        device: Where the policy lives.
        config: Of the encoder.

    Attributes:
        vectors: Name to length of the vectors that are observed.
        encoder: Cameras to features; `None` where nothing looks at them. A subclass sets it.
        centre, reach: (action_dim,), middle and half the length of the action space.
        bounded: Whether that is finite.
        log_volume: Logarithm of the product of `reach`: what densities differ by between the two units.
    """

    centre: torch.Tensor
    reach: torch.Tensor
    encoder: ImageEncoder | None

    def __init__(
        self,
        obs_space: gym.Space[Any],
        action_space: gym.spaces.Box,
        device: torch.device,
        config: EncoderConfig,
    ) -> None:
        super().__init__()
        self.device, self.config = torch.device(device), config
        self.vectors, _ = split_space(obs_space)
        low, high = torch.as_tensor(action_space.low), torch.as_tensor(action_space.high)
        bounded = torch.isfinite(low) & torch.isfinite(high)
        self.register_buffer("centre", torch.where(bounded, (low + high) / 2, 0.0).float(), persistent=False)
        self.register_buffer("reach", torch.where(bounded, (high - low) / 2, 1.0).float(), persistent=False)
        self.bounded = bool(bounded.all())
        self.log_volume = float(self.reach.log().sum())
        self.unit = bool((self.centre == 0).all() and (self.reach == 1).all())

    def load_pretrained(self) -> None:
        if self.encoder is not None and self.config.pretrained_encoder_path is not None:
            self.encoder.load_pretrained(self.config.pretrained_encoder_path)

    def vector(self, obs: PolicyObs) -> torch.Tensor:
        """All vector observations side by side, (n, d); for a policy that observes some."""
        if isinstance(obs, torch.Tensor):
            return obs
        parts = [obs[key] for key in self.vectors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def to_space(self, action: torch.Tensor) -> torch.Tensor:
        """From [-1, 1] to the action space's units."""
        return action if self.unit else self.centre + self.reach * action

    def to_unit(self, action: torch.Tensor) -> torch.Tensor:
        """From the action space's units to [-1, 1]."""
        return action if self.unit else (action - self.centre) / self.reach


def cameras_of(obs: PolicyObs) -> dict[str, torch.Tensor]:
    """Observations by the names that `split_space` gives them: an env's only one has none."""
    return obs if isinstance(obs, dict) else {"": obs}


def join(*parts: torch.Tensor | None) -> torch.Tensor:
    """The input of a network, (n, d): what there is of some parts, side by side."""
    there = [part for part in parts if part is not None]
    return there[0] if len(there) == 1 else torch.cat(there, -1)


def build_encoder(cameras: dict[str, tuple[int, ...]], config: EncoderConfig) -> ImageEncoder:
    """The encoder of a policy with networks of type `cnn`."""
    if not cameras:
        raise ConfigError("a policy network of type 'cnn' needs cameras, but the env observes none; use 'mlp'.")
    return ImageEncoder(cameras, config.encoder, frozen=config.freeze_encoder)


def split_space(space: gym.Space[Any]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Vectors (name to length) and cameras (name to (H, W, channels)) of an observation space."""
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
    vectors: dict[str, int] = {}
    cameras: dict[str, tuple[int, ...]] = {}
    for name, part in parts.items():
        shape = tuple(part.shape or ())
        if len(shape) == 1:
            vectors[name] = shape[0]
        elif len(shape) == 3 and part.dtype == np.uint8:
            cameras[name] = shape
        else:
            raise ConfigError(
                f"policies read vectors (d,) and images (H, W, channels) of uint8, but observation '{name}' has shape "
                f"{shape} and type {part.dtype}."
            )
    return vectors, cameras
