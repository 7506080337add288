"""The policy that SAC trains, as others see it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.errors import ConfigError
from plaudit.rl import build_policy
from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.sac_policy import SACPolicy

VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
NET = {"type": "mlp", "hidden_sizes": [16], "activation": "tanh"}
LOOKING = {**NET, "type": "cnn"}
CAMERA = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
SEEN = gym.spaces.Dict({"state": VECTOR, "eye": CAMERA})


def make(obs: gym.Space[Any] = VECTOR, actions: gym.spaces.Box = ACTIONS, **block: Any) -> SACPolicy:
    torch.manual_seed(0)
    policy = build_policy({"name": "sac", "actor": NET, "critic": NET, **block}, obs, actions)
    assert isinstance(policy, SACPolicy)
    return policy


def test_actions_are_in_the_spaces_units() -> None:
    policy, obs = make(), torch.randn(4000, 3)
    with torch.no_grad():
        action = policy.act(obs)
        assert (action > torch.tensor([-2.0, 0.0])).all() and (action < torch.tensor([2.0, 10.0])).all()
        assert action[:, 1].mean() == pytest.approx(5.0, abs=0.3)
        torch.testing.assert_close(policy.to_space(policy.to_unit(action)), action)
        assert torch.equal(policy.act(obs, deterministic=True), policy.act(obs, deterministic=True))
        assert torch.equal(policy.act(obs, noise=torch.zeros(4000, 2)), policy.act(obs, deterministic=True))


def test_densities_add_up_to_one_in_those_units() -> None:
    policy = make()
    with torch.no_grad():
        for part in policy.actor.parameters():
            part.add_(0.3 * torch.randn_like(part))
        grid = torch.cartesian_prod(torch.linspace(-1.995, 1.995, 400), torch.linspace(0.0125, 9.9875, 400))
        log_prob, _, _ = policy.evaluate_actions(torch.zeros(len(grid), 3), grid)
        assert float(log_prob.exp().mean()) * 40.0 == pytest.approx(1.0, abs=0.02)
        assert torch.equal(policy.log_prob(torch.zeros(len(grid), 3), grid), log_prob)
        obs = torch.zeros(20_000, 3)
        _, entropy, _ = policy.evaluate_actions(obs, policy.act(obs))
        log_prob = policy.evaluate_actions(obs, policy.act(obs))[0]
        assert float(entropy.mean()) == pytest.approx(-float(log_prob.mean()), abs=0.05)


def test_values_are_the_critics_together() -> None:
    policy, obs = make(cfg={"num_critics": 4}), torch.randn(5, 3)
    with torch.no_grad():
        action, _, value = policy.get_action(obs, deterministic=True)
        each = policy.get_q(obs, action)
        assert each.shape == (4, 5)
        torch.testing.assert_close(value, each.mean(0))
        torch.testing.assert_close(policy.get_value(obs), value)


def test_several_vectors_are_joined() -> None:
    policy = make(gym.spaces.Dict({"a": VECTOR, "b": gym.spaces.Box(-1, 1, (2,), np.float32)}))
    parts = {"b": torch.full((1, 2), 2.0), "a": torch.full((1, 3), 1.0)}
    assert policy.vector(parts).tolist() == [[1, 1, 1, 2, 2]]
    assert policy.act(parts).shape == (1, 2)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy.critic is missing: sac needs"):
        make(critic=None)
    with pytest.raises(ConfigError, match=r"finite bounds"):
        make(actions=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32))
    for networks in ({}, {"actor": LOOKING}, {"critic": LOOKING}):
        with pytest.raises(
            ConfigError, match=r"cameras \(eye\): set both policy.actor.type and policy.critic.type to cnn"
        ):
            make(SEEN, **networks)
    with pytest.raises(ConfigError, match=r"'cnn' needs cameras, but the env observes none"):
        make(actor=LOOKING, critic=LOOKING)


@pytest.mark.parametrize("obs", [SEEN, CAMERA], ids=["with numbers", "alone"])
def test_pictures_are_seen_by_actor_and_critics(obs: gym.Space[Any]) -> None:
    policy = make(obs, actor=LOOKING, critic=LOOKING)
    picture, vector = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8), torch.randn(5, 3)

    def shown(picture: torch.Tensor) -> PolicyObs:
        return {"state": vector, "eye": picture} if obs is SEEN else picture

    with torch.no_grad():
        action = policy.act(shown(picture), deterministic=True)
        assert action.shape == (5, 2)
        assert (policy.act(shown(255 - picture), deterministic=True) != action).all()
        assert (policy.get_q(shown(picture), action) != policy.get_q(shown(255 - picture), action)).all()
        numbers = policy.features(shown(picture))[:, :3]
        assert torch.equal(numbers, vector) == (obs is SEEN)


def test_who_only_acts_asks_no_critic_and_whoever_asks_looks_once() -> None:
    policy = make(SEEN, actor=LOOKING, critic=LOOKING)
    assert policy.encoder is not None
    asked = {"critics": 0, "encoder": 0}

    def count(name: str) -> None:
        policy.get_submodule(name).register_forward_hook(lambda *_: asked.update({name: asked[name] + 1}))

    count("critics")
    count("encoder")
    obs = {"state": torch.randn(2, 3), "eye": torch.zeros(2, 8, 8, 3, dtype=torch.uint8)}
    torch.manual_seed(3)
    action = policy.act(obs)
    assert asked == {"critics": 0, "encoder": 1}
    torch.manual_seed(3)
    again, log_prob, value = policy.get_action(obs)
    assert asked == {"critics": 1, "encoder": 2}
    assert torch.equal(action, again)
    drawn = torch.get_rng_state()
    torch.manual_seed(3)
    policy.act(obs)
    assert torch.equal(drawn, torch.get_rng_state()), "one draw for each action"
    told, _, valued = policy.evaluate_actions(obs, action)
    torch.testing.assert_close((log_prob, value), (told, valued))
