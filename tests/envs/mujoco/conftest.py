"""Envs of the embedded tasks for one test, on one thread, closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from plaudit.envs import build_env
from plaudit.envs.mujoco.arm_task import ArmTask

torch.set_num_threads(1)

Make = Callable[..., ArmTask]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make("PickCube", 4, seed=0, obs_mode="rgb")` gives an env that has been reset."""
    made: list[ArmTask] = []

    def build(env_id: str, num_envs: int = 1, *, seed: int = 0, threads: int = 1, **cfg: Any) -> ArmTask:
        env = build_env(env_id, {"num_envs": num_envs, **cfg}, threads=threads)
        assert isinstance(env, ArmTask)
        made.append(env)
        env.reset(seed=seed)
        return env

    yield build
    for env in made:
        env.close()
