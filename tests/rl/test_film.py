from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rl_helpers import make_policy

from plaudit.envs import Outcome, TaskEnv
from plaudit.envs.base import Frames, Obs
from plaudit.errors import ConfigError
from plaudit.rl import evaluation as film_module
from plaudit.rl.evaluation import film


class Pictured(TaskEnv):
    """Env i succeeds at step i + 2, which ends its episode if `ends`; a picture shows 10 * (i + 1) + the clock."""

    max_episode_steps = 5
    cameras = ("cam",)
    fps = 7.0

    def __init__(self, ends: bool = True, tells: bool = True) -> None:
        super().__init__(None)
        self.num_envs, self.ends, self.tells = 3, ends, tells
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-1, 1, (1,), np.float32)})
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.policy: Any = None
        self.modes: list[bool] = []

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        torch.rand(3)

    def advance(self, action: torch.Tensor) -> Outcome:
        if self.policy is not None:
            self.modes.append(self.policy.training)
        success = self.clock + 1 == torch.arange(3) + 2
        return Outcome(torch.zeros(3), success & self.ends, success if self.tells else None)

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": torch.zeros(3 if ids is None else len(ids), 1)}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        ids = torch.arange(3) if ids is None else ids
        shown = (10 * (ids + 1) + self.clock[ids]).to(torch.uint8)
        return {"cam": shown[:, None, None, None].expand(-1, 2, 2, 3)}


def test_episodes_that_end_by_success_end_good() -> None:
    env = Pictured()
    reel = film(make_policy(env), env, episodes=3, seed=0)
    assert reel.frames.shape == (5, 3, 2, 2, 3)
    assert reel.frames.dtype == np.uint8
    # Env i's last step has no picture, so the one before it is repeated.
    assert reel.frames[:, :, 0, 0, 0].T.tolist() == [
        [10, 11, 11, 11, 11],
        [20, 21, 22, 22, 22],
        [30, 31, 32, 33, 33],
    ]
    assert reel.success.astype(int).T.tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    assert reel.lengths.tolist() == [2, 3, 4]
    assert reel.fps == 7.0


def test_success_that_passes_is_shown_while_it_lasts() -> None:
    env = Pictured(ends=False)
    reel = film(make_policy(env), env, episodes=2, seed=0)
    assert reel.frames[:, :, 0, 0, 0].T.tolist() == [[10, 11, 12, 13, 14, 14], [20, 21, 22, 23, 24, 24]]
    assert reel.success.astype(int).T.tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    assert reel.lengths.tolist() == [5, 5]


def test_an_env_that_tells_no_success_is_never_good() -> None:
    env = Pictured(tells=False)
    assert not film(make_policy(env), env, episodes=3, seed=0).success.any()


def test_no_more_episodes_than_envs_and_no_fewer_than_one() -> None:
    env = Pictured()
    assert film(make_policy(env), env, episodes=9, seed=0).lengths.shape == (3,)
    with pytest.raises(ConfigError, match=r"at least 1 episode \(runtime.video_episodes\), not 0"):
        film(make_policy(env), env, episodes=0, seed=0)


def test_long_episodes_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film_module, "LONGEST", 3)
    env = Pictured(ends=False)
    reel = film(make_policy(env), env, episodes=1, seed=0)
    assert reel.frames[:, 0, 0, 0, 0].tolist() == [10, 11, 12]
    assert reel.lengths.tolist() == [3]


def test_training_is_not_disturbed() -> None:
    env = Pictured()
    env.policy = policy = make_policy(env).train()
    before = torch.get_rng_state()
    film(policy, env, episodes=1, seed=0)
    assert env.modes == [False, False]
    assert policy.training
    assert torch.equal(torch.get_rng_state(), before)
