"""The probe envs do what their answers assume: returns by hand against `true_value`."""

from __future__ import annotations

import pytest
import torch

from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import ActionReward, ConstantValue, Discount, ObsActionReward, ObsValue, Probe, Timeout

GAMMA = 0.9


@pytest.mark.parametrize("kind", [ConstantValue, ObsValue, Discount, ActionReward, ObsActionReward])
def test_best_play_earns_the_true_value(kind: type[Probe]) -> None:
    env = kind(ProbeConfig(num_envs=16))
    state = env.reset(seed=0)[0]["state"]
    value = env.true_value(state, GAMMA)
    total, discount, done = torch.zeros(16), 1.0, torch.zeros(16, dtype=torch.bool)
    while not done.all():
        action = env.best_action(state) if isinstance(env, ActionReward) else torch.zeros(16, 1)
        step = env.step(action)
        total += discount * step.reward
        state, done, discount = step.obs["state"], step.terminated, discount * GAMMA
        assert not step.truncated.any()
    assert torch.allclose(total, value)


def test_discount_by_hand() -> None:
    env = Discount(ProbeConfig(num_envs=1))
    assert env.reset(seed=0)[0]["state"].item() == 0.0
    first, second = env.step(torch.zeros(1, 1)), env.step(torch.zeros(1, 1))
    assert (first.reward.item(), first.obs["state"].item(), first.terminated.item()) == (0.0, 1.0, False)
    assert (second.reward.item(), second.obs["state"].item(), second.terminated.item()) == (1.0, 0.0, True)
    assert env.true_value(torch.tensor([[0.0], [1.0]]), GAMMA).tolist() == pytest.approx([0.9, 1.0])


def test_timeout_is_only_ever_truncated() -> None:
    env = Timeout(ProbeConfig(num_envs=2))
    env.reset(seed=0)
    steps = [env.step(torch.zeros(2, 1)) for _ in range(10)]
    assert [bool(step.truncated.all()) for step in steps] == [False] * 4 + [True] + [False] * 4 + [True]
    assert not any(step.terminated.any() for step in steps)
    # One step and the bootstrap from its end: 1 + 0.9·10 = 10.
    assert env.true_value(torch.zeros(1, 1), GAMMA).item() == pytest.approx(10.0)


def test_worse_actions_earn_less() -> None:
    env = ObsActionReward(ProbeConfig(num_envs=2))
    env.load_state_dict(
        {
            "seed": 0,
            "episodes": torch.ones(2).long(),
            "value": torch.tensor([0.8, -0.4]),
            "clock": torch.zeros(2).long(),
        }
    )
    step = env.step(torch.tensor([[0.4], [0.3]]))
    assert step.reward.tolist() == pytest.approx([0.0, -0.25])  # Best are 0.4 and -0.2.
    assert step.success is not None and step.success.tolist() == [True, False]


def test_episodes_differ_between_envs_and_from_one_to_the_next() -> None:
    env = ObsActionReward(ProbeConfig(num_envs=4))
    episodes = [env.reset(seed=0)[0]["state"], *(env.step(torch.zeros(4, 1)).obs["state"] for _ in range(4))]
    assert len(torch.cat(episodes).unique()) == 20
