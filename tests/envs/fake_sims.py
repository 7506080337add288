"""Simulations for the worker processes of the tests: numbers that are easy to follow, and some that go wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import torch

from plaudit.envs.maniskill.simulation import Layout
from plaudit.errors import ConfigError

LAYOUT = Layout(
    state=2,
    low=(-1.0,),
    high=(1.0,),
    cameras=("front",),
    metrics=("twice",),
    judged=True,
    snapshot=2,
    joints=(),
    max_episode_steps=5,
    fps=20.0,
)


class Counter:
    """`state` is the seed and the sum of the actions since; a picture is filled with that sum."""

    layout = LAYOUT

    def __init__(self, size: tuple[int, int] = (8, 8), **_: object) -> None:
        self.size = size
        self.start([0], [0])

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        self.state = torch.tensor([[float(seeds[0]), 0.0]])
        self.reward, self.metrics = torch.zeros(1), torch.zeros(1, 1)
        self.terminated = self.success = torch.zeros(1, dtype=torch.bool)

    def advance(self, action: torch.Tensor) -> None:
        self.state = self.state + torch.cat([torch.zeros(1, 1), action], dim=1)
        total = self.state[:, 1]
        self.reward, self.metrics = total.clone(), 2 * total[None]
        self.success = self.terminated = total > 3.0

    def frames(self) -> dict[str, torch.Tensor]:
        return {"front": torch.full((1, *self.size, 3), int(self.state[0, 1]), dtype=torch.uint8)}

    def portrait(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.full((1, 4, 4, 3), int(self.state[0, 0]), dtype=torch.uint8)

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor:
        return self.state[:, :1] + elsewhere[:, :1]

    def snapshot(self) -> torch.Tensor:
        return self.state.clone()

    def draw(self, snapshot: torch.Tensor) -> dict[str, torch.Tensor]:
        self.state = snapshot
        return self.frames()


class Unbuildable(Counter):
    def __init__(self, **_: object) -> None:
        raise ConfigError("env.cfg.cameras: unknown camera 'x'; there are front.")


class Failing(Counter):
    def advance(self, action: torch.Tensor) -> None:
        raise ZeroDivisionError("in the simulator")


class Dying(Counter):
    def advance(self, action: torch.Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Crashing(Counter):
    def advance(self, action: torch.Tensor) -> None:
        print("about to break", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class Hanging(Counter):
    def advance(self, action: torch.Tensor) -> None:
        threading.Event().wait()
