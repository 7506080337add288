"""The side that acts: the algorithm of a trainer that never waits for learning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from plaudit.config.algorithm_schema import SACConfig
from plaudit.config.schema import PolicyConfig
from plaudit.envs.base import VecEnv
from plaudit.errors import ConfigError, EnvError, PlauditError
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.algorithms.sac_update import Losses
from plaudit.rl.async_.learner import BEST, RANDOM, LearnerSpec, Ring, Save, acting_part, letter
from plaudit.rl.async_.process import LearningProcess
from plaudit.rl.async_.shared_memory import SharedMemory
from plaudit.rl.async_.shared_state import Exchange
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.checkpoint import CheckpointFolder, pack
from plaudit.rl.observations import ObsDim, PolicyObs
from plaudit.rl.policies.base import Policy

logger = logging.getLogger("plaudit")

LOOK = 0.1
"""Seconds between looks at whether what is waited for has come."""

SAY = 10.0
"""Seconds between words on how much is still waited for."""


class Actor(BaseAlgorithm):
    """SAC, of which only the acting is done here: a process of its own learns.

    What was learned before is handed over to that process at the first rollout. From then on the weights of the policy
    here, all but the critics', follow those there.

    Args:
        sac: What is to be trained.
        env: The envs that are acted in, or others like them.
        policy: How the policy was built.
        device: Where is learned.
        threads: Of torch there.
        seed: Of the run.
        imports: Modules that register what the policy needs.
    """

    relabels = learns_apart = True

    def __init__(
        self,
        sac: SAC,
        env: VecEnv,
        policy: PolicyConfig,
        *,
        device: torch.device | str = "cpu",
        threads: int = 1,
        seed: int = 0,
        imports: Sequence[str] = (),
    ) -> None:
        self.sac, self.policy, self.wants = sac, sac.policy, sac.wants
        self.spaces, self.real_time = (env.observation_space, env.action_space), env.real_time
        self.policy_config, self.learns_on, self.threads = policy, str(device), threads
        self.seed, self.imports = seed, imports
        self.memory = SharedMemory()
        self._process: LearningProcess | None = None
        self._random: dict[str, Any] | None = None
        self._letter, self._acts_by, self._stale, self._waited = 0, 0, 0, 0.0
        self._totals = torch.zeros(len(Losses._fields), 2, dtype=torch.float64)
        self._told, self._idle, self._last = self._totals, 0.0, time.perf_counter()

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        sac = self.sac
        sac.relabelled, sac.folder, sac.allocate = self.relabelled, self.folder, self.memory.allocate
        sac.from_scratch = self.from_scratch
        least = 2 * _written(num_steps) * num_envs
        if sac.cfg.capacity < least:
            raise ConfigError(
                f"algorithm.cfg.capacity is {sac.cfg.capacity:,}, but with runtime.mode=async nothing is read of what "
                f"a rollout may overwrite: set it to {least:,} or more, or lower runtime.rollout_steps."
            )
        sac.initialize_buffer(num_steps, num_envs, obs_dim, action_dim)
        self.buffer = sac.buffer
        self.exchange = Exchange(self.memory.allocate, num_envs, letter(self.policy, self._totals, 0))

    def show(self, demonstrations: ReplayBuffer) -> None:
        self._check_not_begun("show")
        self.sac.show(demonstrations)

    @property
    def process(self) -> LearningProcess:
        """The process that learns, which begins with what there is when it is first asked for."""
        if self._process is None:
            sac, pace = self.sac, self.sac.pace
            self.exchange.reserve(sac.buffer.heads)
            self.exchange.publish(sac.buffer.heads, pace.steps)
            job = LearnerSpec(
                policy=self.policy_config,
                spaces=self.spaces,
                weights=pack(self.policy.state_dict()),
                cfg=SACConfig(**{part.name: getattr(sac.cfg, part.name) for part in fields(SACConfig)}),
                learning=sac.hand_over(),
                ring=Ring.of(sac.buffer, files=sac.cfg.storage == "disk"),
                device=self.learns_on,
                threads=self.threads,
                steps_back=self.real_time,
                folder=self.folder,
                seed=self.seed + pace.steps,
                random=self._random,
            )
            self._process = LearningProcess(job, self.memory, self.imports)
        return self._process

    @property
    def owed(self) -> int:
        """Gradient steps that are due and have not been taken."""
        self.sac.pace.updates = self.exchange.updates
        return self.sac.pace.owed

    def collect_rollout(
        self,
        env: Any,
        policy: Policy,
        obs: PolicyObs,
        num_steps: int,
        on_step_callback: StepCallback | None = None,
    ) -> dict[str, Any]:
        process, buffer = self._go_on(), self.sac.buffer
        if not env.real_time:
            self._hold_back(num_steps * env.num_envs)
        self.exchange.reserve(buffer.heads + _written(num_steps))

        def on_step(*step: Any) -> None:
            if on_step_callback is not None:
                on_step_callback(*step)
            process.listen()
            self._stale = max(self._stale, self.exchange.updates - self._acts_by)
            self._take_weights()
            if self.relabelled is None:  # Rewards of a model may be settled only when the rollout is over.
                self.exchange.publish(buffer.heads, self.sac.pace.steps)

        self._take_weights()
        try:
            found = self.sac.collect_rollout(env, policy, obs, num_steps, on_step)
        except BaseException:
            self.exchange.resting = True  # Nothing is learned from what `save` keeps of it: rewards may be unsettled.
            raise
        self.exchange.publish(buffer.heads, self.sac.pace.steps)
        return found

    def _go_on(self) -> LearningProcess:
        """The process, which may learn from now on: by the rewards that it knows, so that there must be no others."""
        process = self.process
        if self.sac.outdated:
            raise EnvError(
                "the reward model was swapped while another process learns (runtime.mode=async). That one has the "
                "replay and the demonstrations, with the rewards of before, and no model that could give them again. "
                "Resume the run with the new model, which gives all of them again, or train with runtime.mode=sync."
            )
        self.exchange.resting = False
        return process

    def _hold_back(self, steps: int) -> None:
        """Waits while learning is behind by more than the gradient steps that so many env steps ask for."""
        started = time.perf_counter()
        while self.owed > max(1, int(self.sac.pace.ratio * steps)):
            self.process.listen(0.001)
        self._waited += time.perf_counter() - started

    @torch.no_grad()
    def _take_weights(self) -> None:
        """Acts by the newest weights from now on."""
        found = self.exchange.letters.take(self._letter)
        if found is None:
            return
        self._letter, content = found
        self._totals, self._acts_by = content.pop("totals"), int(content.pop("updates"))
        for name, value in acting_part(self.policy).items():
            value.copy_(content[name])

    def update(self) -> dict[str, float]:
        """Learns nothing: tells what the other process has learned since the last time."""
        self.process.listen()
        self._take_weights()
        sums, counts = (self._totals - self._told).unbind(1)
        means = {name: float(sums[i] / counts[i]) for i, name in enumerate(Losses._fields) if counts[i] > 0}
        now, idle = time.perf_counter(), self.exchange.idle
        seconds = max(now - self._last, 1e-9)
        found = {
            "updates": float(self.exchange.updates),
            "replay_size": float(len(self.sac.buffer)),
            "charts/updates_owed": float(max(0, self.owed)),
            "charts/staleness": float(self._stale),
            "charts/learning_idle": min(1.0, (idle - self._idle) / seconds),
            "charts/acting_waits": min(1.0, self._waited / seconds),
            **means,
        }
        self._told, self._last, self._idle, self._stale, self._waited = self._totals, now, idle, 0, 0.0
        return found

    def catch_up(self, go_on: Callable[[], bool]) -> dict[str, float]:
        if self.owed > 0 and go_on():
            self._work_off(go_on)
        self.exchange.resting = True
        self._take_weights()  # Also where nothing was owed: it may all have been learned since the last rollout.
        return {} if self._totals is self._told else self.update()

    def _work_off(self, go_on: Callable[[], bool]) -> None:
        """Waits for the gradient steps that are owed, and says how far that is."""
        process, first = self._go_on(), self.owed
        logger.info("all env steps are taken; the %s gradient steps that are owed follow.", f"{first:,}")
        started = said = time.perf_counter()
        while (left := self.owed) > 0 and go_on():
            now = time.perf_counter()
            if left < first and now - said >= SAY:
                said, seconds = now, (now - started) * left / (first - left)
                logger.info("%s gradient steps are still owed, for about %.0f s.", f"{left:,}", seconds)
            process.listen(LOOK)

    @property
    def kind(self) -> str:
        return self.sac.kind

    def save(self, folder: CheckpointFolder, name: str, content: Mapping[str, Any]) -> None:
        weights = acting_part(self.policy) if name == BEST else {}
        process = self.process
        self.exchange.publish(self.sac.buffer.heads, self.sac.pace.steps)  # Of a rollout that was broken off too.
        process.save(Save(folder, name, pack({**content, "policy": weights}), self.sac.pace.steps))

    def flush(self) -> None:
        self.process.flush()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_not_begun("load_state_dict")
        self._random = state.get(RANDOM)
        self.sac.load_state_dict(state)
        self.exchange.updates = self._acts_by = self.sac.pace.updates

    def _check_not_begun(self, what: str) -> None:
        """Refuses what the process would not be told any more."""
        if self._process is not None:
            raise PlauditError(
                f"Actor.{what} was called after learning had begun in another process, which has what it needs since "
                "then. Call it before the first rollout, on a new Actor."
            )

    def close(self) -> None:
        """Ends the process, once it has written what it was asked to."""
        if self._process is not None:
            self._process.close()
        self.memory.close()


def _written(steps: int) -> int:
    """Slots of an env that a rollout may write to: every step may end an episode, whose last observation takes one too;
    an episode that was broken off leaves one empty, and one waits for an action.
    """
    return 2 * steps + 2
