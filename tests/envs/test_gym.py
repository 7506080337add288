"""The adapter for Gymnasium's envs, on small envs whose every number is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from plaudit.envs import build_env
from plaudit.envs.gym import GymVecEnv
from plaudit.envs.testing import check_env
from plaudit.errors import ConfigError, EnvError, MissingDependencyError, RegistryError


class Counter(gymnasium.Env[Any, Any]):
    """Counts to `length`, then terminates; adds up its actions; a picture as bright as the count."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own spelling)

    def __init__(self, render_mode: str | None = None, length: int = 3, success: str = "is_success") -> None:
        self.render_mode, self.length, self.success = render_mode, length, success
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "z": box(-np.inf, np.inf, (2, 1), np.float64),
                "a": box(0.0, 100.0, (1,), np.float64),
                "eye": box(0, 255, (4, 5, 3), np.uint8),
            }
        )
        self.action_space = box(-2.0, 2.0, (1,), np.float64)

    def observe(self) -> dict[str, Any]:
        return {
            "z": np.array([[self.total], [self.start]]),
            "a": np.array([float(self.count)]),
            "eye": np.full((4, 5, 3), self.count, np.uint8),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.total, self.start = 0, 0.0, float(self.np_random.random())
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.total += float(action[0])
        ended = self.count >= self.length
        return self.observe(), 1.0, ended, False, {self.success: self.total > 3.0} if ended else {}

    def render(self) -> Any:
        return np.full((6, 8, 3), self.count, np.uint8)


@pytest.fixture(autouse=True)
def register() -> Iterator[None]:
    gymnasium.register("Counter-v0", entry_point=Counter)  # type: ignore[arg-type]
    yield
    del gymnasium.registry["Counter-v0"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_contract(vectorization: str) -> None:
    check_env(lambda n: build_env("gym:Counter-v0", {"num_envs": n, "vectorization": vectorization}), independent=True)


def test_observations_are_joined_in_sorted_order() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2})
    obs, _ = env.reset(seed=0)
    step = env.step(torch.tensor([[0.5], [1.5]]))
    assert set(obs) == {"state", "eye"} and obs["eye"].shape == (2, 4, 5, 3)
    assert step.obs["state"][:, :2].tolist() == [[1.0, 0.5], [1.0, 1.5]]  # a, then z.
    assert torch.equal(step.obs["state"][:, 2], obs["state"][:, 2])
    assert env.observation_space["state"].shape == (3,)


def test_actions_are_clipped_to_the_envs_own_range() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2})
    env.reset(seed=0)
    assert env.step(torch.tensor([[9.0], [-1.5]])).obs["state"][:, 1].tolist() == [2.0, -1.5]


def test_end_of_an_episode() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2})
    env.request_frames("always")
    env.reset(seed=0)
    for _ in range(2):
        step = env.step(torch.tensor([[2.0], [0.5]]))
        assert step.success is None and step.final_frames is None
    step = env.step(torch.tensor([[2.0], [0.5]]))
    assert step.terminated.tolist() == [True, True] and step.truncated.tolist() == [False, False]
    assert step.success is not None and step.success.tolist() == [True, False]
    assert step.final_obs is not None and step.final_obs["state"][:, :2].tolist() == [[3.0, 6.0], [3.0, 1.5]]
    assert step.obs["state"][:, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    # The last picture of the old episode and the first of the new one.
    assert step.final_frames is not None and bool((step.final_frames["render"] == 3).all())
    assert step.frames is not None and bool((step.frames["render"] == 0).all())


def test_success_is_known_from_then_on() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "kwargs": {"length": 1}})
    env.reset(seed=0)
    assert env.step(torch.zeros(1, 1)).success is not None
    env = build_env("gym:Counter-v0", {"num_envs": 1, "success_key": "won", "kwargs": {"success": "won", "length": 2}})
    env.reset(seed=0)
    first, second = (env.step(torch.full((1, 1), 2.0)).success for _ in range(2))
    assert first is not None and second is not None and (first.item(), second.item()) == (False, True)


def test_success_key_that_never_comes() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "success_key": "is_sucess", "kwargs": {"length": 1}})
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"success_key 'is_sucess'.*Did you mean 'is_success'"):
        env.step(torch.zeros(1, 1))


def test_max_episode_steps_truncates() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "max_episode_steps": 2})
    env.reset(seed=0)
    assert env.max_episode_steps == 2
    assert [env.step(torch.zeros(1, 1)).truncated.item() for _ in range(4)] == [False, True, False, True]


def test_both_ends_at_once_count_as_terminated() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "max_episode_steps": 3})
    env.reset(seed=0)
    step = [env.step(torch.zeros(1, 1)) for _ in range(3)][-1]
    assert step.terminated.item() and not step.truncated.item()


def test_pendulum() -> None:
    env = build_env("gym:Pendulum-v1", {"num_envs": 2})
    assert (env.max_episode_steps, env.action_space.high.tolist()) == (200, [2.0])
    obs, _ = env.reset(seed=0)
    one = gymnasium.make("Pendulum-v1")
    assert torch.equal(obs["state"][1], torch.from_numpy(one.reset(seed=1)[0]))  # Env i is seeded with seed + i.


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("gym:Pendulun-v1", RegistryError, "unknown Gymnasium env 'Pendulun-v1'. Did you mean 'Pendulum-v1'"),
        ("gym:Xyzzyx", RegistryError, "pprint_registry"),
        ("gym:no_such_module:Env-v0", MissingDependencyError, "no_such_module"),
        ("gym:CartPole-v1", EnvError, "Discrete.*continuous"),
    ],
)
def test_envs_that_cannot_be_used(env_id: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_env(env_id)


def test_wrong_kwargs_are_named() -> None:
    with pytest.raises(ConfigError, match="colour"):
        build_env("gym:Pendulum-v1", {"kwargs": {"colour": "red"}})


def test_step_before_reset() -> None:
    with pytest.raises(EnvError, match="before reset"):
        GymVecEnv("Pendulum-v1").step(torch.zeros(8, 1))


def test_pictures_alone() -> None:
    class Picture(Counter):
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__(render_mode)
            self.observation_space = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)

        def observe(self) -> Any:
            return super().observe()["eye"]

    gymnasium.register("Picture-v0", entry_point=lambda **kwargs: Picture(**kwargs))
    try:
        check_env(lambda n: build_env("gym:Picture-v0", {"num_envs": n}))
        env = build_env("gym:Picture-v0", {"num_envs": 2})
        assert env.cameras == ("render",) and env.fps == 10.0
        assert {name: tuple(value.shape) for name, value in env.reset(seed=0)[0].items()} == {"image": (2, 4, 5, 3)}
    finally:
        del gymnasium.registry["Picture-v0"]
