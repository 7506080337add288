"""What can be wrong with an env that is to be made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import mujoco
import pytest
import torch

from plaudit.envs import build_env
from plaudit.errors import ConfigError, EnvError, MissingDependencyError


def test_wrong_kwargs_are_named() -> None:
    with pytest.raises(ConfigError, match="colour"):
        build_env("gym:Pendulum-v1", {"kwargs": {"colour": "red"}})


def test_an_env_that_cannot_be_made(counter: Any) -> None:
    def refuse(task: str) -> Any:
        raise ValueError(f"no task {task}")

    gymnasium.register("Refused-v0", entry_point=refuse)
    try:
        with pytest.raises(EnvError, match=r"gym:Refused-v0 cannot be made with.*ValueError: no task x\)\.$"):
            build_env("gym:Refused-v0", {"kwargs": {"task": "x"}})
        with pytest.raises(EnvError, match=r"no task EGL\).*libegl1"):
            build_env("gym:Refused-v0", {"kwargs": {"task": "EGL"}})
    finally:
        gymnasium.registry.pop("Refused-v0")


def test_packages_that_are_missing_are_named(counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError("No module named 'cv2'", name="cv2")

    with monkeypatch.context() as patch:
        patch.setattr(counter, "__init__", refuse)
        with pytest.raises(MissingDependencyError, match=r"named 'cv2'\. Install the package that has it\.$"):
            build_env("gym:Counter-v0", {"num_envs": 1})
    monkeypatch.setattr(counter, "render", refuse)
    env = build_env("gym:Counter-v0", {"num_envs": 1, "cameras": ["render"]})
    env.reset(seed=0)
    with pytest.raises(MissingDependencyError, match=r"gym:Counter-v0 cannot be drawn: No module named 'cv2'\.$"):
        env.render()


def test_an_env_that_fails_has_its_traceback_in_the_message(counter: Any) -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "kwargs": {"trouble": "raise"}})
    env.reset(seed=0)
    env.step(torch.zeros(1, 1))
    with pytest.raises(EnvError, match=r"(?s)env 0 failed in step\.\n.*self.fail\(\).*ZeroDivisionError"):
        env.step(torch.zeros(1, 1))


def test_an_env_that_cannot_draw(counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> Any:
        raise RuntimeError("no display")

    monkeypatch.setattr(counter, "render", fail)
    env = build_env("gym:Counter-v0", {"num_envs": 1, "cameras": ["render"]})
    env.reset(seed=0)
    with pytest.raises(MissingDependencyError, match=r"cannot be drawn \(RuntimeError: no display\).*libegl1"):
        env.render()
    monkeypatch.setattr(counter, "render", lambda self: None)
    with pytest.raises(EnvError, match=r"must give uint8 \(H, W, 3\).*NoneType"):
        env.render()


@pytest.mark.parametrize("function", [True, False])
def test_whether_an_env_can_draw_is_found_without_its_class(counter: Any, function: bool) -> None:
    class Late(counter):  # type: ignore[misc]
        metadata: dict[str, Any] = {}  # noqa: RUF012

        def __init__(self, render_mode: str | None = "rgb_array") -> None:
            super().__init__(render_mode)
            self.metadata = counter.metadata

    gymnasium.register("Late-v0", entry_point=(lambda **kwargs: Late(**kwargs)) if function else Late)  # type: ignore[arg-type]
    try:
        env = build_env("gym:Late-v0", {"num_envs": 1, "cameras": ["render"]})
        env.reset(seed=0)
        assert env.render()["render"].shape == (1, 6, 8, 3) and env.fps == 10.0
    finally:
        gymnasium.registry.pop("Late-v0")


SCENE = """
<mujoco>
  <worldbody>
    <light castshadow="true" pos="0 0 2"/>
    <camera name="track" pos="0 0 2"/>
    <geom type="sphere" size="0.1"/>
  </worldbody>
</mujoco>
"""


class TestMujoco:
    @pytest.fixture(autouse=True)
    def robot(self, counter: Any) -> Iterator[None]:
        """A counter that has a MuJoCo model, as Gymnasium's robots have."""

        class Robot(counter):  # type: ignore[misc]
            def __init__(self, render_mode: str | None = None, camera_name: str | None = None) -> None:
                super().__init__(render_mode)
                self.model = mujoco.MjModel.from_xml_string(SCENE)

        gymnasium.register("Robot-v0", entry_point=Robot)  # type: ignore[arg-type]
        yield
        gymnasium.registry.pop("Robot-v0")

    def test_a_camera_that_does_not_exist(self) -> None:
        build_env("gym:Robot-v0", {"num_envs": 1, "kwargs": {"camera_name": "track"}})
        with pytest.raises(ConfigError, match=r"no camera 'trak'; it has track. Did you mean 'track'"):
            build_env("gym:Robot-v0", {"num_envs": 1, "kwargs": {"camera_name": "trak"}})

    def test_a_draft_has_no_shadows(self) -> None:
        for draft in (False, True):
            env: Any = build_env("gym:Robot-v0", {"num_envs": 1, "draft": draft})
            model = env.envs.envs[0].unwrapped.model
            assert bool(model.light_castshadow.any()) != draft and (model.vis.quality.offsamples == 0) == draft
        with pytest.raises(ConfigError, match=r"env.cfg.draft: gym:Pendulum-v1 has no MuJoCo model"):
            build_env("gym:Pendulum-v1", {"draft": True})
