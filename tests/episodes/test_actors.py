"""Who acts: shares, mistakes, and the same again for the same seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.data.behaviors import LONGEST_BURST, LONGEST_OVERRUN, Act, Behavior, BehaviorMixture, uniform
from plaudit.errors import ConfigError


def an_env(num_envs: int = 200, horizon: int | None = 20, low: float = 0.0, high: float = 4.0) -> Any:
    """What a crew looks at of an env; the middle of its actions is 2, half their range 2."""
    space = gym.spaces.Box(low, high, (3,), np.float32)
    device = torch.device("cpu")
    return SimpleNamespace(num_envs=num_envs, max_episode_steps=horizon, action_space=space, device=device)


def always(value: float, num_envs: int = 200) -> Act:
    return lambda obs: torch.full((num_envs, 3), value)


def play(crew: BehaviorMixture, steps: int) -> torch.Tensor:
    """Actions (steps, num_envs, 3)."""
    return torch.stack([crew.act({}) for _ in range(steps)])


def test_an_actor_without_mistakes_does_what_it_does() -> None:
    crew = BehaviorMixture([Behavior("expert", always(3.0))], an_env(), 0)
    assert (play(crew, 5) == 3.0).all()
    assert crew.describe(0) == {"actor": "expert"}


def test_episodes_are_shared_out_by_weight_and_stay_with_their_actor() -> None:
    actors = [Behavior("a", always(1.0), 1.0), Behavior("b", always(3.0), 3.0, noise=1e-6)]
    crew = BehaviorMixture(actors, an_env(), 0)
    first = play(crew, 4)
    assert (first[0].round() == first[3].round()).all()
    assert 0.65 < (first[0, :, 0] > 2).float().mean() < 0.85
    env = int((first[0, :, 0] > 2).nonzero()[0])
    assert crew.describe(env) == {"actor": "b", "noise": 1e-6}
    crew.begin(np.arange(100))
    second = play(crew, 1)
    assert (second[0, 100:].round() == first[0, 100:].round()).all()
    assert not (second[0, :100].round() == first[0, :100].round()).all()


def test_an_actor_that_several_share_is_asked_once() -> None:
    asked = []

    def act(obs: Any) -> torch.Tensor:
        asked.append(obs)
        return torch.zeros(200, 3)

    crew = BehaviorMixture([Behavior("expert", act), Behavior("expert", act, noise=0.1)], an_env(), 0)
    play(crew, 3)
    assert len(asked) == 3


def test_noise_is_in_halves_of_the_range_and_stays_within_it() -> None:
    actions = play(BehaviorMixture([Behavior("x", always(2.0), noise=0.1)], an_env(), 0), 20)
    assert actions.std().item() == pytest.approx(0.2, rel=0.05)
    actions = play(BehaviorMixture([Behavior("x", always(4.0), noise=5.0)], an_env(), 0), 20)
    assert actions.min() == 0.0 and actions.max() == 4.0


def test_drift_sets_in_in_the_first_half_and_stays() -> None:
    actions = play(BehaviorMixture([Behavior("x", always(2.0), drift=0.5)], an_env(), 0), 20)
    late = actions[10:]
    assert (late == late[0]).all() and (late[0] != 2.0).any(-1).all()
    assert (late - 2.0).abs().max() <= 1.0
    starts = (actions != 2.0).any(-1).float().argmax(0)
    assert set(starts.tolist()) == set(range(11))


def test_halts_stop_a_share_of_the_episodes() -> None:
    actions = play(BehaviorMixture([Behavior("x", always(4.0), halts=0.5)], an_env(), 0), 20)
    halted = (actions[-1] == 2.0).all(-1)
    assert 0.35 < halted.float().mean() < 0.65
    assert (actions[:, ~halted] == 4.0).all() and (actions[10:, halted] == 2.0).all()


def test_bursts_hold_one_random_action_for_a_while() -> None:
    actions = play(BehaviorMixture([Behavior("x", always(4.0), bursts=0.1)], an_env(), 0), 200)
    off = (actions != 4.0).any(-1)
    assert 0.1 < off.float().mean() < 0.6
    for env in range(20):
        runs = np.split(actions[:, env], 1 + np.flatnonzero((actions[1:, env] != actions[:-1, env]).any(-1)))
        assert max(len(run) for run in runs if (run[0] != 4.0).any()) <= LONGEST_BURST


def test_overruns_hold_on_to_an_action_for_a_while_in_a_share_of_the_episodes() -> None:
    steps = iter(range(100))

    def rising(obs: Any) -> torch.Tensor:
        return torch.full((200, 3), 0.1 * next(steps))

    actions = play(BehaviorMixture([Behavior("x", rising, overruns=0.5)], an_env(), 0), 20)[:, :, 0]
    held = (actions[1:] == actions[:-1]).sum(0)
    assert 0.35 < (held > 0).float().mean() < 0.65
    assert held.max() <= round(LONGEST_OVERRUN * 20) - 1
    late = actions[:, held > 0]
    assert (late <= 0.1 * torch.arange(20)[:, None] + 1e-6).all()  # It hangs on to what was, and then catches up.


def test_a_misled_actor_is_told_where_it_believes_the_goal_to_be() -> None:
    told = []

    def misled(offset: np.ndarray[Any, Any]) -> torch.Tensor:
        told.append(offset.copy())
        return torch.full((200, 3), 3.0)

    others = [Behavior(name, always(1.0), misaim=0.2, misled=misled) for name in "bc"]
    crew = BehaviorMixture([Behavior("a", always(1.0), 2.0), *others], an_env(), 0)
    actions = play(crew, 2)
    assert len(told) == 2  # Once a step, for all that are misled.
    wrong = crew.turn > 0
    assert (actions[:, wrong] == 3.0).all() and (actions[:, ~wrong] == 1.0).all()
    far = np.linalg.norm(told[0], axis=1)
    assert (far[~wrong] == 0).all() and far[wrong].max() <= 0.2 and far[wrong].mean() == pytest.approx(0.1, rel=0.2)
    assert (told[0] == told[1]).all()
    crew.begin(np.arange(200))
    play(crew, 1)
    assert not (told[2] == told[0]).all()


def test_the_same_seed_does_the_same() -> None:
    def actions(seed: int) -> torch.Tensor:
        env = an_env()
        actors = [Behavior("random", uniform(env, seed)), Behavior("x", always(2.0), 1.0, 0.1, 0.1, 0.1, 0.5)]
        return play(BehaviorMixture(actors, env, seed), 20)

    assert torch.equal(actions(1), actions(1)) and not torch.equal(actions(1), actions(2))


def test_uniform_actions_fill_the_space() -> None:
    actions = play(BehaviorMixture([Behavior("random", uniform(an_env(), 0))], an_env(), 0), 50)
    assert actions.min() < 0.01 and actions.max() > 3.99 and actions.mean().item() == pytest.approx(2.0, abs=0.05)


def test_actions_without_bounds_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no bounds"):
        BehaviorMixture([Behavior("x", always(0.0))], an_env(low=-np.inf), 0)
