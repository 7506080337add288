"""The side that learns. It knows no env."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.config.algorithm_schema import SACConfig
from plaudit.config.schema import PolicyConfig
from plaudit.rl.algorithms.sac import SAC, Learning
from plaudit.rl.algorithms.sac_update import Losses
from plaudit.rl.async_.shared_memory import SharedMemory
from plaudit.rl.async_.shared_replay import ReplayReader
from plaudit.rl.async_.shared_state import Exchange
from plaudit.rl.buffers.replay_buffer import OBS, ReplayBuffer
from plaudit.rl.buffers.replay_storage import Keeper, MappedFiles
from plaudit.rl.checkpoint import LATEST, NUMBERED, CheckpointFolder, save
from plaudit.rl.policies.base import Policy, build_policy
from plaudit.rl.reward_source import Layout
from plaudit.utils.rng import rng_state, set_rng_state

TOGETHER = 8
"""Gradient steps after which new weights are put out, at the latest."""

BEST = "best.pt"
"""The checkpoint whose actor is the one that was evaluated, and not the newest."""

LEARNING_SEED = 2_000_003
"""Added to the run's seed, so that learning does not draw what acting draws."""

RANDOM = "random"
"""What a checkpoint calls the state of who learns by chance, beside what `SAC` keeps."""


@dataclass(frozen=True)
class Ring:
    """The replay that is shared, without what is in it.

    Attributes:
        slots: Of all envs together.
        num_envs: Envs that step together.
        obs: Key to the shape of one observation; the key of a lone vector is empty.
        actions: Length of an action.
        extras: What else is kept of a transition.
        files: Whether the columns are files of the run.
    """

    slots: int
    num_envs: int
    obs: dict[str, tuple[int, ...]]
    actions: int
    extras: Layout
    files: bool

    @classmethod
    def of(cls, replay: ReplayBuffer, files: bool) -> Ring:
        """That of a replay."""
        columns = replay.columns
        obs = {name.removeprefix(OBS): tuple(columns[name].shape[1:]) for name in replay.obs_names}
        return cls(replay.slots, replay.num_envs, obs, columns["action"].shape[1], replay.extras, files)


@dataclass(frozen=True)
class LearnerSpec:
    """All that a learner begins with.

    Attributes:
        policy: How the policy is built.
        spaces: Of observations and actions.
        weights: Of the policy.
        cfg: Of SAC.
        learning: What SAC has learned so far, and remembers.
        ring: The replay.
        device: To learn on.
        threads: Of torch.
        steps_back: Whether acting comes first where both want a core: it has a clock to keep up with.
        folder: For what is too large for a checkpoint; `None` keeps nothing.
        seed: Of everything random, where nothing is to be gone on with.
        random: State of chance that is gone on with, or `None`.
    """

    policy: PolicyConfig
    spaces: tuple[gym.Space[Any], gym.spaces.Box]
    weights: dict[str, torch.Tensor]
    cfg: SACConfig
    learning: Learning
    ring: Ring
    device: str
    threads: int
    steps_back: bool
    folder: Path | None
    seed: int
    random: dict[str, Any] | None


@dataclass(frozen=True)
class Save:
    """A wish for a checkpoint.

    Attributes:
        folder: Of the checkpoints.
        name: Of this one.
        content: The acting side's part of it; its `policy` holds the weights that it acts with, and no others.
        steps: Env steps that it is of.
    """

    folder: CheckpointFolder
    name: str
    content: dict[str, Any]
    steps: int

    def replaces(self, older: Save) -> bool:
        """Whether an older wish need not be granted any more. Each checkpoint is written as the latest one too."""
        both_numbered = self.name.startswith(NUMBERED) and older.name.startswith(NUMBERED)
        return older.name in (self.name, LATEST) or both_numbered


class Learner:
    """Takes gradient steps as they fall due, and writes checkpoints when asked.

    Args:
        job: What to begin with.
        memory: What is shared with the acting side.
    """

    def __init__(self, job: LearnerSpec, memory: SharedMemory) -> None:
        seed = job.seed + LEARNING_SEED
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        device = torch.device(job.device)
        policy = build_policy(job.policy, *job.spaces, device)
        policy.load_state_dict(job.weights)
        self.sac, self.policy = SAC(job.cfg, policy), policy
        self.totals = torch.zeros(len(Losses._fields), 2, dtype=torch.float64)
        self.exchange = Exchange(memory.find, job.ring.num_envs, self._letter())
        self.replay, keeper = self._open(job, memory)
        self.sac.folder = job.folder
        if job.learning.demonstrations is not None:
            job.learning.demonstrations.move(device)
        self.sac.load_handover(job.learning, self.replay, keeper)
        self.exchange.updates = self.sac.pace.updates
        if job.random is not None:
            set_rng_state(job.random)

    def _open(self, job: LearnerSpec, memory: SharedMemory) -> tuple[ReplayReader, Keeper | None]:
        """The replay, and who keeps it."""
        ring, keeper, allocate = job.ring, job.learning.keeper, memory.find
        if ring.files:
            assert job.folder is not None
            keeper = files = MappedFiles(job.folder)
            allocate = files.allocate
        replay = ReplayReader(
            ring.slots, ring.num_envs, ring.obs, ring.actions, ring.extras, allocate, self.exchange, job.device
        )
        return replay, keeper

    def learn(self) -> bool:
        """Takes some of the gradient steps that are due, unless it is to rest, and puts out what came of them; returns
        whether any were taken.
        """
        if self.exchange.resting:
            return False
        sac = self.sac
        steps = self.exchange.steps  # First: more may be there than is counted, and never less.
        self.replay.take_in()
        sac.pace.steps = steps
        if sac.pace.owed <= 0:
            return False
        count, losses = sac.learn(min(sac.pace.owed, TOGETHER))
        for row, value in zip(self.totals, losses, strict=True):
            if not math.isnan(value):
                row += torch.tensor([count * value, count], dtype=torch.float64)
        self.exchange.letters.put(self._letter())
        self.exchange.updates = sac.pace.updates  # Last: whoever waits for it is to find the weights.
        return True

    def _letter(self) -> dict[str, torch.Tensor]:
        return letter(self.policy, self.totals, self.sac.pace.updates)

    def save(self, wish: Save) -> None:
        """Writes a checkpoint. Its replay is that of now, which may be some steps ahead of the rest."""
        self.replay.take_in()
        self.sac.pace.steps = wish.steps
        self.sac.save_data()
        ours = self.policy.state_dict()
        learned = {**self.sac.state_dict(), RANDOM: rng_state()}
        content = {**wish.content, "algorithm_class": self.sac.kind, "algorithm": learned}
        if wish.name == BEST:
            save(wish.folder.path / BEST, {**content, "policy": {**ours, **wish.content["policy"]}})
        name = LATEST if wish.name == BEST else wish.name
        wish.folder.write(name, {**content, "policy": ours})


def acting_part(policy: Policy) -> dict[str, torch.Tensor]:
    """What acting needs of a policy and learning changes: all but critics, and what is frozen."""
    frozen = {name for name, part in policy.named_parameters() if not part.requires_grad}
    state: dict[str, torch.Tensor] = policy.state_dict()
    return {name: value for name, value in state.items() if name not in frozen and not name.startswith("critics.")}


def letter(policy: Policy, totals: torch.Tensor, updates: int) -> dict[str, torch.Tensor]:
    """What is put out after some gradient steps: weights, sums of losses since the start, (fields, 2) with how many
    gradient steps they are of, and how many steps there were.
    """
    return {**acting_part(policy), "totals": totals, "updates": torch.tensor(updates)}
