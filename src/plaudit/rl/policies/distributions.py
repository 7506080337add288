"""Action distributions: the diagonal Gaussian, and the tanh-squashed Gaussian."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import softplus

LOG_2PI = math.log(2.0 * math.pi)


def gaussian_log_prob(mean: torch.Tensor, log_std: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Log density (n,) of x (n, d) under means (n, d) and one standard deviation (d,)."""
    squares = ((x - mean) * (-log_std).exp()).square()
    constant = log_std.sum() + 0.5 * LOG_2PI * len(log_std)
    return torch.sub(-constant, squares.sum(-1), alpha=0.5)


aten = torch.ops.aten

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
        raw: Logarithm of the standard deviation as the actor has put it out, which may be out of bounds.
    """

    action: torch.Tensor
    log_prob: torch.Tensor
    spread: torch.Tensor
    raw: torch.Tensor

    def rows(self, which: slice) -> Draw:
        """Some of the n."""
        return Draw(*(part[which] for part in self))


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
    rarity = torch.addcmul(log_std, noise, noise, value=0.5).add_(_bend(before), alpha=2.0)
    return Draw(before.tanh(), _constant(mean) - rarity.sum(-1), spread, raw)


def log_prob(outputs: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Log density (n,) of the actions whose inverse tanh is `before`, (n, action_dim)."""
    mean, raw = outputs.chunk(2, -1)
    log_std = raw.clamp(*LOG_STD)
    noise = (before - mean) * (-log_std).exp()
    rarity = torch.addcmul(log_std, noise, noise, value=0.5) + 2.0 * _bend(before)
    return _constant(mean) - rarity.sum(-1)


def log_slope(before: torch.Tensor) -> torch.Tensor:
    """log(1 - tanh²u), as 2 (log 2 - u - softplus(-2u)): it neither overflows nor loses all digits far from 0."""
    return 2.0 * (math.log(2.0) + _bend(before))


def _bend(before: torch.Tensor) -> torch.Tensor:
    """-u - softplus(-2u): half of `log_slope`, less its constant."""
    # With a β of -2, torch's softplus, log(1 + exp(βu)) / β, is half of -softplus(-2u) at once.
    return softplus(before, beta=-2.0).mul(2.0).sub(before)


def _constant(mean: torch.Tensor) -> float:
    """What is the same in every log density: Gaussian's and slope's."""
    return -(0.5 * LOG_2PI + 2.0 * math.log(2.0)) * mean.shape[-1]


def backward(drawn: Draw, d_action: torch.Tensor, d_log_prob: torch.Tensor) -> torch.Tensor:
    """Gradient of the actor's outputs, (n, 2 action_dim).

    With u = mean + spread: d action / d u = 1 - action², d log_prob / d u = 2 action, and apart from u
    d log_prob / d log_std = -1.

    Args:
        drawn: What `draw` gave.
        d_action: (n, action_dim), the loss's gradient by the action.
        d_log_prob: (1,), the loss's gradient by each log_prob.
    """
    d_before = aten.tanh_backward(d_action, drawn.action).addcmul_(drawn.action, d_log_prob, value=2.0)
    free = drawn.raw.clamp(*LOG_STD).eq(drawn.raw)  # Beyond its bounds the standard deviation does not move.
    return torch.cat([d_before, (d_before * drawn.spread).sub_(d_log_prob).mul_(free)], -1)
