"""What the trainer asks of an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from plaudit.errors import PlauditError
from plaudit.rl.observations import ObsDim, PolicyObs
from plaudit.rl.policies.base import Policy
from plaudit.rl.reward_source import Relabelled

if TYPE_CHECKING:
    from plaudit.rl.buffers.replay_buffer import ReplayBuffer
    from plaudit.rl.checkpoint import CheckpointFolder

StepCallback: TypeAlias = Callable[
    [PolicyObs, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any], PolicyObs], None
]
"""Called after each env step with (obs, actions, reward, done, info, next_obs)."""


class Wanted(NamedTuple):
    """Demonstrations that an algorithm is to be shown.

    Attributes:
        place: A data set.
        episodes: How many of it; `None` for all that are good.
        rewarded: Whether their rewards are learned from; else they need have none.
        failures: Whether those that fail are good too.
    """

    place: str
    episodes: int | None = None
    rewarded: bool = True
    failures: bool = False


class BaseAlgorithm(ABC):
    """Collects data into its own buffer and learns from it.

    Attributes:
        policy: What it trains.
        buffer: Its storage, made by `initialize_buffer`.
        relabels: Whether `collect_rollout` asks `relabel.settle(env)` for the rewards of the whole rollout before it
            computes advantages. Where it does not, a learned reward is in each step.
        relabelled: Who gives the rewards where that is not the env itself. The trainer says so.
        wants: Demonstrations that whoever builds it is to find and to `show`; `None` where it learns without.
        from_scratch: Whether the policy knows nothing yet when training begins, so that chance acts as well as it does.
            Whoever loads another one's weights into it says so before the trainer is made.
        folder: For what is too large for a checkpoint; `None` where nothing is kept. The trainer says so.
        gradient_steps: Of an iteration, for an algorithm whose `collect_rollout` never acts: it is they that the
            trainer counts then. `None` where env steps are taken, and counted.
        learns_apart: Whether another process learns, so that a control loop may come before all else of the machine.
    """

    policy: Policy
    buffer: Any
    relabels: bool = False
    relabelled: Relabelled | None = None
    wants: Wanted | None = None
    from_scratch: bool = True
    folder: Path | None = None
    gradient_steps: int | None = None
    learns_apart: bool = False

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

    def show(self, demonstrations: ReplayBuffer) -> None:
        """Is given what somebody has shown, once its buffer is there; for an algorithm that `wants` some."""
        raise PlauditError(f"{type(self).__name__} does not learn from demonstrations.")

    def progress(self, fraction: float) -> None:  # noqa: B027 (most algorithms have no schedule)
        """Is told, before each iteration, how much of the run is over, 0 to 1; for schedules. Where a reward model was
        refreshed there is more to come, so that it may go back.
        """

    def rewards_are_new(self) -> None:  # noqa: B027 (most algorithms need not know)
        """Is told, between iterations, that another reward model gives the rewards from now on."""

    def catch_up(self, go_on: Callable[[], bool]) -> dict[str, float]:
        """Is called once no more steps are taken: learns what is still to be learned, asking all the while whether to
        `go_on`, and then nothing until it acts again. Returns losses to log, where there are any: most learn as they
        act.
        """
        return {}

    def flush(self) -> None:  # noqa: B027 (most write at once)
        """Returns once all that `save` was asked for is written."""

    @property
    def kind(self) -> str:
        """What checkpoints call it: only one of the same kind goes on from them."""
        return type(self).__name__

    def save(self, folder: CheckpointFolder, name: str, content: Mapping[str, Any]) -> None:
        """Writes a checkpoint: `content`, which is the trainer's and has the policy in it, and what it has learned."""
        self.save_data()
        folder.write(name, {**content, "algorithm_class": self.kind, "algorithm": self.state_dict()})

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
