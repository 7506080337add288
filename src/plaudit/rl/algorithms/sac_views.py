"""What SAC's networks are shown of transitions: numbers as they are, and pictures through an encoder."""

from __future__ import annotations

from typing import NamedTuple

import torch

from plaudit.rl.augment import moved_images
from plaudit.rl.box_policy import cameras_of, join
from plaudit.rl.encoders import ImageEncoder
from plaudit.rl.obs import PolicyObs
from plaudit.rl.replay import Batch
from plaudit.rl.sac_policy import SACPolicy


class View(NamedTuple):
    """What networks are shown of n transitions, (n, d) each.

    Attributes:
        obs: Where the actions were taken: for critics and actor.
        next_obs: Where they led to: for the actor.
        target_obs: The same for the target critics, whose encoder is another.
        image: The encoder's part of `obs`, (n, features), and the way back from it; `None` without pictures.
    """

    obs: torch.Tensor
    next_obs: torch.Tensor
    target_obs: torch.Tensor
    image: torch.Tensor | None


class Viewer:
    """Shows transitions to a policy and to its target critics.

    Every picture is moved on its own: where an action was taken and where it led to, each camera, each time that a
    transition is drawn (DrQ; Yarats et al., 2021, with one move for each). Critics and actor are shown the same.

    Args:
        policy: Whose encoder it is.
        target: The target critics' encoder; `None` where the policy has none.
        shift: Pixels, at most, by which pictures are moved.
    """

    def __init__(self, policy: SACPolicy, target: ImageEncoder | None, shift: int) -> None:
        self.policy, self.target, self.shift = policy, target, shift

    def show(self, batch: Batch) -> View:
        """Called without gradients; `View.image` has its own nevertheless."""
        obs, next_obs = (
            self.policy.vector(side) if self.policy.vectors else None for side in (batch.obs, batch.next_obs)
        )
        encoder, target = self.policy.encoder, self.target
        if encoder is None or target is None:
            return View(join(obs), join(next_obs), join(next_obs), None)
        seen, next_seen = (self._pictures(encoder, side) for side in (batch.obs, batch.next_obs))
        with torch.enable_grad():
            image = encoder(seen)
        return View(
            join(obs, image.detach()), join(next_obs, encoder(next_seen)), join(next_obs, target(next_seen)), image
        )

    def _pictures(self, encoder: ImageEncoder, obs: PolicyObs) -> dict[str, torch.Tensor]:
        """What encoders are given: pictures, or what a frozen one makes of them, once for all who ask."""
        every = cameras_of(obs)
        seen = {name: every[name] for name in encoder.names}
        if self.shift:
            seen = {name: moved_images(images, self.shift) for name, images in seen.items()}
        return encoder.digest(seen) if encoder.frozen else seen
