"""What is kept so that rewards can be given again, of envs that show their pictures in different ways."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learned_samples import SIZE, Slider, manager, pictures

from plaudit.envs.base import Frames, Obs
from plaudit.errors import CheckpointError, DataError
from plaudit.rewards.relabel import PLAIN, Evidence, recompute_rewards
from plaudit.rewards.reward_env import RewardedEnv


class Seeing(Slider):
    """A slider whose picture is observed."""

    def __init__(self, num_envs: int = 4) -> None:
        super().__init__(num_envs)
        camera = gym.spaces.Box(0, 255, (*SIZE, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "base_camera": camera})

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {**super().observe(ids), **self.render(ids)}


class Snapping(Slider):
    """A slider that can be drawn later."""

    can_snapshot = True

    def snapshot(self) -> torch.Tensor:
        return self.place[:, None].double()

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        return {"base_camera": pictures(4 * snapshots[:, 0].float())}


@pytest.mark.parametrize(
    ("kind", "more"), [(Seeing, set()), (Snapping, {"snapshot"}), (Slider, {"pictured", "frame/base_camera"})]
)
def test_no_more_is_kept_than_is_not_there_already(kind: type[Slider], more: set[str]) -> None:
    env = RewardedEnv(kind(3), manager(reward_interval=2))
    assert env.seen() == {}
    layout = env.remember()
    assert set(layout) == set(PLAIN) | more
    env.reset(0)
    ages, pictured = [], []
    for _ in range(5):
        step = env.step(torch.ones(3, 1))
        seen = env.seen()
        assert {name: (tuple(value.shape[1:]), value.dtype) for name, value in seen.items()} == layout
        assert torch.equal(seen["env_reward"], step.env_reward)
        ages.append(seen["age"].tolist())
        pictured.append(seen["pictured"].tolist() if kind is Slider else None)
    assert ages == [[1] * 3, [2] * 3, [3] * 3, [4] * 3, [0] * 3]  # The fifth is the last of its episode.
    if kind is Slider:  # Every other step, and the last.
        assert pictured == [[False] * 3, [True] * 3, [False] * 3, [True] * 3, [True] * 3]


@pytest.mark.parametrize("kind", [Seeing, Snapping, Slider])
@pytest.mark.parametrize("settings", [{}, {"hold": 2}, {"reward_interval": 2}, {"reward_mode": "terminal"}])
def test_rewards_are_given_again_as_they_were(kind: type[Slider], settings: dict[str, Any]) -> None:
    env = RewardedEnv(kind(2), manager(**settings))
    env.remember()
    env.reset(3)
    kept: list[tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, torch.Tensor], torch.Tensor]] = []
    for _ in range(12):
        step = env.step(torch.ones(2, 1) * 0.8)
        led_to = dict(step.obs)
        if step.final_obs is not None:
            led_to = {name: value.index_copy(0, step.ended, step.final_obs[name]) for name, value in led_to.items()}
        kept.append((env.seen(), step.done, led_to, step.reward))
    for row in range(2):
        seen = {name: torch.stack([one[0][name][row] for one in kept]) for name in kept[0][0]}
        obs = {name: torch.stack([one[2][name][row] for one in kept]) for name in kept[0][2]}
        told = torch.stack([one[3][row] for one in kept])
        flat = obs if len(obs) > 1 else obs["state"]
        reward, terminated = env.again(seen, torch.stack([one[1][row] for one in kept]), flat)
        assert torch.equal(reward, told)
        assert 0 < float(told.sum()) < 12
        assert not terminated.any()


@pytest.mark.parametrize("kind", [Seeing, Snapping, Slider])
def test_other_steps_can_be_asked_of_where_their_pictures_are_there(kind: type[Slider]) -> None:
    env = RewardedEnv(kind(1), manager(reward_interval=2))
    env.remember()
    env.reset(3)
    seen, ended, states = [], [], []
    for _ in range(5):
        step = env.step(torch.ones(1, 1))
        seen.append(env.seen())
        ended.append(step.done)
        states.append({name: value.clone() for name, value in (step.final_obs or step.obs).items()})
    kept = {name: torch.cat([one[name] for one in seen]) for name in seen[0]}
    obs = {name: torch.cat([one[name] for one in states]) for name in states[0]}
    claims = ((32 * obs["state"][:, 0]).round() > 0).float()  # Pictures round the logit to sixteenths.
    assert 0 < claims.sum() < 5
    # Less than was asked then can be asked of in any case.
    env.manager = manager(reward_mode="terminal")
    assert env.again(kept, torch.cat(ended), obs)[0].tolist() == [0, 0, 0, 0, 1]
    env.manager = manager()
    if kind is Slider:
        with pytest.raises(CheckpointError, match=r"'per_step' with reward_interval 1 asks .* pictures were not kept"):
            env.again(kept, torch.cat(ended), obs)
    else:
        assert torch.equal(env.again(kept, torch.cat(ended), obs)[0], claims)


def test_a_model_that_looks_elsewhere_is_told_so() -> None:
    evidence = Evidence(Snapping(1), ("wrist_camera",))
    seen = {"frame/base_camera": torch.zeros(2, *SIZE, 3, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match=r"looks at 'wrist_camera', of which nothing was kept"):
        evidence.frames(seen, {"state": torch.zeros(2, 2)}, torch.arange(2))


def test_guards_need_a_state() -> None:
    slider = Slider(1)
    judge = manager(readings=slider.readings, guards=["place > 0"])
    evidence = Evidence(slider, ("base_camera",))
    seen = {name: torch.ones(2, *shape, dtype=kind) for name, (shape, kind) in evidence.layout.items()}
    with pytest.raises(DataError, match=r"guards need 'state'"):
        recompute_rewards(evidence, judge, seen, torch.zeros(2, dtype=torch.bool), {})
