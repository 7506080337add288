import math
import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from rl_helpers import make_policy

from plaudit.envs import Outcome, TaskEnv
from plaudit.envs.base import Obs
from plaudit.errors import NonFiniteError
from plaudit.rl.episode_stats import TrainingStats
from plaudit.rl.evaluation import evaluate


class Uneven(TaskEnv):
    """Env i's episodes all last i + 1 steps, with reward 1 a step; long ones succeed, once or till the end."""

    def __init__(self, num_envs: int = 4) -> None:
        super().__init__(None)
        self.num_envs = num_envs
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-1, 1, (1,), np.float32)})
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.seeds: list[int | None] = []
        self.actions: list[torch.Tensor] = []

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if seed is not None:
            self.seeds.append(seed)

    def advance(self, action: torch.Tensor) -> Outcome:
        # An env that draws from the global generators, as a careless one would.
        torch.rand(3), np.random.rand(3), random.random()
        self.actions.append(action)
        ends = self.clock + 1 == torch.arange(self.num_envs) + 1
        success = (torch.arange(self.num_envs) == 3) | ((torch.arange(self.num_envs) == 2) & (self.clock == 1))
        return Outcome(torch.ones(self.num_envs), ends, success)

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": torch.zeros(self.num_envs if ids is None else len(ids), 1)}


def test_every_env_plays_its_share_so_that_short_episodes_are_not_favoured() -> None:
    env = Uneven()
    result = evaluate(make_policy(env), env, episodes=10, seed=5)
    # 10 over 4 envs: 3, 3, 2, 2. The first 10 to finish would have been mostly of length 1.
    assert result.episodes["length"].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4]
    assert result.episodes["return"].tolist() == result.episodes["length"].tolist()
    assert result.metrics["length"] == pytest.approx(2.3)
    assert env.seeds == [5]


def test_success_once_and_at_the_end() -> None:
    env = Uneven()
    result = evaluate(make_policy(env), env, episodes=4, seed=0)
    assert result.episodes["success_once"].tolist() == [0, 0, 1, 1]
    assert result.episodes["success_at_end"].tolist() == [0, 0, 0, 1]
    assert result.metrics["success_once"] == 0.5
    assert result.metrics["success_at_end"] == 0.25


def test_fewer_episodes_than_envs() -> None:
    env = Uneven()
    assert evaluate(make_policy(env), env, episodes=2, seed=0).episodes["length"].tolist() == [1, 2]


def test_training_is_not_disturbed() -> None:
    env = Uneven()
    policy = make_policy(env).train()
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
    evaluate(policy, env, episodes=8, seed=0, deterministic=False)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert random.getstate() == before[2]
    assert policy.training


def test_stochastic_evaluations_repeat_with_their_seed() -> None:
    env, again = Uneven(), Uneven()
    policy = make_policy(env)
    evaluate(policy, env, episodes=8, seed=3, deterministic=False)
    torch.rand(7)
    evaluate(policy, again, episodes=8, seed=3, deterministic=False)
    assert torch.equal(torch.stack(env.actions), torch.stack(again.actions))
    assert env.actions[0].std() > 0


class Late(Uneven):
    """Says nothing of success before its third step, as a Gymnasium env may until there is one."""

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        if len(self.actions) < 3:
            outcome.success = None
        return outcome


def test_episodes_before_success_is_first_told_count_as_failed() -> None:
    env = Late()
    result = evaluate(make_policy(env), env, episodes=4, seed=0)
    assert result.episodes["length"].tolist() == [1, 2, 3, 4]
    assert result.episodes["success_once"].tolist() == [0, 0, 0, 1]
    assert result.episodes["success_at_end"].tolist() == [0, 0, 0, 1]


def test_training_counts_episodes_without_a_word_on_success_as_failed() -> None:
    stats = TrainingStats(2, torch.device("cpu"))
    reward, both, yes = torch.ones(2), torch.tensor([True, True]), torch.tensor([True, False])
    stats.add(reward, both, {"success": None})
    assert set(stats.recent) == {"return", "length"}
    stats.add(reward, both, {"success": yes})
    stats.add(reward, both, {})
    for name in ("success_once", "success_at_end"):
        assert list(stats.recent[name]) == [0, 0, 1, 0, 0, 0]
    assert stats.flush()["rollout/success_once"] == pytest.approx(1 / 6)


class Broken(Uneven):
    """Has a number that is none in env 2, at reset or at the second step."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        if self.what == "reward" and len(self.actions) == 2:
            outcome.reward[2] = math.nan
        return outcome

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        obs = super().observe(ids)
        if ids is None and (self.what, len(self.actions)) in (("reset", 0), ("obs", 2)):
            obs["state"][2] = math.inf
        return obs


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("reset", r"^observation\[0\] of env 2 is inf at the evaluation's reset"),
        ("obs", r"^observation\[0\] of env 2 is inf at step 2 of the evaluation"),
        ("reward", r"^reward of env 2 is nan at step 2 of the evaluation"),
    ],
)
def test_numbers_that_are_not_finite_are_named(what: str, message: str) -> None:
    env = Broken(what)
    with pytest.raises(NonFiniteError, match=message):
        evaluate(make_policy(env), env, episodes=4, seed=0)


def test_a_policy_that_acts_with_no_number_is_named() -> None:
    env = Uneven()
    policy = make_policy(env)
    with torch.no_grad():
        policy.actor[-1].bias.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"^action\[0\] of env 0 is nan at step 1 of the evaluation"):
        evaluate(policy, env, episodes=4, seed=0)
