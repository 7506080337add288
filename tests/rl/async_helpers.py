"""Acting and learning apart, for tests."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sac_helpers import Keys, make_sac

from plaudit.config.schema import NetworkConfig, PolicyConfig, RuntimeConfig
from plaudit.envs import build_env
from plaudit.rl import RunFolder, Trainer
from plaudit.rl.async_.actor import Actor
from plaudit.rl.async_.learner import Learner, LearnerSpec, Save
from plaudit.rl.async_.shared_memory import SharedMemory
from plaudit.rl.buffers.replay_buffer import ReplayBuffer

NETWORK = NetworkConfig(hidden_sizes=(32, 32), activation="relu")


class InThisProcess:
    """In place of a `LearningProcess`: learns here, a little whenever it is listened to, so that tests can count.

    Attributes:
        patience: How often it is listened to without learning, at first.
        most: Gradient steps that were owed, at most.
    """

    patience = 0

    def __init__(self, job: LearnerSpec, memory: SharedMemory, imports: Sequence[str] = ()) -> None:
        sent = pickle.loads(pickle.dumps((job, memory.places)))
        with torch.random.fork_rng():  # Another process has random numbers of its own.
            self.learner = Learner(sent[0], SharedMemory(os.dup(memory.handle), sent[1]))
            self.random = torch.get_rng_state()
        self.wishes = 0
        self.most = 0

    def listen(self, seconds: float = 0.0) -> None:
        """Learns: always where it is waited for, else once it has been asked `patience` times."""
        self.wishes += 1
        if seconds or self.wishes > self.patience:
            with torch.random.fork_rng():
                torch.set_rng_state(self.random)
                self.learner.learn()
                self.random = torch.get_rng_state()
        pace = self.learner.sac.pace
        assert pace.owed >= 0, "more gradient steps than the ratio allows"
        self.most = max(self.most, pace.owed)

    def save(self, wish: Save) -> None:
        """Writes a checkpoint at once."""
        with torch.random.fork_rng():
            torch.set_rng_state(self.random)
            self.learner.save(pickle.loads(pickle.dumps(wish)))

    def flush(self) -> None:
        """Everything is written already."""

    def close(self) -> None:
        """There is nothing to end."""


def make_async(
    env: Any = "probe/ObsActionReward",
    *,
    num_envs: int = 4,
    run: Path | None = None,
    sac: Keys | None = None,
    seed: int = 1,
    evaluates: bool = False,
    listeners: Any = (),
    **settings: Any,
) -> Trainer:
    """A trainer whose algorithm only acts."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    made = build_env(env, {"num_envs": num_envs}) if isinstance(env, str) else env
    algorithm = make_sac(made, sac)
    actor = Actor(algorithm, made, PolicyConfig(name="sac", actor=NETWORK, critic=NETWORK), seed=seed)
    values = {"iterations": 30, "rollout_steps": 8, "eval_freq": 0, "eval_episodes": 8, **settings}
    folder = None if run is None else RunFolder.open(run)
    eval_env = build_env(env, {"num_envs": 2}) if evaluates else None
    return Trainer(
        algorithm.policy,
        made,
        actor,
        settings=RuntimeConfig(**values),
        run=folder,
        eval_env=eval_env,
        listeners=listeners,
    )


def shown(episodes: int) -> ReplayBuffer:
    """Demonstrations of four steps each."""
    replay = ReplayBuffer(5 * episodes + 2, 1, 1, 1)
    ended = torch.arange(4) == 3
    for _ in range(episodes):
        told = {"reward": torch.ones(4), "terminated": ended, "done": ended}
        replay.add_episode(torch.zeros(5, 1), torch.full((4, 1), 0.3), told)
    return replay


def actor_of(trainer: Trainer) -> Actor:
    """The trainer's algorithm."""
    assert isinstance(trainer.algorithm, Actor)
    return trainer.algorithm
