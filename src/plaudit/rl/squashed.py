"""The tanh-squashed Gaussian, with a standard deviation that depends on the observation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import softplus

from plaudit.rl.gaussian import LOG_2PI

LOG_STD = (-20.0, 2.0)
"""The logarithm of the standard deviation is kept within these, as in the paper's code."""

ALMOST_ONE = 1.0 - 2.0**-24
"""The largest float32 below one: squashed actions are kept within it, so that their inverse exists."""


class Draw(NamedTuple):
    """Actions that were drawn, and what their gradient needs; (n, action_dim) each, `log_prob` (n,).

    Attributes:
        action: Within -1 and 1.
        log_prob: Logarithm of its density.
        spread: Standard deviation times noise: how far from the mean it lies before the squashing.
        free: 1 where the standard deviation is within its bounds, else 0.
    """

    action: torch.Tensor
    log_prob: torch.Tensor
    spread: torch.Tensor
    free: torch.Tensor


def draw(outputs: torch.Tensor, noise: torch.Tensor) -> Draw:
    """Actions by reparameterisation.

    Args:
        outputs: (n, 2 action_dim), the actor's: means, then logarithms of standard deviations.
        noise: (n, action_dim), standard normal.
    """
    mean, raw = outputs.chunk(2, -1)
    log_std = raw.clamp(*LOG_STD)
    spread = log_std.exp() * noise
    before = mean + spread
    gaussian = noise.square().mul_(0.5).add_(log_std)
    return Draw(
        before.tanh(), -(gaussian + log_slope(before)).sum(-1) - _constant(mean), spread, raw.eq(log_std).float()
    )


def log_prob(outputs: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Log density (n,) of the actions whose inverse tanh is `before`, (n, action_dim)."""
    mean, raw = outputs.chunk(2, -1)
    log_std = raw.clamp(*LOG_STD)
    gaussian = ((before - mean) * (-log_std).exp()).square().mul(0.5) + log_std
    return -(gaussian + log_slope(before)).sum(-1) - _constant(mean)


def log_slope(before: torch.Tensor) -> torch.Tensor:
    """log(1 - tanh²u), as 2 (log 2 - u - softplus(-2u)): it neither overflows nor loses all digits far from 0."""
    return 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))


def _constant(mean: torch.Tensor) -> float:
    return 0.5 * LOG_2PI * mean.shape[-1]


def backward(drawn: Draw, d_action: torch.Tensor, d_log_prob: torch.Tensor | float) -> torch.Tensor:
    """Gradient of the actor's outputs, (n, 2 action_dim).

    With u = mean + spread: d action / d u = 1 - action², d log_prob / d u = 2 action, and apart from u
    d log_prob / d log_std = -1.

    Args:
        drawn: What `draw` gave.
        d_action: (n, action_dim), the loss's gradient by the action.
        d_log_prob: The loss's gradient by each log_prob, a number.
    """
    action = drawn.action
    d_before = d_action * (1.0 - action.square()) + action * (2.0 * d_log_prob)
    d_log_std = (d_before * drawn.spread - d_log_prob) * drawn.free
    return torch.cat([d_before, d_log_std], -1)
