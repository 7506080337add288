"""Generalised advantage estimation."""

from __future__ import annotations

import torch


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    last_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    final_values: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of a rollout (Schulman et al., 2016, eq. 16).

    A terminated step has no future; a truncated one is valued by the observation the episode really ended with, not
    by the first one of the next episode. Neither lets the trace through (Pardo et al., 2018).

    Args:
        rewards: (num_steps, num_envs).
        values: (num_steps, num_envs), estimates for the observations acted on.
        last_value: (num_envs,), estimate for the observation after the last step.
        terminated: bool (num_steps, num_envs).
        truncated: bool (num_steps, num_envs).
        final_values: (num_steps, num_envs), estimates for final observations; read where truncated only.
        gamma: Discount.
        gae_lambda: Trace decay.

    Returns:
        Advantages and returns (targets of the value), (num_steps, num_envs) each.
    """
    ahead = torch.cat([values[1:], last_value[None]])
    ahead = torch.where(truncated, final_values, ahead).masked_fill(terminated, 0.0)
    advantages = rewards + gamma * ahead - values
    decay = (~(terminated | truncated)).to(rewards.dtype) * (gamma * gae_lambda)
    for step in range(len(rewards) - 2, -1, -1):
        advantages[step].addcmul_(decay[step], advantages[step + 1])
    return advantages, advantages + values
