from __future__ import annotations

import pytest
import torch
from learned_samples import Slider, manager

from plaudit.rewards.reward_env import RewardedEnv

torch.set_num_threads(1)


def run(env: RewardedEnv, place: float, steps: int = 3) -> dict[str, float]:
    assert isinstance(env.env, Slider)
    env.reset(0)
    for _ in range(steps):
        env.env.place[:] = place
        env.step(torch.zeros(env.num_envs, 1))
    return env.report()


def test_numbers_for_the_log_by_hand() -> None:
    env = RewardedEnv(Slider(2, length=3), manager(combine_mode="weighted", reward_weight=2.0, env_reward_weight=0.5))
    found = run(env, 0.25)
    # A success at every step: 2 x 1 + 0.5 x 0.25.
    assert found["rollout/model_reward"] == 1.0
    assert found["rollout/env_reward"] == 0.25
    assert found["rollout/rewards"] == 2.125
    assert found["rollout/scored_frames"] == 6
    assert found["time/compute_model_rewards"] > 0
    assert found["time/compute_model_rewards_iteration"] == pytest.approx(3e-3 * found["time/compute_model_rewards"])
    assert found["time/render_frames"] > 0
    assert env.report() == {}


def test_a_reward_that_never_changes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    env = RewardedEnv(Slider(2, length=3), manager(reward_mode="terminal"))
    run(env, -0.5, 2)
    assert not caplog.messages  # No episode ended: nothing was asked.
    run(env, -0.5)
    (said,) = caplog.messages
    assert "was 0 at all 2 frames" in said and "highest probability 0.119, threshold 0.500" in said
    assert "runtime.resume" in said and "reward.reward_mode=per_step" in said
    run(env, -0.5)
    assert len(caplog.messages) == 1


def test_success_everywhere_is_another_trouble(caplog: pytest.LogCaptureFixture) -> None:
    run(RewardedEnv(Slider(2), manager()), 0.5)
    assert "raise reward.reward_threshold" in caplog.text


def test_an_env_that_ends_at_its_own_success_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for settings, count in (({}, 1), ({"env_success_ends": True}, 1)):
        run(RewardedEnv(Slider(2, ends=True), manager(**settings)), 0.8)
        said = [text for text in caplog.messages if "ended an episode at its own success" in text]
        assert len(said) == count
