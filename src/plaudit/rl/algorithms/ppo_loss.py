"""PPO's loss, and its gradient with respect to what the policy says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from plaudit.config.algorithms import PPOConfig
from plaudit.errors import PlauditError


class PPOLoss(NamedTuple):
    """The loss on one minibatch of n samples, sample by sample, and its gradient; (n,) each.

    Attributes:
        objective: The clipped objective, which is maximised.
        error: Value minus return, of which the square is minimised.
        entropy: The policy's.
        log_ratio: Logarithm of new over old probability.
        d_logprob, d_value: Gradient of `-mean(objective) + vf_coef * mean(error²)`.
    """

    objective: torch.Tensor
    error: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor
    d_logprob: torch.Tensor
    d_value: torch.Tensor


def ppo_loss(
    logprob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    cfg: PPOConfig,
) -> PPOLoss:
    """The clipped objective (Schulman et al., 2017, eq. 7 and 9) with its gradient written out, which is a third of
    the operations that autograd needs for it.

    Args:
        logprob: (n,), of the policy as it is now.
        entropy: (n,), likewise.
        value: (n,), likewise.
        batch: (n,) each: `logprobs` and `values` from when the actions were taken, `advantages`, `returns`.
        cfg: Coefficients.
    """
    _check_shapes(batch["returns"].shape, log_prob=logprob, entropy=entropy, value=value)
    count = len(logprob)
    advantage = batch["advantages"]
    if cfg.normalize_advantage and count > 1:
        std, mean = torch.std_mean(advantage)
        advantage = (advantage - mean) / (std + 1e-8)
    log_ratio = logprob - batch["logprobs"]
    ratio = log_ratio.exp()
    gain = ratio * advantage
    clipped = ratio.clamp(1.0 - cfg.clip_coef, 1.0 + cfg.clip_coef) * advantage
    # Where the clipped term is the smaller one, it is a constant and has no gradient.
    d_logprob = (gain * (-1.0 / count)).masked_fill_(gain > clipped, 0.0)
    error = value - batch["returns"]
    d_value = error * (2.0 * cfg.vf_coef / count)
    if cfg.clip_value is not None:
        change = value - batch["values"]
        error = change.clamp(-cfg.clip_value, cfg.clip_value) + batch["values"] - batch["returns"]
        d_value = (error * (2.0 * cfg.vf_coef / count)).mul_(change.abs() <= cfg.clip_value)
    return PPOLoss(torch.minimum(gain, clipped), error, entropy, log_ratio, d_logprob, d_value)


def _check_shapes(expected: torch.Size, **given: torch.Tensor) -> None:
    """A column instead of a vector would broadcast to a square, and learn nonsense without a word."""
    for name, value in given.items():
        if value.shape != expected:
            raise PlauditError(
                f"evaluate_actions returned a {name} of shape {tuple(value.shape)}, but must return one number a "
                f"sample, {tuple(expected)}."
            )


def summarise(losses: Sequence[PPOLoss], clip_coef: float) -> dict[str, float]:
    """Numbers to log of some minibatches, computed once for all of them, which is cheaper than one by one."""
    objective, error, entropy, log_ratio, _, _ = (torch.cat(column) for column in zip(*losses, strict=True))
    ratio = log_ratio.exp()
    return {
        "actor_loss": -float(objective.mean()),
        "value_loss": float(error.square().mean()),
        "entropy": float(entropy.mean()),
        # The low-variance estimate of the divergence, http://joschu.net/blog/kl-approx.html.
        "approx_kl": float((ratio - 1.0 - log_ratio).mean()),
        "clip_fraction": float(((ratio - 1.0).abs() > clip_coef).float().mean()),
    }


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """How much of the returns' variance the values foretell: 1 is all, 0 no more than a constant does."""
    variance = returns.var()
    return float(1.0 - (returns - values).var() / variance) if variance > 0 else float("nan")
