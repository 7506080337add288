"""Soft actor-critic, and with demonstrations RLPD."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import torch

from plaudit.config.algorithm_schema import SACConfig
from plaudit.errors import CheckpointError, ConfigError, NonFiniteError, PlauditError
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback, Wanted
from plaudit.rl.algorithms.sac_update import Losses, SACLearner
from plaudit.rl.algorithms.update_ratio import Pace
from plaudit.rl.buffers.replay_buffer import Allocate, Batch, ReplayBuffer
from plaudit.rl.buffers.replay_relabel import UNSETTLED, relabel_replay
from plaudit.rl.buffers.replay_storage import Keeper, ReplayLog, open_replay, replay_for
from plaudit.rl.checkpoint import check_complete
from plaudit.rl.image_augmentation import check_shift
from plaudit.rl.observations import ObsDim, PolicyObs, flat
from plaudit.rl.policies.base import Policy
from plaudit.rl.policies.sac_policy import SACPolicy
from plaudit.rl.reward_source import settle

CHOICE = ("demonstrations", "num_demonstrations", "demonstration_outcome")
"""The keys that choose demonstrations."""

DRAWN = 64 * 2**20
"""Bytes of transitions that are drawn together, at most."""

OFTEN = 2.0
"""Steps of the actor for each env step above which they are many: SAC and RLPD take one in their papers."""

logger = logging.getLogger("plaudit")


class Learning(NamedTuple):
    """What one SAC gives to another that is to learn in its place.

    Attributes:
        state: Of the learner and of the pace, as `state_dict` has them.
        keeper: Of the buffer.
        demonstrations: If any were shown.
        shown: Their keeper.
    """

    state: dict[str, Any]
    keeper: Keeper | None
    demonstrations: ReplayBuffer | None
    shown: Keeper | None


class SAC(BaseAlgorithm):
    """SAC (Haarnoja et al., 2018): learns from all that was ever tried. With demonstrations, half of every batch is
    theirs, and with many critics, LayerNorm and many updates it is RLPD (Ball et al., 2023).

    Attributes:
        buffer: What was tried.
        demonstrations: What was shown, or `None`.
        pace: How many gradient steps are due.
        allocate: Gives the memory of the buffer; `None` takes some.
    """

    policy: SACPolicy
    buffer: ReplayBuffer
    relabels = True
    allocate: Allocate | None = None

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
        if cfg.demonstrations is not None:
            failures = cfg.demonstration_outcome == "any"
            self.wants = Wanted(cfg.demonstrations, cfg.num_demonstrations, failures=failures)
        self.demonstrations: ReplayBuffer | None = None
        self._keeper: Keeper | None = None
        self._shown: Keeper | None = None
        self._reward_fingerprint = 0
        self._digests = False

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        check_shift(self.cfg.image_shift, obs_dim)
        _advise(self.cfg.update_ratio, self.cfg.actor_interval)
        self._digests = self.policy.frozen and digests(self.cfg.image_shift, judged=self.relabelled is not None)
        obs_dim = self.policy.digested(obs_dim) if self._digests else obs_dim
        self._dims = obs_dim, action_dim
        self._check_room(num_steps, num_envs)
        self.buffer, self._keeper = open_replay(
            self.cfg.capacity,
            num_envs,
            obs_dim,
            action_dim,
            self.device,
            extras=None if self.relabelled is None else self.relabelled.remember(),
            storage=self.cfg.storage,
            folder=self.folder,
            allocate=self.allocate,
        )

    def _check_room(self, num_steps: int, num_envs: int) -> None:
        """Refuses a ring in which a rollout would overwrite its own beginning before its rewards are settled."""
        # Every step may end an episode, whose last observation takes a slot more, and one slot waits for an action.
        least = (2 * num_steps + 1) * num_envs
        if self.cfg.capacity < least:
            raise ConfigError(
                f"algorithm.cfg.capacity is {self.cfg.capacity:,}, but one rollout of {num_steps} steps of {num_envs} "
                f"envs may take {least:,}. Set it to that or more, or lower runtime.rollout_steps."
            )

    def show(self, demonstrations: ReplayBuffer) -> None:
        """Has a share of every batch drawn from what somebody has shown, from now on."""
        if self._digests:
            demonstrations.change_obs(self.policy.digest)
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
        kept = self._kept(obs)
        self.buffer.follow(kept)
        self._renew()
        who, places = self.relabelled, []
        for _ in range(num_steps):
            action = self._act(kept, env.num_envs)
            step = env.step(action)
            next_obs = flat(step.obs)
            if on_step_callback is not None:  # First, since it refuses numbers that must never be learned from.
                on_step_callback(obs, action, step.reward, step.done, step.info, next_obs)
            told = step.reward, step.terminated, step.truncated
            # Deferred rewards are marked as unsettled, so that an interrupted run relabels them on resume.
            reward_id, extras = (0, {}) if who is None else (UNSETTLED, who.seen())
            final, following = (
                None if step.final_obs is None else self._kept(flat(step.final_obs)),
                self._kept(next_obs),
            )
            places.append(self.buffer.add(kept, action, *told, following, final, reward_id=reward_id, extras=extras))
            self.pace.steps += env.num_envs
            obs, kept = next_obs, following
        settled = settle(env)
        if settled is not None:
            self.buffer.columns["reward"][torch.stack(places)] = settled.reward.to(self.buffer.device)
        if who is not None:
            self.buffer.columns["reward_id"][torch.stack(places)] = who.reward_fingerprint
        return {}

    def _kept(self, obs: PolicyObs) -> PolicyObs:
        """Observations as they are remembered, and acted on."""
        return self.policy.digest(obs) if self._digests else obs

    def _act(self, obs: PolicyObs, num_envs: int) -> torch.Tensor:
        """Actions to explore with: at first any, unless the policy has been taught, then the actor's."""
        if not self.from_scratch or self.pace.steps >= self.cfg.learning_starts:
            return self.policy.act(obs)
        return self.policy.to_space(torch.rand(num_envs, len(self.policy.reach), device=self.device) * 2.0 - 1.0)

    def update(self) -> dict[str, float]:
        """Takes the gradient steps that are due; batches for many of them are drawn together."""
        done: list[tuple[int, Losses]] = []
        while (owed := self.pace.owed) > 0:
            done.append(self.learn(owed))
        metrics = {"updates": float(self.pace.updates), "replay_size": float(len(self.buffer))}
        if not done:
            return metrics
        means = {name: _mean([(count, getattr(one, name)) for count, one in done]) for name in Losses._fields}
        return metrics | {name: value for name, value in means.items() if value is not None}

    def learn(self, most: int) -> tuple[int, Losses]:
        """Takes gradient steps with batches that are drawn together, `most` of them at most; returns how many."""
        count = min(most, self._together)
        shown = 0 if self.demonstrations is None else self.cfg.shown
        losses = self.learner.learn(self.batch(count), count, shown)
        self.pace.updates += count
        if not math.isfinite(losses.critic_loss):
            raise NonFiniteError(
                f"SAC's critics are lost: their loss is {losses.critic_loss}. Look for huge rewards or "
                "observations, or lower algorithm.cfg.learning_rate."
            )
        return count, losses

    @property
    def _together(self) -> int:
        """Gradient steps whose batches are drawn together."""
        each = sum(column.nbytes for column in self.buffer.columns.values()) / self.buffer.slots
        return max(1, int(DRAWN / (2 * each * self.cfg.batch_size)))

    def batch(self, count: int) -> Batch:
        """Transitions for `count` gradient steps, of which each has its share of demonstrations."""
        cfg = self.cfg
        if self.demonstrations is None:
            if self.wants is not None:
                raise PlauditError("algorithm.cfg.demonstrations is given, but SAC.show was not called with them.")
            return self.buffer.sample(count * cfg.batch_size, cfg.n_step, cfg.gamma)
        shown = cfg.shown
        sides = [
            source.sample(count * size, cfg.n_step, cfg.gamma)
            for source, size in ((self.demonstrations, shown), (self.buffer, cfg.batch_size - shown))
        ]
        return Batch(*(_interleaved(list(parts), count) for parts in zip(*sides, strict=True)))

    @property
    def outdated(self) -> bool:
        """Whether somebody else gives rewards by now than gave those that are remembered, or by another rule: because
        the model was swapped, or because the run was resumed with another one or with other keys.
        """
        return self.relabelled is not None and self.relabelled.reward_fingerprint != self._reward_fingerprint

    def _renew(self) -> None:
        """Has all rewards given again, in place, where they are `outdated`."""
        who = self.relabelled
        if who is None or not self.outdated:
            return
        for replay, keeper in ((self.buffer, self._keeper), (self.demonstrations, self._shown)):
            if replay is not None and relabel_replay(replay, who) and keeper is not None:
                keeper.changed("reward", "terminated", "reward_id")
        self._reward_fingerprint = who.reward_fingerprint

    def hand_over(self) -> Learning:
        """What another SAC needs to learn in place of this one, which only acts from then on."""
        self._renew()
        state: dict[str, Any] = {"learner": self.learner.state_dict(), "pace": self.pace.state_dict()}
        given = Learning(state, self._keeper, self.demonstrations, self._shown)
        self.demonstrations = self._keeper = self._shown = None
        return given

    def load_handover(self, given: Learning, buffer: ReplayBuffer, keeper: Keeper | None) -> None:
        """Goes on with what another SAC has given, from a buffer that is kept by `keeper`."""
        self.load_state_dict(given.state)
        self.buffer, self._keeper = buffer, keeper
        self.demonstrations, self._shown = given.demonstrations, given.shown
        for replay, its_keeper in ((self.buffer, self._keeper), (self.demonstrations, self._shown)):
            if replay is not None and its_keeper is not None:
                its_keeper.replay = replay

    def save_data(self) -> None:
        for keeper in (self._keeper, self._shown):
            if keeper is not None:
                keeper.save()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"learner": self.learner.state_dict(), "pace": self.pace.state_dict()}
        if self._keeper is not None:
            state["replay"] = self._keeper.state_dict()
        if self._shown is not None:
            state["demonstrations"] = self._shown.state_dict()
            state["chosen"] = self._chosen
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_complete(state, ("learner", "pace", *(("replay",) if self._keeper is not None else ())), "SAC")
        self.learner.load_state_dict(state["learner"])
        self.pace.load_state_dict(state["pace"])
        if self._keeper is None:
            return
        self._check_shown(state)
        self._keeper.load(state["replay"])
        if (shown := state.get("demonstrations")) is not None:
            self.show(replay_for(shown, *self._dims, self.device))
            assert self._shown is not None
            self._shown.load(shown)

    @property
    def _chosen(self) -> dict[str, Any]:
        """By which keys the demonstrations were chosen."""
        return {key: getattr(self.cfg, key) for key in CHOICE}

    def _check_shown(self, state: dict[str, Any]) -> None:
        """Refuses to go on with other demonstrations than a run has had, and keeps."""
        if self.wants is not None and "demonstrations" not in state:
            raise CheckpointError(
                "the checkpoint is of a run without demonstrations, but algorithm.cfg.demonstrations names some. Begin "
                "a new run with runtime.resume, which takes up the policy alone, or leave the key as it was."
            )
        theirs = state.get("chosen", {})
        for key, ours in self._chosen.items():
            if key in theirs and theirs[key] != ours:
                raise CheckpointError(
                    f"algorithm.cfg.{key} is {ours!r}, but the demonstrations that the run keeps were chosen with "
                    f"{theirs[key]!r}. Leave it as it was, or begin a new run with runtime.resume, which takes up the "
                    "policy alone."
                )


