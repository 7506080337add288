"""Behaviour cloning: to do as was shown, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plaudit.config.algorithm_schema import BCConfig
from plaudit.errors import NonFiniteError, PlauditError
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback, Wanted
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.buffers.replay_storage import ReplayLog, replay_for
from plaudit.rl.checkpoint import check_complete
from plaudit.rl.observations import ObsDim, PolicyObs, map_obs
from plaudit.rl.policies.base import Policy


class BC(BaseAlgorithm):
    """Behaviour cloning (Pomerleau, 1988): supervised learning of actions from observations. It takes no step in the
    env and knows no reward, so that what another algorithm makes of the same demonstrations can be held against it.

    Any policy will do. Of one that also has critics, they stay as they are.

    Attributes:
        buffer: What was shown.
    """

    buffer: ReplayBuffer

    def __init__(self, cfg: BCConfig, policy: Policy) -> None:
        self.cfg, self.policy = cfg, policy
        self.gradient_steps = cfg.updates
        self.wants = Wanted(cfg.demonstrations, cfg.num_demonstrations, rewarded=False)
        self.optimizer = torch.optim.Adam(policy.parameters(), cfg.learning_rate)
        self._transitions = torch.zeros(0, dtype=torch.int64)
        self._keeper: ReplayLog | None = None

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        """Takes note of the sizes only: nothing is tried that would have to be kept."""
        self._dims = obs_dim, action_dim

    def show(self, demonstrations: ReplayBuffer) -> None:
        """Takes what somebody has shown. Its rewards are not looked at."""
        self._take(demonstrations)
        self.policy.learn_statistics(demonstrations.obs(self._transitions))

    def _take(self, demonstrations: ReplayBuffer, kept: Mapping[str, Any] | None = None) -> None:
        """Makes some demonstrations ours, after filling them with those that a checkpoint tells to be `kept`."""
        self.buffer = demonstrations
        if self.folder is not None:
            self._keeper = ReplayLog(demonstrations, self.folder / "demonstrations")
            if kept is not None:
                self._keeper.load(kept)
        self._transitions = demonstrations.transitions()
        self._spread = map_obs(_deviation, demonstrations.obs(self._transitions))

    def collect_rollout(
        self,
        env: Any,
        policy: Policy,
        obs: PolicyObs,
        num_steps: int,
        on_step_callback: StepCallback | None = None,
    ) -> dict[str, Any]:
        """Tries nothing: all that is learned from was shown before."""
        return {}

    def update(self) -> dict[str, float]:
        if not len(self._transitions):
            raise PlauditError("behaviour cloning has nothing to learn from: BC.show was not called.")
        losses = [self._learn() for _ in range(self.cfg.updates)]
        return {"loss": float(torch.stack(losses).mean())}

    def _learn(self) -> torch.Tensor:
        """One gradient step; its loss."""
        known = self._transitions
        slots = known[torch.randint(len(known), (self.cfg.batch_size,), device=known.device)]
        obs = self.buffer.obs(slots)
        if self.cfg.noise:
            obs = _blurred(obs, self._spread, self.cfg.noise)
        loss = self._loss(obs, self.buffer.columns["action"][slots])
        if not torch.isfinite(loss):
            raise NonFiniteError(
                f"the loss of behaviour cloning is {loss.item()}. The step was not taken. Lower "
                "algorithm.cfg.learning_rate, or take algorithm.cfg.loss=mse."
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def _loss(self, obs: PolicyObs, action: torch.Tensor) -> torch.Tensor:
        """Of a batch."""
        if self.cfg.loss == "mse":
            return (self.policy.act(obs, deterministic=True) - action).square().mean()
        return -self.policy.log_prob(obs, action).mean()

    def save_data(self) -> None:
        if self._keeper is not None:
            self._keeper.save()

    def state_dict(self) -> dict[str, Any]:
        kept = {} if self._keeper is None else {"demonstrations": self._keeper.state_dict()}
        return {"optimizer": self.optimizer.state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_complete(state, ("optimizer",), "behaviour cloning")
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self.cfg.learning_rate  # What the config says now.
        if (kept := state.get("demonstrations")) is not None and self.folder is not None:
            self._take(replay_for(kept, *self._dims, self.policy.device), kept)


def _deviation(part: torch.Tensor) -> torch.Tensor:
    """Of each number of a vector, (d,), over (n, d); nothing of pictures."""
    return part.std(0, correction=0) if part.is_floating_point() else torch.zeros((), device=part.device)


def _blurred(obs: PolicyObs, spread: PolicyObs, noise: float) -> PolicyObs:
    """Observations with noise on their vectors, in units of `spread`: what a policy meets is never quite what was
    shown, and its answer should not hang on the difference.
    """
    if isinstance(obs, dict) and isinstance(spread, dict):
        return {key: _blur(part, spread[key], noise) for key, part in obs.items()}
    assert isinstance(obs, torch.Tensor) and isinstance(spread, torch.Tensor)
    return _blur(obs, spread, noise)


def _blur(part: torch.Tensor, spread: torch.Tensor, noise: float) -> torch.Tensor:
    return part + noise * spread * torch.randn_like(part) if part.is_floating_point() else part
