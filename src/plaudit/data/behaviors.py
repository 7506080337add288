"""Who acts while episodes are collected: one actor or several, each with its own mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Obs, VecEnv
from plaudit.errors import ConfigError

Act: TypeAlias = Callable[[Obs], torch.Tensor]
"""From observations to actions, float32 (num_envs, action_dim)."""

Misled: TypeAlias = Callable[[NDArray[np.float64]], torch.Tensor]
"""From where the goals are believed to be, metres (num_envs, 3) beside the true ones, to actions."""

LONGEST_BURST = 8
"""Steps that a burst of random actions lasts at most."""

LONGEST_OVERRUN = 0.4
"""Share of an episode's steps that one action is held for, at most, by an actor that overruns."""

MISTAKES = ("noise", "drift", "bursts", "halts", "overruns", "misaim")
"""What may go wrong for an actor, by the names of its attributes."""

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Behavior:
    """Who acts in a share of the episodes, and the mistakes that it makes.

    Attributes:
        kind: What it is called in the episodes.
        act: What it does.
        weight: Its share, relative to those of the other actors.
        noise: Standard deviation of noise on every action, in halves of the action range.
        drift: Largest size of a push that sets in at a random time of each episode's first half and stays. A servo
            that is pushed comes to rest beside its aim: these are near misses.
        bursts: Chance, at each step, that one random action is held for a few steps: mistakes, and recoveries.
        halts: Share of its episodes in which it stops moving at a random time of their first half.
        overruns: Share of its episodes in which it goes on, for a while, with what it does at a random time, as a
            controller does that hangs: it overshoots its aim.
        misaim: How far from the goal, in metres at most, it believes the goal to be, anew in each episode. What it does
            then looks like success done in the wrong place: the most telling failures.
        misled: What it does when it believes so, in place of `act`.
    """

    kind: str
    act: Act
    weight: float = 1.0
    noise: float = 0.0
    drift: float = 0.0
    bursts: float = 0.0
    halts: float = 0.0
    overruns: float = 0.0
    misaim: float = 0.0
    misled: Misled | None = None

    def about(self) -> dict[str, Any]:
        """What is written with its episodes."""
        mistakes = {name: getattr(self, name) for name in MISTAKES}
        return {"actor": self.kind, **{name: value for name, value in mistakes.items() if value}}


def uniform(env: VecEnv, seed: int) -> Act:
    """Anything that an env lets one do, with equal chances."""
    random = np.random.default_rng(seed)
    low, high = env.action_space.low, env.action_space.high

    def act(obs: Obs) -> torch.Tensor:
        return torch.from_numpy(random.uniform(low, high, (env.num_envs, len(low))).astype(np.float32))

    return act


class BehaviorMixture:
    """Some actors that share the envs: whose turn it is is drawn anew for every episode of every env.

    Args:
        actors: Who acts.
        env: Where. Only its action space and the length of its episodes are looked at.
        seed: Same seed and same episodes, same actions.
    """

    def __init__(self, actors: Sequence[Behavior], env: VecEnv, seed: int) -> None:
        self.actors = list(actors)
        self.device = env.device
        self.num_envs, self.horizon = env.num_envs, env.max_episode_steps or 100
        low, high = env.action_space.low, env.action_space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError("the env's actions have no bounds, so that nobody can act at random in it.")
        self.middle, self.half = (low + high) / 2, (high - low) / 2
        self._random = np.random.default_rng(seed)
        weights = np.array([actor.weight for actor in self.actors])
        self._shares = weights / weights.sum()
        n, size = self.num_envs, len(low)
        self.turn = np.zeros(n, np.int64)  # Index of the actor.
        self.age = np.zeros(n, np.int64)
        self._drift, self._drift_from = np.zeros((n, size)), np.zeros(n, np.int64)
        self._halt_from = np.zeros(n, np.int64)
        self._burst, self._burst_until = np.zeros((n, size)), np.zeros(n, np.int64)
        self._overrun, self._overrun_from, self._overrun_until = np.zeros((n, size)), *np.zeros((2, n), np.int64)
        self._misaim = np.zeros((n, 3))
        self.begin(np.arange(n))

    def begin(self, envs: NDArray[np.int64]) -> None:
        """Draws who acts in the next episode of some envs, and when it goes wrong."""
        n, random = len(envs), self._random
        self.turn[envs] = random.choice(len(self.actors), n, p=self._shares)
        self.age[envs] = 0
        self._drift[envs] = random.uniform(-1, 1, (n, len(self.half)))
        self._drift_from[envs] = random.integers(0, self.horizon // 2 + 1, n)
        halts = random.random(n) < self._of("halts")[envs]
        self._halt_from[envs] = np.where(halts, random.integers(0, self.horizon // 2 + 1, n), NEVER)
        self._burst_until[envs] = 0
        way = random.normal(size=(n, 3))
        far = random.random(n) * self._of("misaim")[envs] / np.linalg.norm(way, axis=1)
        self._misaim[envs] = way * far[:, None]
        overruns = random.random(n) < self._of("overruns")[envs]
        start, longest = random.integers(0, self.horizon, n), max(1, round(LONGEST_OVERRUN * self.horizon))
        self._overrun_from[envs] = np.where(overruns, start, NEVER)
        self._overrun_until[envs] = np.where(overruns, start + random.integers(1, longest + 1, n), 0)

    def act(self, obs: Obs) -> torch.Tensor:
        """Everyone's actions, float32 (num_envs, action_dim)."""
        wanted = np.zeros((self.num_envs, len(self.half)))
        asked: dict[Act | Misled, NDArray[np.float32]] = {}  # Several actors may be one expert with other mistakes.
        for index, actor in enumerate(self.actors):
            mine = self.turn == index
            if not mine.any():
                continue
            who = actor.act if actor.misled is None else actor.misled
            if who not in asked:
                actions = actor.act(obs) if actor.misled is None else actor.misled(self._misaim)
                asked[who] = actions.cpu().numpy()
            wanted[mine] = (asked[who][mine] - self.middle) / self.half
        spoiled = self.middle + self.half * np.clip(self._spoil(wanted), -1, 1)
        self.age += 1
        return torch.from_numpy(spoiled.astype(np.float32)).to(self.device)

    def describe(self, env: int) -> dict[str, Any]:
        """Who acts in an env's present episode."""
        return self.actors[int(self.turn[env])].about()

    def _spoil(self, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Actions in [-1, 1] with everyone's mistakes."""
        random, shape = self._random, wanted.shape
        actions = wanted + self._of("noise")[:, None] * random.normal(size=shape)
        drifts = (self.age >= self._drift_from)[:, None]
        actions += np.where(drifts, self._of("drift")[:, None] * self._drift, 0.0)
        begins = (random.random(self.num_envs) < self._of("bursts")) & (self.age >= self._burst_until)
        self._burst[begins] = random.uniform(-1, 1, shape)[begins]
        self._burst_until[begins] = self.age[begins] + random.integers(1, LONGEST_BURST + 1, self.num_envs)[begins]
        actions = np.where((self.age < self._burst_until)[:, None], self._burst, actions)
        hangs = self.age == self._overrun_from
        self._overrun[hangs] = actions[hangs]
        overruns = (self.age >= self._overrun_from) & (self.age < self._overrun_until)
        actions = np.where(overruns[:, None], self._overrun, actions)
        return np.where((self.age >= self._halt_from)[:, None], 0.0, actions)

    def _of(self, name: str) -> NDArray[np.float64]:
        """A number of the actor whose turn it is, for each env."""
        return np.array([getattr(actor, name) for actor in self.actors])[self.turn]
