"""What the trainer asks of an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from plaudit.rl.obs import ObsDim, PolicyObs
from plaudit.rl.policy import Policy
from plaudit.rl.relabel import Relabelled

StepCallback: TypeAlias = Callable[
    [PolicyObs, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any], PolicyObs], None
]
"""Called after each env step with (obs, actions, reward, done, info, next_obs)."""


class BaseAlgorithm(ABC):
    """Collects data into its own buffer and learns from it.

    Attributes:
        policy: What it trains.
        buffer: Its storage, made by `initialize_buffer`.
        relabels: Whether `collect_rollout` asks `relabel.settle(env)` for the rewards of the whole rollout before it
            computes advantages. Where it does not, a learned reward is in each step.
        relabelled: Who gives the rewards where that is not the env itself. The trainer says so.
        folder: For what is too large for a checkpoint; `None` where nothing is kept. The trainer says so.
    """

    policy: Policy
    buffer: Any
    relabels: bool = False
    relabelled: Relabelled | None = None
    folder: Path | None = None

    @abstractmethod
    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        """Makes the buffer. `obs_dim` is the length of the one vector, or key to shape."""

    @abstractmethod
    def collect_rollout(
        self,
        env: Any,
        policy: Policy,
        obs: PolicyObs,
        num_steps: int,
        on_step_callback: StepCallback | None = None,
    ) -> dict[str, Any]:
        """Acts for `num_steps` from `obs`, fills the buffer, computes advantages, and returns things to log.

        Calls `on_step_callback` after each step: the trainer counts, checks and logs there.
        """

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Learns from the buffer and returns losses to log."""

    def progress(self, fraction: float) -> None:  # noqa: B027 (most algorithms have no schedule)
        """Is told, before each iteration, how much of the run is over, 0 to 1; for schedules."""

    def save_data(self) -> None:  # noqa: B027 (most algorithms keep nothing large)
        """Brings into `folder` what the checkpoint that is about to be written will need from there."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beyond the policy: here every optimiser found among the attributes."""
        return {name: value.state_dict() for name, value in vars(self).items() if _is_optimizer(value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer)
