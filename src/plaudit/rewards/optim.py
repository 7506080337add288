"""The optimizer of a fit, and its step size over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from plaudit.config.rewards import OptimConfig

WARMUP = 0.05
"""Share of a fit in which the step size grows, where the config does not say how many steps."""

DECAY = {"adam": 0.0, "adamw": 1e-2}
"""How much weights are shrunk, where the config does not say. To adam it is a part of the gradient, which it rescales:
what suits adamw would outweigh what is to be learned."""


def build_optimizer(parameters: Sequence[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that a config names. The fused form is the quickest, also on a CPU."""
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    decay = DECAY[config.optimizer] if config.weight_decay is None else config.weight_decay
    return kind(parameters, lr=config.lr, weight_decay=decay, fused=True)


def lr_factor(config: OptimConfig, progress: float, total_steps: int) -> float:
    """What the step size is multiplied with.

    Args:
        config: The schedule.
        progress: How much of the fit is done after the coming step, 0 to 1.
        total_steps: Steps in all.
    """
    warmup = WARMUP if config.warmup_steps is None else config.warmup_steps / total_steps
    if progress < warmup:
        return progress / warmup
    left = (1 - progress) / (1 - warmup) if warmup < 1 else 0.0
    if config.lr_schedule == "linear":
        return left
    return 1.0 if config.lr_schedule == "constant" else (1 - math.cos(math.pi * left)) / 2
