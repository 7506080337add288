"""Processes of envs that fail, die or hang."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
import torch

from plaudit.envs import VecEnv, build_env
from plaudit.errors import ConfigError, EnvError


def make(trouble: str, timeout: float = 60.0) -> VecEnv:
    """Two envs that get into trouble in their second step."""
    cfg = {"num_envs": 2, "vectorization": "async", "worker_timeout": timeout, "kwargs": {"trouble": trouble}}
    env = build_env("gym:Counter-v0", cfg)
    env.reset(seed=0)
    env.step(torch.zeros(2, 1))
    return env


def processes(env: Any) -> list[Any]:
    return list(env.envs.processes)


def test_one_that_fails_says_where(counter: Any) -> None:
    env = make("raise")
    with pytest.raises(EnvError, match=r"(?s)gym:Counter-v0: env \d failed in step.*self.fail.*100 % of nothing"):
        env.step(torch.zeros(2, 1))
    env.close()
    assert not any(process.is_alive() for process in processes(env))


def test_one_that_dies_says_how(counter: Any) -> None:
    env = make("die")
    with pytest.raises(
        EnvError, match=r"the process of env \d was ended by SIGKILL, perhaps for want of memory, in step"
    ):
        env.step(torch.zeros(2, 1))
    env.close()
    assert not any(process.is_alive() for process in processes(env))


def test_one_that_hangs_says_where(counter: Any) -> None:
    env = make("hang", timeout=0.5)
    with pytest.raises(EnvError, match=r"(?s)env 0 has not answered to step for 0.5 s.*It is here:.*in fail") as caught:
        env.step(torch.zeros(2, 1))
    assert "worker_timeout" in str(caught.value)
    env.close()
    assert not any(process.is_alive() for process in processes(env))


@pytest.fixture
def stuck(counter: Any) -> Iterator[None]:
    """`Stuck-v0`, which hangs while it is made, though not in the process that asks for it."""

    class Stuck(counter):  # type: ignore[misc]
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__(render_mode)
            if multiprocessing.parent_process() is not None:
                self.wait()

        def wait(self) -> None:
            signal.pause()

    gymnasium.register("Stuck-v0", entry_point=Stuck)  # type: ignore[arg-type]
    yield
    gymnasium.registry.pop("Stuck-v0")


def test_one_that_hangs_while_it_is_made_says_where(stuck: None) -> None:
    with pytest.raises(EnvError, match=r"(?s)env 0 has not answered to start for 0.5 s.*It is here:.*in wait"):
        build_env("gym:Stuck-v0", {"num_envs": 2, "vectorization": "async", "worker_timeout": 0.5})
    assert not [child for child in multiprocessing.active_children() if "Worker<Workers>" in child.name]


def test_after_ctrl_c_nobody_waits_for_a_step(counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = make("hang")
    waits = iter([KeyboardInterrupt, AssertionError("close() waits for a step that may never end")])

    def step_wait(*_: object) -> None:
        raise next(waits)

    monkeypatch.setattr(env.envs, "step_wait", step_wait)
    with pytest.raises(KeyboardInterrupt):
        env.step(torch.zeros(2, 1))
    env.close()
    assert not any(process.is_alive() for process in processes(env))


def test_one_that_cannot_be_made(counter: Any, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ConfigError, match="colour"):
        build_env("gym:Counter-v0", {"num_envs": 2, "vectorization": "async", "kwargs": {"colour": "red"}})
    gc.collect()
    assert not [warning for warning in recwarn if issubclass(warning.category, pytest.PytestUnraisableExceptionWarning)]
