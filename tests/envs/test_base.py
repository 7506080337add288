"""`TaskEnv`'s bookkeeping on an env small enough to work out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from plaudit.envs.base import Frames, Obs, Outcome, Step, TaskEnv
from plaudit.errors import EnvError, NonFiniteError


class Sum(TaskEnv):
    """Adds up its actions from 10·(episode number); terminates, with success, when it has added 3 or more."""

    cameras: tuple[str, ...] = ("eye",)

    def __init__(self, num_envs: int = 2, max_episode_steps: int | None = None) -> None:
        super().__init__(SimpleNamespace())
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.observation_space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-99, 99, (1,), np.float32)})
        self.action_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float32)
        self.episode = torch.zeros(num_envs)
        self.sum = torch.zeros(num_envs)
        self.rendered: list[int] = []

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        self.episode[ids] += 1
        self.sum[ids] = 0.0

    def advance(self, action: torch.Tensor) -> Outcome:
        self.sum = self.sum + action[:, 0]
        success = self.sum >= 3.0
        return Outcome(action[:, 0].clone(), success, success, metrics={"sum": self.sum.clone()})

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        ids = torch.arange(self.num_envs) if ids is None else ids
        return {"state": (10 * self.episode + self.sum)[ids].unsqueeze(-1)}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        state = self.observe(ids)["state"]
        self.rendered.append(len(state))
        return {"eye": state.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 2, 3)}


def act(env: TaskEnv, *actions: float) -> Step:
    return env.step(torch.tensor(actions).unsqueeze(-1))


def flat(obs: Obs | None) -> list[float]:
    assert obs is not None
    value: list[float] = obs["state"].flatten().tolist()
    return value


def test_termination_restarts_only_the_env_that_ended() -> None:
    env = Sum()
    obs, _ = env.reset()
    assert flat(obs) == [10.0, 10.0]
    assert act(env, 1.0, 1.0).final_obs is None
    step = act(env, 2.0, 1.0)
    assert step.terminated.tolist() == [True, False] and not step.truncated.any()
    assert step.ended.tolist() == [0]
    assert flat(step.final_obs) == [13.0]  # Episode 1, sum 3.
    assert flat(step.obs) == [20.0, 12.0]  # Env 0 is in episode 2; env 1 goes on.
    assert step.success is not None and step.success.tolist() == [True, False]
    assert step.metrics["sum"].tolist() == [3.0, 2.0]  # Of the state that the action led to, not of the new episode.


def test_each_env_has_its_own_clock() -> None:
    env = Sum(max_episode_steps=3)
    env.reset()
    act(env, 3.0, 0.0)  # Env 0 terminates at once, so its clock is one step behind env 1's.
    act(env, 0.0, 0.0)
    step = act(env, 0.0, 1.0)
    assert step.truncated.tolist() == [False, True] and flat(step.final_obs) == [11.0]
    step = act(env, 1.0, 0.0)
    assert step.truncated.tolist() == [True, False] and flat(step.final_obs) == [21.0]


def test_success_on_the_last_step_is_termination_not_truncation() -> None:
    env = Sum(num_envs=1, max_episode_steps=1)
    env.reset()
    step = act(env, 3.0)
    assert (step.terminated.item(), step.truncated.item()) == (True, False)


def test_reset_starts_the_clock_anew() -> None:
    env = Sum(num_envs=1, max_episode_steps=2)
    env.reset()
    act(env, 0.0)
    env.reset()
    assert [act(env, 0.0).truncated.item() for _ in range(2)] == [False, True]


def test_frames_are_rendered_only_when_asked_for() -> None:
    env = Sum(max_episode_steps=2)
    _, info = env.reset()
    act(env, 0.0, 0.0)
    assert info["frames"] is None and env.rendered == []
    env.request_frames("terminal")
    step = act(env, 1.0, 0.0)
    assert step.frames is None and step.final_frames is not None
    assert step.final_frames["eye"][:, 0, 0, 0].tolist() == [11, 10]  # Before the reset.
    assert env.rendered == [2]
    assert act(env, 3.0, 0.0).final_frames is not None
    assert env.rendered == [2, 1]  # Only the env that ended.
    env.request_frames("always")
    step = act(env, 0.0, 0.0)
    assert step.frames is not None and step.frames["eye"][:, 0, 0, 0].tolist() == flat(step.obs)
    env.request_frames("none")
    assert act(env, 0.0, 0.0).frames is None


def test_frames_without_cameras_are_an_error() -> None:
    env = Sum()
    env.cameras = ()
    with pytest.raises(EnvError, match="no cameras"):
        env.request_frames("always")
    env.request_frames("none")


def test_wrong_actions() -> None:
    env = Sum()
    env.reset()
    with pytest.raises(EnvError, match=r"\(2, 3\).*\(2, 1\)"):
        env.step(torch.zeros(2, 3))
    with pytest.raises(NonFiniteError, match="env 1"):
        act(env, 0.0, float("nan"))


def test_step_before_reset() -> None:
    with pytest.raises(EnvError, match="before reset"):
        act(Sum(), 0.0, 0.0)


def test_step_unpacks_as_gymnasiums_five() -> None:
    env = Sum()
    env.reset()
    obs, reward, terminated, truncated, info = act(env, 1.0, 3.0)
    assert flat(obs) == [11.0, 20.0] and reward.tolist() == [1.0, 3.0]
    assert terminated.tolist() == [False, True] and truncated.tolist() == [False, False]
    assert flat(info["final_obs"]) == [13.0] and info["success"].tolist() == [False, True]
    assert info["metrics"]["sum"].tolist() == [1.0, 3.0]


class Snapping(Sum):
    """Can be drawn later."""

    can_snapshot = True

    def snapshot(self) -> torch.Tensor:
        return self.observe()["state"].double()


def test_steps_have_snapshots_of_where_they_led_also_at_the_end() -> None:
    env = Snapping(2)
    env.reset()
    assert act(env, 1.0, 0.5).snapshot is None
    env.request_snapshots(True)
    told = [act(env, 1.0, 0.5).snapshot, (last := act(env, 1.0, 0.5)).snapshot, act(env, 1.0, 0.5).snapshot]
    # Env 0 ends with the second of these, at 13: its third is of the next episode, which has begun at 20.
    assert [None if one is None else one[:, 0].tolist() for one in told] == [[12.0, 11.0], [13.0, 11.5], [21.0, 12.0]]
    assert flat(last.final_obs) == [13.0]
    env.request_snapshots(False)
    assert act(env, 1.0, 0.5).snapshot is None
    with pytest.raises(EnvError, match=r"Sum takes no snapshots"):
        Sum(2).request_snapshots(True)
