"""Soft actor-critic, and with demonstrations RLPD."""

from __future__ import annotations

import math
from typing import Any

import torch

from plaudit.config.algorithms import SACConfig
from plaudit.errors import ConfigError, NonFiniteError, PlauditError
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback
from plaudit.rl.algorithms.sac_learner import Losses, SACLearner
from plaudit.rl.obs import ObsDim, PolicyObs, flat
from plaudit.rl.pace import Pace
from plaudit.rl.policy import Policy
from plaudit.rl.relabel import settle
from plaudit.rl.renewal import renew
from plaudit.rl.replay import Batch, Replay
from plaudit.rl.replay_files import Keeper, ReplayLog, as_words, from_words, open_replay
from plaudit.rl.sac_policy import SACPolicy

TOGETHER = 64 * 2**20
"""Bytes of transitions that are drawn together, at most."""


UNSETTLED = -1
"""Version of a reward that nobody has given yet."""


class SAC(BaseAlgorithm):
    """SAC (Haarnoja et al., 2018): learns from all that was ever tried. With demonstrations, half of every batch is
    theirs, and with many critics, LayerNorm and many updates it is RLPD (Ball et al., 2023).

    Attributes:
        buffer: What was tried.
        demonstrations: What was shown, or `None`.
        pace: How many gradient steps are due.
    """

    buffer: Replay
    relabels = True

    def __init__(self, cfg: SACConfig, policy: Policy) -> None:
        if not isinstance(policy, SACPolicy):
            raise ConfigError(f"algorithm.name 'sac' trains the policy 'sac', not {type(policy).__name__}.")
        if cfg.min_critics > policy.critics.members:
            raise ConfigError(
                f"algorithm.cfg.min_critics is {cfg.min_critics}, but policy.cfg.num_critics is only "
                f"{policy.critics.members}."
            )
        self.cfg, self.policy = cfg, policy
        self.device = torch.device(policy.device)
        self.learner = SACLearner(cfg, policy)
        self.pace = Pace(cfg.update_ratio, cfg.learning_starts)
        self.demonstrations: Replay | None = None
        self._keeper: Keeper | None = None
        self._shown: Keeper | None = None
        self._judge = 0

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        self._dims = obs_dim, action_dim
        self.buffer, self._keeper = open_replay(
            self.cfg.capacity,
            num_envs,
            obs_dim,
            action_dim,
            self.device,
            extras=None if self.relabelled is None else self.relabelled.remember(),
            storage=self.cfg.storage,
            folder=self.folder,
        )

    def show(self, demonstrations: Replay) -> None:
        """Has a share of every batch drawn from what somebody has shown, from now on."""
        self.demonstrations = demonstrations
        self._shown = None if self.folder is None else ReplayLog(demonstrations, self.folder / "demonstrations")

    @torch.no_grad()
    def collect_rollout(
        self,
        env: Any,
        policy: Policy,
        obs: PolicyObs,
        num_steps: int,
        on_step_callback: StepCallback | None = None,
    ) -> dict[str, Any]:
        self.buffer.follow(obs)
        self._renew()
        who, places = self.relabelled, []
        for _ in range(num_steps):
            action = self._act(obs, env.num_envs)
            step = env.step(action)
            next_obs = flat(step.obs)
            final_obs = None if step.final_obs is None else flat(step.final_obs)
            if on_step_callback is not None:  # First, since it refuses numbers that must never be learned from.
                on_step_callback(obs, action, step.reward, step.done, step.info, next_obs)
            told = step.reward, step.terminated, step.truncated
            # Until a reward that comes afterwards is settled, it is nobody's: what interrupts that has it given again.
            version, extras = (0, {}) if who is None else (UNSETTLED, who.seen())
            places.append(self.buffer.add(obs, action, *told, next_obs, final_obs, version=version, extras=extras))
            self.pace.steps += env.num_envs
            obs = next_obs
        settled = settle(env)
        if settled is not None:
            self.buffer.columns["reward"][torch.stack(places)] = settled.reward
        if who is not None:
            self.buffer.columns["version"][torch.stack(places)] = who.version
        return {}

    def _act(self, obs: PolicyObs, num_envs: int) -> torch.Tensor:
        """Actions to explore with: at first any, then the actor's."""
        assert isinstance(self.policy, SACPolicy)
        if self.pace.steps >= self.cfg.learning_starts:
            return self.policy.act(obs)
        return self.policy.to_space(torch.rand(num_envs, len(self.policy.reach), device=self.device) * 2.0 - 1.0)

    def update(self) -> dict[str, float]:
        """Takes the gradient steps that are due; batches for many of them are drawn together."""
        done: list[tuple[int, Losses]] = []
        while (owed := self.pace.owed) > 0:
            count = min(owed, self._together)
            losses = self.learner.learn(self._batch(count), count)
            self.pace.updates += count
            if not math.isfinite(losses.critic_loss):
                raise NonFiniteError(
                    f"SAC's critics are lost: their loss is {losses.critic_loss}. Look for huge rewards or "
                    "observations, or lower algorithm.cfg.learning_rate."
                )
            done.append((count, losses))
        metrics = {"updates": float(self.pace.updates), "replay_size": float(len(self.buffer))}
        if not done:
            return metrics
        total = sum(count for count, _ in done)
        means = {name: sum(count * getattr(one, name) for count, one in done) / total for name in Losses._fields}
        return metrics | {name: value for name, value in means.items() if not math.isnan(value)}

    @property
    def _together(self) -> int:
        """Gradient steps whose batches are drawn together."""
        each = sum(column.nbytes for column in self.buffer.columns.values()) / self.buffer.slots
        return max(1, int(TOGETHER / (2 * each * self.cfg.batch_size)))

    def _batch(self, count: int) -> Batch:
        """Transitions for `count` gradient steps, of which each has its share of demonstrations."""
        cfg = self.cfg
        if self.demonstrations is None:
            if cfg.demonstrations is not None:
                raise PlauditError("algorithm.cfg.demonstrations is given, but SAC.show was not called with them.")
            return self.buffer.sample(count * cfg.batch_size, cfg.n_step, cfg.gamma)
        shown = round(cfg.batch_size * cfg.demonstration_share)
        sides = [
            source.sample(count * size, cfg.n_step, cfg.gamma)
            for source, size in ((self.demonstrations, shown), (self.buffer, cfg.batch_size - shown))
        ]
        return Batch(*(_interleaved(list(parts), count) for parts in zip(*sides, strict=True)))

    def _renew(self) -> None:
        """Has all rewards given again, in place, where somebody else gives them by now."""
        who = self.relabelled
        if who is None or who.version == self._judge:
            return
        self._judge = who.version
        for replay, keeper in ((self.buffer, self._keeper), (self.demonstrations, self._shown)):
            if replay is not None and renew(replay, who) and keeper is not None:
                keeper.changed("reward", "terminated", "ended", "version")

    def save_data(self) -> None:
        for keeper in (self._keeper, self._shown):
            if keeper is not None:
                keeper.save()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"learner": self.learner.state_dict(), "pace": self.pace.state_dict()}
        if self._keeper is not None:
            state["replay"] = self._keeper.state_dict()
        if self._shown is not None and self.demonstrations is not None:
            state["demonstrations"] = self._shown.state_dict() | {"extras": as_words(self.demonstrations.extras)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.pace.load_state_dict(state["pace"])
        if self._keeper is None or "replay" not in state:
            return
        self._keeper.load(state["replay"])
        if (shown := state.get("demonstrations")) is not None:
            self.show(Replay(shown["rows"], 1, *self._dims, self.device, extras=from_words(shown["extras"])))
            assert self._shown is not None
            self._shown.load(shown)


def _interleaved(parts: list[Any], count: int) -> Any:
    """Batches of several sources as one, in which each of `count` equal shares has some of every source."""
    if isinstance(parts[0], dict):
        return {key: _interleaved([part[key] for part in parts], count) for key in parts[0]}
    return torch.cat([part.unflatten(0, (count, -1)) for part in parts], 1).flatten(0, 1)
