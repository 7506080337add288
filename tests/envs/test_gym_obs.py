"""Observations of any shape to one vector and named pictures."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from plaudit.envs.gym.observations import ObsReader, row, stack
from plaudit.errors import ConfigError, EnvError

CPU = torch.device("cpu")
NESTED = Dict(
    {
        "goal": Box(-1, 1, (2,), np.float64),
        "agent": Dict({"vel": Box(-1, 1, (1, 2), np.float32), "pos": Box(-1, 1, (1,), np.float32)}),
        "pixels": Dict({"front": Box(0, 255, (2, 4, 3), np.uint8), "wrist": Box(0, 255, (3, 2, 4), np.uint8)}),
    }
)


def sample() -> dict[str, Any]:
    """Two envs of it."""
    front = np.arange(2 * 2 * 4 * 3, dtype=np.uint8).reshape(2, 2, 4, 3)
    return {
        "goal": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "agent": {"vel": np.array([[[5.0, 6.0]], [[7.0, 8.0]]]), "pos": np.array([[9.0], [10.0]])},
        "pixels": {"front": front, "wrist": np.moveaxis(front, -1, 1)},
    }


def test_numbers_are_joined_in_the_sorted_order_of_their_names() -> None:
    reader = ObsReader(NESTED, "X-v0")
    assert reader.parts == {"agent.pos": 1, "agent.vel": 2, "goal": 2}
    obs = reader(sample(), CPU)
    assert obs["state"].tolist() == [[9, 5, 6, 1, 2], [10, 7, 8, 3, 4]] and obs["state"].dtype == torch.float32
    assert reader.space["state"].shape == (5,)


def test_state_keys_choose_and_order() -> None:
    reader = ObsReader(NESTED, "X-v0", ["goal", "agent.pos"])
    assert reader(sample(), CPU)["state"].tolist() == [[1, 2, 9], [3, 4, 10]]
    with pytest.raises(ConfigError, match=r"state_keys.*'gaol'.*agent.pos, agent.vel, goal.*Did you mean 'goal'"):
        ObsReader(NESTED, "X-v0", ["gaol"])
    with pytest.raises(ConfigError, match="one array"):
        ObsReader(Box(0, 1, (3,)), "X-v0", ["a"])


def test_pictures_keep_their_names_and_have_channels_last() -> None:
    reader = ObsReader(NESTED, "X-v0")
    assert reader.pictures == ("pixels.front", "pixels.wrist")
    obs, given = reader(sample(), CPU), sample()
    assert torch.equal(obs["pixels.front"], obs["pixels.wrist"])
    assert np.array_equal(obs["pixels.front"].numpy(), given["pixels"]["front"])
    assert reader.space["pixels.wrist"].shape == (2, 4, 3)


def test_pictures_are_scaled() -> None:
    reader = ObsReader(NESTED, "X-v0", size=(1, 2))
    obs = reader(
        {**sample(), "pixels": {"front": np.full((2, 2, 4, 3), 7, np.uint8), "wrist": sample()["pixels"]["wrist"]}}, CPU
    )
    assert obs["pixels.front"].tolist() == [[[[7, 7, 7], [7, 7, 7]]]] * 2
    assert reader.space["pixels.front"].shape == obs["pixels.wrist"].shape[1:] == (1, 2, 3)


def test_what_is_returned_is_a_copy() -> None:
    given = sample()
    obs = ObsReader(NESTED, "X-v0")(given, CPU)
    given["goal"][:] = 0
    given["pixels"]["front"][:] = 0
    assert obs["state"][0].tolist() == [9, 5, 6, 1, 2] and bool(obs["pixels.front"].any())


@pytest.mark.parametrize("space", [Discrete(3), Dict({"words": Text(5)})])
def test_spaces_that_are_not_boxes(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(EnvError, match="only Box spaces"):
        ObsReader(space, "X-v0")


def test_a_picture_called_state() -> None:
    space = Dict({"state": Box(0, 255, (2, 2, 3), np.uint8), "numbers": Box(0, 1, (1,))})
    with pytest.raises(EnvError, match="picture called 'state'"):
        ObsReader(space, "X-v0")


def test_rows() -> None:
    given = sample()
    assert np.array_equal(stack([row(given, 1), row(given, 0)])["agent"]["pos"], [[10.0], [9.0]])
