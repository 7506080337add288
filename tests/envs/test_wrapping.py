"""An env around an env."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plaudit.envs import build_env
from plaudit.envs.base import Obs, Step
from plaudit.envs.wrapper import EnvWrapper


class Plain(EnvWrapper):
    """Changes nothing."""

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        return self.env.reset(seed)

    def step(self, action: torch.Tensor) -> Step:
        return self.env.step(action)


def test_it_is_the_other_env_in_all_that_one_can_ask() -> None:
    env = build_env("PushCube", {"num_envs": 2})
    wrapped = Plain(env)
    for name in ("num_envs", "device", "max_episode_steps", "cameras", "readings", "headline", "fps", "can_save_state"):
        assert getattr(wrapped, name) == getattr(env, name), name
    assert wrapped.readings["gripper_width"] == env.readings["gripper_width"]
    assert wrapped.observation_space is env.observation_space and wrapped.action_space is env.action_space
    assert not wrapped.can_snapshot and not wrapped.can_restart
    wrapped.close()


def test_what_it_does_not_change_the_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    env = build_env("PushCube", {"num_envs": 2})
    asked = []
    for name in ("render", "portrait", "stagger", "open_viewer", "close"):
        monkeypatch.setattr(env, name, lambda *words, name=name: asked.append(name))
    wrapped = Plain(env)
    wrapped.render()
    wrapped.portrait(torch.tensor([0]))
    wrapped.stagger()
    wrapped.open_viewer()
    wrapped.close()
    assert asked == ["render", "portrait", "stagger", "open_viewer", "close"]
