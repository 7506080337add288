"""Pictures moved by some pixels, of which a policy should think what it thinks of the true ones.

PPO compares what the policy says now with what it said when it acted, and it acted on the true pictures. An action's
probability under a moved picture would look, in PPO's ratio, like a change of the policy. So moved pictures are no part
of PPO's own loss; beside it, the policy is drawn to say of them what it says of the true ones (DrAC; Raileanu et al.,
2021).
"""

from __future__ import annotations

import torch

from plaudit.errors import ConfigError
from plaudit.rl.observations import ObsDim, PolicyObs, map_obs
from plaudit.vision.random_shift import moved_pixels


def check_shift(most: int, obs_dim: ObsDim) -> None:
    """Raises a `ConfigError` where pictures are to be moved and none are observed."""
    pictures = isinstance(obs_dim, dict) and any(len(shape) == 3 for shape in obs_dim.values())
    if most and not pictures:
        raise ConfigError("algorithm.cfg.image_shift moves pictures, but the env observes none; set it to 0.")


def moved(obs: PolicyObs, most: int) -> PolicyObs:
    """Observations (n, ...) in which every picture is moved by up to `most` pixels each way, each camera on its own."""
    return map_obs(lambda part: moved_images(part, most) if part.dim() == 4 else part, obs)


def moved_images(images: torch.Tensor, most: int) -> torch.Tensor:
    """Pictures (n, H, W, channels), each moved by up to `most` pixels each way."""
    count, height, width, channels = images.shape
    shift = torch.randint(-most, most + 1, (count, 2))
    # Counted through all pictures, so that a pixel is copied as one, with all of its channels.
    pixels = moved_pixels(shift, height, width).add_(torch.arange(count)[:, None] * (height * width))
    return images.reshape(-1, channels).index_select(0, pixels.flatten().to(images.device)).view(images.shape)


def disagreement(
    logprob: torch.Tensor, value: torch.Tensor, moved_logprob: torch.Tensor, moved_value: torch.Tensor, weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of `weight` times the mean of KL(true, moved) + (true value - moved value)², for the moved side alone:
    the true one is what it is drawn to.

    The divergence is half the squared difference of log-probabilities of the action that was taken. To second order its
    mean is the divergence, and it is zero for each sample, not only in the mean, where both sides agree.

    Args:
        logprob: (n,), of the actions taken, given the true pictures.
        value: (n,), likewise.
        moved_logprob: (n,), given the moved ones.
        moved_value: (n,), likewise.
        weight: Of the whole.

    Returns:
        Gradients with respect to `moved_logprob` and `moved_value`, (n,) each.
    """
    each = weight / len(logprob)
    return (moved_logprob - logprob) * each, (moved_value - value) * (2.0 * each)
