"""What SAC's networks are shown of transitions: numbers as they are, and pictures through an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from plaudit.rl.augment import moved_images
from plaudit.rl.box_policy import cameras_of, join
from plaudit.rl.encoders import ImageEncoder
from plaudit.rl.obs import PolicyObs, map_obs
from plaudit.rl.replay import Batch
from plaudit.rl.sac_policy import SACPolicy


class View(NamedTuple):
    """What networks are shown of n transitions in one gradient step, which uses it up: behind every observation is room
    for an action, so that critics are given both without copying, and those drawn take the place of those taken.

    Attributes:
        both: (2, n, d + action_dim): first where the actions led to, then where they were taken, with the actions that
            were; for critics and actor.
        ahead: (n, d + action_dim), where they led to for the target critics, whose encoder is another.
        image: The encoder's part of where they were taken, (n, features), and the way back from it; `None` without
            pictures.
    """

    both: torch.Tensor
    ahead: torch.Tensor
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

    def shares(self, batch: Batch, count: int) -> Iterator[View]:
        """`count` equal shares of a batch, each shown when its turn comes: an encoder learns from one to the next."""
        if self.policy.encoder is None:  # Numbers stay what they are, and are laid out for all at once.
            next_obs, obs = (self.policy.vector(side) for side in (batch.next_obs, batch.obs))
            yield from (
                View(both, both[0], None) for both in _laid(count, next_obs, obs, self.policy.to_unit(batch.action))
            )
            return
        each = len(batch.action) // count
        for start in range(0, count * each, each):
            yield self.show(_part(batch, slice(start, start + each)))

    def show(self, batch: Batch) -> View:
        """Transitions with pictures. Called without gradients; `View.image` has its own nevertheless."""
        policy, encoder, target = self.policy, self.policy.encoder, self.target
        assert encoder is not None and target is not None
        seen, next_seen = (self._pictures(encoder, side) for side in (batch.obs, batch.next_obs))
        with torch.enable_grad():
            image = encoder(seen)
        next_vector, vector = (policy.vector(side) if policy.vectors else None for side in (batch.next_obs, batch.obs))
        next_obs, obs = join(next_vector, encoder(next_seen)), join(vector, image.detach())
        (both,) = _laid(1, next_obs, obs, self.policy.to_unit(batch.action))
        ahead = both[0].clone()
        numbers = sum(policy.vectors.values())
        ahead[:, numbers : numbers + encoder.features] = target(next_seen)
        return View(both, ahead, image)

    def _pictures(self, encoder: ImageEncoder, obs: PolicyObs) -> dict[str, torch.Tensor]:
        """What encoders are given: pictures, or what a frozen one makes of them, once for all who ask."""
        every = cameras_of(obs)
        seen = {name: every[name] for name in encoder.names}
        if self.shift:
            seen = {name: moved_images(images, self.shift) for name, images in seen.items()}
        return encoder.digest(seen) if encoder.frozen else seen


def _laid(count: int, next_obs: torch.Tensor, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """`count` shares of observations, (n, d) each, and actions, (n, action_dim), as `View.both` has them."""
    length = obs.shape[-1]
    laid = obs.new_empty(count, 2, len(obs) // count, length + action.shape[-1])
    for number, side in enumerate((next_obs, obs)):
        laid[:, number, :, :length] = side.reshape(count, -1, length)
    laid[:, 1, :, length:] = action.reshape(count, -1, action.shape[-1])
    return laid


def _part(batch: Batch, part: slice) -> Batch:
    """Some of a batch."""
    obs, next_obs = (map_obs(lambda value: value[part], side) for side in (batch.obs, batch.next_obs))
    return Batch(obs, batch.action[part], batch.reward[part], batch.discount[part], next_obs)