def digests(image_shift: int, *, judged: bool) -> bool:
    """Whether what a frozen encoder makes of a picture, which never changes, is made once and kept in the picture's
    place: unless that is to be moved, or `judged` again by a reward model.
    """
    return not image_shift and not judged


def _mean(parts: list[tuple[int, float]]) -> float | None:
    """Of numbers and their weights, without those that are none; `None` where nothing is left."""
    known = [(weight, value) for weight, value in parts if not math.isnan(value)]
    if not known:
        return None
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)


def _interleaved(parts: list[Any], count: int) -> Any:
    """Batches of several sources as one, in which each of `count` equal shares has some of every source."""
    if isinstance(parts[0], dict):
        return {key: _interleaved([part[key] for part in parts], count) for key in parts[0]}
    return torch.cat([part.unflatten(0, (count, -1)) for part in parts], 1).flatten(0, 1)


def _advise(update_ratio: float, actor_interval: int) -> None:
    """Says so where the actor would take more steps than it should."""
    if update_ratio > OFTEN * actor_interval:
        logger.info(
            "The actor may take up to %g steps for each env step; one arm learned far more where it took one. Set "
            "algorithm.cfg.actor_interval to the gradient steps for each env step: %d, where learning keeps up.",
            update_ratio / actor_interval,
            math.ceil(update_ratio),
        )
