"""Ids, configs and time limits on their way to an env, in our registry and in Gymnasium's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from plaudit.config.loader import load_config
from plaudit.config.validation import env_cfg
from plaudit.envs import Outcome, Step, TaskEnv, VecEnv, build_env, env_config_type, register_env
from plaudit.envs.base import Obs
from plaudit.envs.config import GymConfig, ProbeConfig
from plaudit.envs.registry import ENVS
from plaudit.errors import ConfigError, EnvError, RegistryError


@dataclass(frozen=True)
class LineConfig:
    """Keys of the env below, with EmbodiChain's RL tutorial's `episode_length`."""

    num_envs: int = 2
    episode_length: int = 50


class Line(TaskEnv):
    """Counts its steps."""

    def __init__(self, cfg: Any, device: torch.device | str = "cpu") -> None:
        super().__init__(cfg, device)
        self.num_envs = getattr(cfg, "num_envs", 1)
        self.observation_space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(0, 1000, (1,), np.float32)})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.count = torch.zeros(self.num_envs, 1)

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        self.count[ids] = 0

    def advance(self, action: torch.Tensor) -> Outcome:
        self.count = self.count + 1
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        return Outcome(self.count[:, 0].clone(), no, no, rewards={"count": self.count[:, 0].clone()})

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": (self.count if ids is None else self.count[ids]).clone()}


class ConfiguredLine(Line):
    """`Line` with a config class, and a say in its threads."""

    cfg: LineConfig

    def __init__(self, cfg: LineConfig, device: torch.device | str = "cpu", threads: int = 0) -> None:
        super().__init__(cfg, device)
        self.threads = threads


class OwnClock(VecEnv):
    """A `VecEnv` that is no `TaskEnv`: nobody can tell it when to stop."""

    def __init__(self, cfg: Any, device: torch.device | str = "cpu") -> None:
        self.num_envs, self.device = 1, torch.device(device)
        self.max_episode_steps = getattr(cfg, "episode_length", None)

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        raise NotImplementedError

    def step(self, action: torch.Tensor) -> Step:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def clean_registries() -> Iterator[None]:
    """Puts both registries back."""
    ours, theirs = dict(ENVS._entries), dict(gymnasium.registry)
    yield
    ENVS._entries.clear()
    ENVS._entries.update(ours)
    gymnasium.registry.clear()
    gymnasium.registry.update(theirs)


def steps_to_the_end(env: VecEnv) -> int:
    """Steps of the first episode."""
    env.reset(seed=0)
    for step in range(1, 1000):
        if bool(env.step(torch.zeros(env.num_envs, 1)).truncated.all()):
            return step
    raise AssertionError("no episode ended")


def test_registered_limit_is_applied() -> None:
    register_env("LineTaskRL", max_episode_steps=7, override=True)(Line)
    assert steps_to_the_end(build_env("LineTaskRL", {"num_envs": 3})) == 7


@pytest.mark.parametrize(("cfg", "steps"), [({}, 7), ({"episode_length": 9}, 9), (LineConfig(episode_length=4), 4)])
def test_episode_length_wins_over_the_registered_limit(cfg: Any, steps: int) -> None:
    register_env("LineTaskRL", max_episode_steps=7)(ConfiguredLine)
    assert steps_to_the_end(build_env("LineTaskRL", cfg)) == steps


def test_episode_length_works_without_a_config_class() -> None:
    register_env("LineTaskRL", max_episode_steps=7)(Line)
    assert steps_to_the_end(build_env("LineTaskRL", {"episode_length": 3})) == 3


def test_the_registered_limit_is_in_the_resolved_config(tmp_path: Path) -> None:
    register_env("LineTaskRL", max_episode_steps=7)(ConfiguredLine)
    path = tmp_path / "a.yaml"
    path.write_text("env: {id: LineTaskRL, eval: {episode_length: 4}}\npolicy: {name: none}\n")
    config = load_config(path, registries={"env": env_config_type})
    assert config.env.cfg == {"num_envs": 2, "episode_length": 7}
    assert steps_to_the_end(build_env("LineTaskRL", env_cfg(config, "train"))) == 7
    assert steps_to_the_end(build_env("LineTaskRL", env_cfg(config, "eval"))) == 4


def test_limit_that_cannot_be_applied_is_an_error() -> None:
    register_env("Own", max_episode_steps=7)(OwnClock)
    with pytest.raises(RegistryError, match=r"'Own' should end its episodes after 7 steps.*TaskEnv"):
        build_env("Own")
    assert build_env("Own", {"episode_length": 7}).max_episode_steps == 7


def test_config_class_is_filled_and_wrong_keys_are_named() -> None:
    register_env("LineTaskRL")(ConfiguredLine)
    assert env_config_type("LineTaskRL") is LineConfig
    env = build_env("LineTaskRL", {"num_envs": 3})
    assert isinstance(env, ConfiguredLine)
    assert env.cfg == LineConfig(num_envs=3, episode_length=50)
    with pytest.raises(ConfigError, match=r"num_env\b.*num_envs"):
        build_env("LineTaskRL", {"num_env": 3})
    with pytest.raises(ConfigError, match="expected a mapping"):
        build_env("LineTaskRL", 3)


def test_threads_go_to_constructors_that_take_them() -> None:
    register_env("LineTaskRL")(ConfiguredLine)
    register_env("Plain")(Line)
    env = build_env("LineTaskRL", threads=2)
    assert isinstance(env, ConfiguredLine) and env.threads == 2
    build_env("Plain", threads=2)


def test_unknown_id_names_the_nearest() -> None:
    for theirs in ("PickCube-v1", "ManiSkill:PickCube-v1"):  # Not 'PickCube', which is another task.
        with pytest.raises(
            RegistryError, match=r"a prefix: maniskill:PickCube-v1 or gym:PickCube-v1\. Ours: .*PickCube,"
        ):
            build_env(theirs)
    with pytest.raises(RegistryError, match=r"unknown env 'PushCub'\. Did you mean 'PushCube'"):
        build_env("PushCub")


def test_unknown_gymnasium_id_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"^command line: env\.id: unknown Gymnasium env 'Pendulm-v9'.*'Pendulum-v1'"):
        load_config("pendulum", ["env.id=gym:Pendulm-v9"], registries={"env": env_config_type})


def test_config_class_out_of_reach_is_named() -> None:
    @dataclass(frozen=True)
    class Local:
        """Nobody can find this by name."""

    class Env(Line):
        cfg: Local
        other: NotImported  # type: ignore[name-defined]  # noqa: F821

    class Child(Line):
        cfg: LineConfig
        other: NotImported  # type: ignore[name-defined]  # noqa: F821

    register_env("Out")(Env)
    with pytest.raises(RegistryError, match=r"Env: the annotation 'cfg: Local' cannot be resolved .*top level"):
        env_config_type("Out")
    register_env("In")(Child)
    assert env_config_type("In") is LineConfig


def test_duplicates_need_override() -> None:
    register_env("LineTaskRL", max_episode_steps=5)(Line)
    with pytest.raises(RegistryError, match="already registered"):
        register_env("LineTaskRL")(Line)
    register_env("LineTaskRL", max_episode_steps=6, override=True)(Line)
    assert build_env("LineTaskRL").max_episode_steps == 6


@pytest.mark.parametrize(
    ("env_id", "message"),
    [("Pendulum-v1", "already in Gymnasium's registry"), ("gym:Mine", "belong to Gymnasium"), ("a b", "Malformed")],
)
def test_ids_that_cannot_be_used(env_id: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        register_env(env_id)(Line)
    assert env_id not in ENVS.names()


def test_only_vec_envs_can_be_registered() -> None:
    with pytest.raises(RegistryError, match=r"subclass of plaudit\.envs\.VecEnv"):
        register_env("Plain")(dict)  # type: ignore[type-var]
    with pytest.raises(RegistryError, match="1 or more"):
        register_env("Plain", max_episode_steps=0)


def test_config_types_of_builtins() -> None:
    assert env_config_type("gym:Pendulum-v1") is GymConfig
    assert env_config_type("probe/Timeout") is ProbeConfig
    assert env_config_type("PushCubeRL") is env_config_type("PushCube")


def test_gymnasium_make_gives_one_env_with_the_limit() -> None:
    register_env("LineTaskRL", max_episode_steps=3)(ConfiguredLine)
    env = gymnasium.make("LineTaskRL")
    env.reset(seed=0)
    steps = [env.step(np.zeros(1, np.float32)) for _ in range(3)]
    assert [obs.tolist() for obs, *_ in steps] == [[1.0], [2.0], [3.0]]  # The true last one, not the reset's 0.
    assert [truncated for _, _, _, truncated, _ in steps] == [False, False, True]
    assert steps[0][4] == {"rewards": {"count": 1.0}, "metrics": {}, "success": False}
    with pytest.raises(EnvError, match="episode is over"):
        env.step(np.zeros(1, np.float32))
    assert env.reset()[0].tolist() == [0.0]
    longer = gymnasium.make("LineTaskRL", episode_length=5)
    longer.reset(seed=0)
    assert [longer.step(np.zeros(1, np.float32))[3] for _ in range(5)] == [False] * 4 + [True]


def test_gymnasium_make_vec_gives_a_batch() -> None:
    register_env("LineTaskRL", max_episode_steps=2)(ConfiguredLine)
    envs = gymnasium.make_vec("LineTaskRL", num_envs=3)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (3, 1) and obs.dtype == np.float32
    zeros = np.zeros((3, 1), np.float32)
    _, _, _, truncated, info = envs.step(zeros)
    assert not truncated.any() and "final_obs" not in info and info["_success"].all()
    obs, reward, _, truncated, info = envs.step(zeros)
    assert truncated.all() and reward.tolist() == [2.0, 2.0, 2.0]
    assert obs.tolist() == [[0.0]] * 3
    assert [final.tolist() for final in info["final_obs"]] == [[2.0]] * 3
    assert info["final_info"]["rewards"]["count"].tolist() == [2.0, 2.0, 2.0]
    assert "success" not in info  # All ended, so success is told in final_info.


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
@pytest.mark.parametrize("env_id", ["probe/ObsActionReward", "PushCube"])
def test_gymnasium_accepts_our_envs(env_id: str) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(env_id).unwrapped, skip_render_check=True)


def test_importing_the_registry_is_light() -> None:
    code = (
        "import sys; from plaudit.envs import env_config_type; "
        "env_config_type('gym:Pendulum-v1'), env_config_type('PushCube'); "
        "print([m for m in ('torch', 'mujoco') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
