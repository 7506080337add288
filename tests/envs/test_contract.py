"""Every env passes the same suite, and the suite notices envs that break the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.envs import Outcome, Step, TaskEnv, build_env, register_env
from plaudit.envs.base import Frames, Obs, Reading
from plaudit.envs.testing import (
    CHECKS,
    Make,
    check_action_errors,
    check_env,
    check_episode_ends,
    check_final_obs,
    check_frames,
    check_independence,
    check_restart,
    check_saved_state,
    check_seeds,
    check_snapshots,
    check_spaces,
    check_steps,
)
from plaudit.errors import EnvError

torch.set_num_threads(1)


@register_env("test/Walk", max_episode_steps=6, override=True)
class Walk(TaskEnv):
    """A user's env as they would first write it: no config class, no saved state; walk to 3 for success."""

    def __init__(self, cfg: Any, device: torch.device | str = "cpu") -> None:
        super().__init__(cfg, device)
        self.num_envs = cfg.num_envs
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.position = torch.zeros(self.num_envs, 2)
        self.random = torch.Generator()

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if seed is not None:
            self.random.manual_seed(seed)
        self.position[ids] = torch.rand(len(ids), 2, generator=self.random)

    def advance(self, action: torch.Tensor) -> Outcome:
        self.position = self.position + action
        x = self.position[:, 0].clone()
        return Outcome(x, x > 3.0, x > 3.0, rewards={"x": x})

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": (self.position if ids is None else self.position[ids]).clone()}


PROBES = ["ConstantValue", "ObsValue", "Discount", "ActionReward", "ObsActionReward", "PictureAction", "Timeout"]
ENVS = [f"probe/{name}" for name in PROBES] + ["gym:Pendulum-v1", "test/Walk"]
TASKS = ["PushCube", "PickCube", "PegInsertion"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("env_id", ENVS)
def test_envs_pass(env_id: str, check: Callable[[Make], None]) -> None:
    if env_id == "gym:Pendulum-v1" and check is check_frames:
        pytest.importorskip("pygame", reason="Pendulum draws with pygame")
    if env_id == "test/Walk" and check.__name__ == "check_independence":
        pytest.skip("this env draws all its episodes from one stream, and does not say otherwise")
    check(lambda num_envs: build_env(env_id, {"num_envs": num_envs}))


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("env_id", TASKS)
def test_embedded_tasks_pass(env_id: str, check: Callable[[Make], None], obs_mode: str) -> None:
    check(lambda num_envs: build_env(env_id, {"num_envs": num_envs, "obs_mode": obs_mode}))


SNAPSHOTS = ("snapshot", "no snapshot", "new snapshot")


class Broken(Walk):
    """`Walk` with one mistake."""

    calls = itertools.count()

    def __init__(self, num_envs: int, mistake: str) -> None:
        super().__init__(SimpleNamespace(num_envs=num_envs))
        self.max_episode_steps = 6
        self.mistake = mistake
        self.can_save_state = mistake == "state"
        self.can_snapshot = mistake in SNAPSHOTS
        self.cameras = ("camera",) if self.can_snapshot else ()
        self.readings = {"width": Reading(2)} if mistake == "reading" else {}

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        if self.mistake == "dtype":
            step.reward = step.reward.double()
        if self.mistake == "new obs" and step.final_obs is not None:
            step.final_obs = {"state": step.obs["state"][step.ended]}
        if self.mistake == "all rows" and step.final_obs is not None and len(step.ended) < self.num_envs:
            step.final_obs = step.obs
        if self.mistake == "no snapshot":
            step.snapshot = None
        if self.mistake == "new snapshot" and step.snapshot is not None:
            step.snapshot = self.snapshot()
        if self.mistake == "slow clock":
            self.clock[0] -= 1
        return step

    def restart(self, ids: torch.Tensor) -> Obs:
        if self.mistake == "restarts all":
            super().restart(torch.arange(self.num_envs))
        if self.mistake == "old clock":
            self.start(ids)
            return self.observe(ids)
        return super().restart(ids)

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if self.mistake == "no seed":
            seed = next(self.calls)
        super().start(ids, seed)

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        if self.mistake == "views":
            outcome.rewards = {"position": self.position[:, 0]}
        if self.mistake == "all rows":
            outcome.terminated[0] = True
        return outcome

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        return self.render_snapshots(self.clock if ids is None else self.clock[ids])

    def snapshot(self) -> torch.Tensor:
        return self.clock if self.mistake == "snapshot" else self.clock.clone()  # Not a copy: it goes on.

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        return {
            "camera": torch.zeros(len(snapshots), 2, 2, 3, dtype=torch.uint8) + snapshots[:, None, None, None].byte()
        }

    def check_action(self, action: torch.Tensor) -> None:
        if self.mistake != "unchecked":
            super().check_action(action)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.position = state["position"].clone()
        return self.observe()


@pytest.mark.parametrize(
    ("mistake", "check", "message"),
    [
        ("dtype", check_steps, "reward is torch.float32, not torch.float64"),
        ("views", check_steps, "stays as it was"),
        ("all rows", check_steps, "final_obs.*has shape"),
        ("new obs", check_final_obs, "final_obs is what the env sees"),
        ("new obs", check_episode_ends, "final_obs is the last of the old episode"),
        ("slow clock", check_episode_ends, "truncated at step 6"),
        ("no seed", check_seeds, "with the same seed"),
        ("state", check_saved_state, "a state loaded into another env"),
        ("restarts all", check_restart, "leaves env 1 as it was"),
        ("old clock", check_restart, "begins at 0"),
        ("reading", check_spaces, "the reading 'width' has a place in state, not 2"),
        ("snapshot", check_snapshots, "drawn later is the picture that was drawn then"),
        ("no snapshot", check_snapshots, "every step has a snapshot once"),
        ("new snapshot", check_snapshots, "snapshots of ended envs show their last states"),
        ("none", check_independence, "among 2 and among 5"),
    ],
)
def test_suite_notices_mistakes(mistake: str, check: Callable[[Make], None], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        check(lambda num_envs: Broken(num_envs, mistake))


def test_suite_notices_unchecked_actions() -> None:
    # torch's own complaint about the shapes is no answer to the user: the suite lets it through as the failure.
    with pytest.raises(RuntimeError, match="size of tensor"):
        check_action_errors(lambda num_envs: Broken(num_envs, "unchecked"))


def test_check_env_runs_every_check() -> None:
    check_env(lambda num_envs: Broken(num_envs, "none"))
    with pytest.raises(EnvError, match="among 2 and among 5"):
        check_env(lambda num_envs: Broken(num_envs, "none"), independent=True)
