"""Ranges of the envs' own keys."""

from __future__ import annotations

from typing import Any

import pytest

from plaudit.config.structured import fill
from plaudit.envs.config import GymConfig, ProbeConfig
from plaudit.envs.mujoco.config import (
    HOLE_DEPTH,
    MOST_CLEARANCE,
    PegInsertionConfig,
    PickCubeConfig,
    PushCubeConfig,
)
from plaudit.errors import ConfigError


@pytest.mark.parametrize(
    ("cls", "key", "value"),
    [
        (GymConfig, "num_envs", 0),
        (GymConfig, "max_episode_steps", 0),
        (ProbeConfig, "num_envs", 0),
        (PushCubeConfig, "num_envs", 0),
        (PushCubeConfig, "success_threshold", 0.0),
        (PickCubeConfig, "episode_length", 0),
        (PickCubeConfig, "success_threshold", -0.1),
        (PickCubeConfig, "action_scale", 0.0),
        (PickCubeConfig, "camera_size", [4, 64]),
        (PegInsertionConfig, "cameras", ["side"]),
        (PegInsertionConfig, "clearance", 0.0),
        (PegInsertionConfig, "clearance", 0.038),
        (PegInsertionConfig, "success_depth", 0.0),
        (PegInsertionConfig, "success_depth", 0.06),
        (PegInsertionConfig, "success_hold_steps", 0),
    ],
)
def test_values_out_of_range_are_named(cls: type, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^env\.cfg\.{key}: .*, got "):
        fill(cls, {key: value}, "env.cfg")


def test_the_defaults_and_a_limit_are_fine() -> None:
    for cls in (GymConfig, ProbeConfig, PushCubeConfig, PickCubeConfig, PegInsertionConfig):
        cls()
    GymConfig(num_envs=1, max_episode_steps=1)


def test_the_pegs_limits_are_those_of_its_block() -> None:
    from plaudit.envs.mujoco import peg_insertion as peg

    assert pytest.approx(peg.BLOCK_HALF - peg.PEG_HALF_WIDTH) == MOST_CLEARANCE
    assert peg.BLOCK_HEIGHT == HOLE_DEPTH
