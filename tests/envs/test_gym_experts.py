"""Scripted policies that a user names."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from plaudit.envs.gym.experts import Expert
from plaudit.errors import ConfigError

SPACE = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
OBS = {"goal": np.array([[1.0, 2.0], [3.0, 4.0]])}


class Script:
    """As the policies of Meta-World are written."""

    def get_action(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        return obs["goal"] * 2


@pytest.fixture(autouse=True)
def module() -> Iterator[types.ModuleType]:
    mine = types.ModuleType("mine_for_test")
    mine.Script, mine.script, mine.number = Script, Script(), 3  # type: ignore[attr-defined]
    mine.act, mine.short = lambda obs: obs["goal"] * 2, lambda obs: obs["goal"][:1]  # type: ignore[attr-defined]
    sys.modules["mine_for_test"] = mine
    yield mine
    del sys.modules["mine_for_test"]


@pytest.mark.parametrize("name", ["Script", "script", "act"])
def test_classes_objects_and_functions(name: str) -> None:
    actions = Expert(f"mine_for_test:{name}", "X-v0")(OBS, 2, SPACE)
    assert actions.tolist() == [[2, 4], [6, 8]] and actions.dtype == np.float32


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:act", "runtime.imports.*no_such_module"),
        ("mine_for_test:akt", "akt"),
        ("mine_for_test", "module:attribute"),
        ("mine_for_test:number", "neither a function nor has a get_action: 3"),
    ],
)
def test_what_cannot_act(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"env.cfg.expert.*{message}"):
        Expert(target, "X-v0")


def test_actions_of_a_wrong_shape() -> None:
    with pytest.raises(ConfigError, match=r"shape \(1,\), but gym:X-v0 takes \(2,\)"):
        Expert("mine_for_test:short", "X-v0")(OBS, 2, SPACE)
