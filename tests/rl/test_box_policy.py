"""What policies with continuous actions share."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from plaudit.config.algorithm_schema import ActorCriticConfig
from plaudit.errors import ConfigError
from plaudit.rl.policies.actor_critic import ActorCritic
from plaudit.rl.policies.box_policy import join, split_space

VECTOR = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def policy(low: list[float], high: list[float], obs: gym.Space[Any] = VECTOR) -> ActorCritic:
    actions = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    return ActorCritic(
        obs, actions, torch.device("cpu"), ActorCriticConfig(normalize_obs=False), nn.Identity(), nn.Identity()
    )


def test_units_by_hand() -> None:
    made = policy([-2.0, 0.0], [2.0, 10.0])
    assert made.bounded and not made.unit
    assert made.to_space(torch.tensor([[0.5, -1.0]])).tolist() == [[1.0, 0.0]]
    assert made.to_unit(torch.tensor([[1.0, 7.5]])).tolist() == [[0.5, 0.5]]
    assert made.log_volume == pytest.approx(np.log(2.0 * 5.0))


def test_where_the_space_has_no_end_it_keeps_its_units() -> None:
    made = policy([-1.0, -np.inf, 3.0], [1.0, np.inf, np.inf])
    assert made.unit and not made.bounded
    action = torch.tensor([[0.5, -7.0, 4.0]])
    assert torch.equal(made.to_space(action), action)
    assert torch.equal(made.to_unit(action), action)


def test_units_are_no_part_of_what_is_saved() -> None:
    assert set(policy([-2.0], [2.0]).state_dict()) == {"log_std"}


def test_vectors_are_side_by_side_in_the_order_of_the_space() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Box(-1, 1, (2,), np.float32), "a": VECTOR})
    made = policy([-1.0], [1.0], space)
    joined = made.vector({"a": torch.full((1, 3), 1.0), "b": torch.full((1, 2), 2.0)})
    assert joined.tolist() == [[1, 1, 1, 2, 2] if list(space.spaces) == ["a", "b"] else [2, 2, 1, 1, 1]]


def test_only_what_is_there_is_joined() -> None:
    left, right = torch.ones(1, 2), torch.zeros(1, 1)
    assert join(left, None) is left and join(None, right) is right
    assert join(left, right).tolist() == [[1, 1, 0]]


def test_spaces_are_vectors_and_cameras() -> None:
    camera = gym.spaces.Box(0, 255, (8, 6, 3), np.uint8)
    assert split_space(gym.spaces.Dict({"state": VECTOR, "eye": camera})) == ({"state": 3}, {"eye": (8, 6, 3)})
    assert split_space(camera) == ({}, {"": (8, 6, 3)})
    with pytest.raises(ConfigError, match=r"observation 'grid' has shape \(4, 4\)"):
        split_space(gym.spaces.Dict({"grid": gym.spaces.Box(0, 1, (4, 4), np.float32)}))
