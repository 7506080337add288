"""The adapter for Gymnasium's envs, on a small env whose every number is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from plaudit.envs import Step, build_env
from plaudit.envs.config import GymConfig
from plaudit.envs.episode_rng import episode_seeds
from plaudit.envs.gym.adapter import GymVecEnv
from plaudit.envs.testing import (
    check_env,
    check_episode_ends,
    check_frames,
    check_independence,
    check_restart,
    check_seeds,
    check_spaces,
    check_steps,
)
from plaudit.errors import ConfigError, EnvError, RegistryError


@pytest.fixture(autouse=True)
def known(counter: Any) -> None:
    """Every test may make a `Counter-v0`."""


CFG = {"max_episode_steps": 4, "kwargs": {"limit": 2.0, "length": 9}}
"""Episodes of three or four steps, by the actions."""


def test_contract() -> None:
    check_env(lambda n: build_env("gym:Counter-v0", {"num_envs": n, **CFG}), independent=True)


@pytest.mark.parametrize("check", [check_steps, check_seeds, check_episode_ends, check_frames, check_restart])
def test_contract_in_processes(check: Any) -> None:
    check(lambda n: build_env("gym:Counter-v0", {"num_envs": n, "vectorization": "async", **CFG}))


def test_contract_of_rendered_frames() -> None:
    cfg = {"cameras": ["eye", "render"], "max_episode_steps": 4}
    check_env(lambda n: build_env("gym:Counter-v0", {"num_envs": n, **cfg}), independent=True)


def test_observations() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2})
    obs, _ = env.reset(seed=0)
    step = env.step(torch.tensor([[0.5], [1.5]]))
    assert set(obs) == {"state", "eye"} and obs["eye"].shape == (2, 4, 5, 3)
    assert step.obs["state"][:, :2].tolist() == [[1.0, 0.5], [1.0, 1.5]]  # a, then z.
    assert torch.equal(step.obs["state"][:, 2], obs["state"][:, 2])


def test_how_an_env_is_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "plaudit"):
        for _ in range(2):
            build_env("gym:Counter-v0", {"num_envs": 1, "state_keys": ["z"], "cameras": ["render", "eye"]})
    assert [record.getMessage() for record in caplog.records] == ["gym:Counter-v0: state is z 2; cameras: render, eye."]


def test_actions_are_clipped_to_the_envs_own_range() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2})
    env.reset(seed=0)
    assert env.step(torch.tensor([[9.0], [-1.5]])).obs["state"][:, 1].tolist() == [2.0, -1.5]


def test_end_of_an_episode() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 2, "cameras": ["eye", "render"]})
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
    # The last picture of the old episode and the first of the new one, whether it is drawn or observed.
    assert step.final_frames is not None and step.frames is not None
    for camera in ("eye", "render"):
        assert bool((step.final_frames[camera] == 3).all()) and bool((step.frames[camera] == 0).all())


def test_success_of_another_name() -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 1, "success_key": "won", "kwargs": {"success": "won", "length": 2}})
    env.reset(seed=0)
    first, second = (env.step(torch.full((1, 1), 2.0)).success for _ in range(2))
    assert first is not None and second is not None and (first.item(), second.item()) == (False, True)
    env = build_env("gym:Counter-v0", {"num_envs": 1, "success_key": "is_sucess", "kwargs": {"length": 1}})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="Did you mean 'is_success'"):
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
    seed = episode_seeds(0, np.array([1]), np.array([0]))[0]
    assert torch.equal(obs["state"][1], torch.from_numpy(one.reset(seed=seed)[0]))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_neighbouring_seeds_share_no_episodes(vectorization: str) -> None:
    env = build_env("gym:Counter-v0", {"num_envs": 3, "vectorization": vectorization})
    starts = [number for seed in range(3) for number in env.reset(seed)[0]["state"][:, 2].tolist()]
    assert len(set(starts)) == 9
    env.close()


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(EnvError, match=r"Discrete.*continuous"):
        build_env("gym:CartPole-v1")
    with pytest.raises(RegistryError, match="Did you mean 'Pendulum-v1'"):
        build_env("gym:Pendulun-v1")


def test_step_before_reset() -> None:
    with pytest.raises(EnvError, match="before reset"):
        GymVecEnv("Pendulum-v1").step(torch.zeros(8, 1))


class TestCameras:
    def test_what_is_observed_is_not_drawn(self, counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(counter, "render")
        env = build_env("gym:Counter-v0", {"num_envs": 2})
        env.request_frames("always")
        _, info = env.reset(seed=0)
        step = env.step(torch.zeros(2, 1))
        assert env.cameras == ("eye",) and set(info["frames"]) == {"eye"}
        assert step.frames is not None and bool((step.frames["eye"] == 1).all())
        assert env.render(torch.tensor([1]))["eye"].shape == (1, 4, 5, 3)

    @pytest.mark.parametrize("camera", ["eye", "render"])
    def test_pictures_can_be_had_before_anything_is_played(self, camera: str) -> None:
        env = build_env("gym:Counter-v0", {"num_envs": 2, "cameras": [camera]})
        assert env.render(torch.tensor([1]))[camera].shape[0] == 1

    @pytest.mark.parametrize("vectorization", ["sync", "async"])
    def test_only_what_is_asked_for_is_drawn(self, vectorization: str) -> None:
        cfg = {"num_envs": 3, "cameras": ["render"], "vectorization": vectorization, "kwargs": {"limit": 1.0}}
        env = build_env("gym:Counter-v0", cfg)
        env.request_frames("terminal")
        env.reset(seed=0)
        step = env.step(torch.tensor([[0.0], [2.0], [0.0]]))
        assert step.frames is None and step.final_frames is not None
        assert step.final_frames["render"].shape == (1, 6, 8, 3) and bool((step.final_frames["render"] == 1).all())
        env.close()

    def test_several_pictures_of_one_render(self) -> None:
        kwargs = {"views": 2}
        env = build_env("gym:Counter-v0", {"num_envs": 1, "cameras": ["render.1"], "kwargs": kwargs})
        env.reset(seed=0)
        assert {name: int(pixels.max()) for name, pixels in env.render().items()} == {"render.1": 100}
        for camera in ("render", "render.7"):
            env = build_env("gym:Counter-v0", {"num_envs": 1, "cameras": [camera], "kwargs": kwargs})
            env.reset(seed=0)
            with pytest.raises(EnvError, match=rf"no camera '{camera}'.*2 pictures.*from render.0, render.1"):
                env.render()

    def test_a_camera_that_does_not_exist(self) -> None:
        with pytest.raises(ConfigError, match=r"no camera 'ey'; it has eye, render. Did you mean 'eye'"):
            build_env("gym:Counter-v0", {"cameras": ["ey"]})

    def test_frames_are_scaled(self) -> None:
        env = build_env("gym:Counter-v0", {"num_envs": 2, "cameras": ["eye", "render"], "camera_size": [3, 4]})
        env.reset(seed=0)
        assert {tuple(pixels.shape) for pixels in env.render().values()} == {(2, 3, 4, 3)}


class TestExpert:
    def test_acts_on_what_the_env_observes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mine = SimpleNamespace(act=lambda obs: obs["a"] - 0.5)
        monkeypatch.setitem(sys.modules, "mine_for_test", mine)
        env = build_env("gym:Counter-v0", {"num_envs": 2, "expert": "mine_for_test:act"})
        assert isinstance(env, GymVecEnv)
        env.reset(seed=0)
        assert env.expert_action().tolist() == [[-0.5], [-0.5]]
        env.step(torch.zeros(2, 1))
        assert env.expert_action().tolist() == [[0.5], [0.5]]

    def test_an_env_without_one(self) -> None:
        env = build_env("gym:Counter-v0")
        assert isinstance(env, GymVecEnv)
        with pytest.raises(ConfigError, match=r"gym:Counter-v0 has no expert. env.cfg.expert"):
            env.expert_action()


class Itself(VectorEnv[Any, Any, Any]):
    """A vector env of its own kind around Gymnasium's, that says nothing of it but its mode."""

    def __init__(self, counter: Any, num_envs: int, mode: Any, **kwargs: Any) -> None:
        self.inner = SyncVectorEnv([lambda: counter(**kwargs)] * num_envs, autoreset_mode=mode)
        self.num_envs, self.metadata = num_envs, self.inner.metadata
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


def play(env: GymVecEnv) -> Iterator[Step]:
    """Episodes of three steps in one env and of two in the other."""
    env.reset(seed=4)
    for _ in range(9):
        yield env.step(torch.tensor([[1.0], [1.5]]))


class TestReadyMade:
    @pytest.mark.parametrize("mode", list(AutoresetMode))
    def test_every_mode_gives_the_same_steps(self, counter: Any, mode: AutoresetMode) -> None:
        kwargs = {"length": 3, "limit": 2.5}
        theirs = SyncVectorEnv([lambda: counter(**kwargs)] * 2, autoreset_mode=mode)
        expected = GymVecEnv("Counter-v0", GymConfig(num_envs=2, kwargs=kwargs))
        ends = 0
        for ours, wanted in zip(play(GymVecEnv(theirs)), play(expected), strict=True):
            ends += len(ours.ended)
            assert torch.equal(ours.obs["state"], wanted.obs["state"])
            assert torch.equal(ours.terminated, wanted.terminated) and torch.equal(ours.reward, wanted.reward)
            assert (ours.success is None) == (wanted.success is None)
            assert ours.success is None or torch.equal(ours.success, wanted.success)  # type: ignore[arg-type]
            assert (ours.final_obs is None) == (wanted.final_obs is None)
            assert ours.final_obs is None or torch.equal(ours.final_obs["state"], wanted.final_obs["state"])  # type: ignore[index]
        assert ends == 7

    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
    def test_contract(self, counter: Any, mode: AutoresetMode) -> None:
        env = GymVecEnv(Itself(counter, 2, mode))
        assert env.can_restart == (mode is AutoresetMode.DISABLED) and env.env_id == "Itself"
        for check in (check_spaces, check_steps, check_seeds, check_restart, check_independence):
            check(lambda n: GymVecEnv(Itself(counter, n, mode)))

    def test_last_frames_of_one_that_resets_itself(self, counter: Any) -> None:
        env = GymVecEnv(SyncVectorEnv([lambda: counter("rgb_array")], autoreset_mode=AutoresetMode.SAME_STEP))
        env.request_frames("always")
        env.reset(seed=0)
        step = [env.step(torch.zeros(1, 1)) for _ in range(3)][-1]
        assert step.final_frames is not None and int(step.final_frames["eye"].max()) == 3
        assert env.cameras == ("eye",)  # What render() showed at the end is gone.

    def test_next_step_of_another_kind_is_refused(self, counter: Any) -> None:
        with pytest.raises(EnvError, match=r"NEXT_STEP.*SAME_STEP or DISABLED"):
            GymVecEnv(Itself(counter, 2, AutoresetMode.NEXT_STEP))
        lone = AsyncVectorEnv([counter] * 2, shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        with pytest.raises(EnvError, match=r"NEXT_STEP.*SAME_STEP or DISABLED"):
            GymVecEnv(lone)
        silent = Itself(counter, 2, AutoresetMode.SAME_STEP)
        silent.metadata = {}
        with pytest.raises(EnvError, match="autoreset_mode"):
            GymVecEnv(silent)

    def test_seeds_of_another_kind_are_its_own_business(self, counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []
        theirs = Itself(counter, 2, AutoresetMode.DISABLED)
        monkeypatch.setattr(theirs, "reset", lambda **given: seen.append(given) or theirs.inner.reset(**given))
        GymVecEnv(theirs).reset(7)
        assert seen == [{"seed": 7}]

    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
    def test_episodes_that_outlive_their_limit(self, counter: Any, mode: AutoresetMode) -> None:
        def make(limit: int) -> GymVecEnv:
            cfg = GymConfig(num_envs=2, max_episode_steps=limit, kwargs={"mode": mode, "length": 3})
            return GymVecEnv("Deaf-v0", cfg)

        def deaf(num_envs: int, max_episode_steps: int, **kwargs: Any) -> Itself:
            return Itself(counter, num_envs, **kwargs)

        gymnasium.register("Deaf-v0", vector_entry_point=deaf)  # type: ignore[arg-type]
        try:
            env = make(limit=3)
            assert sum(len(step.ended) for step in play(env)) == 6  # In time: nothing is wrong.
            env = make(limit=2)
            env.reset(seed=0)
            env.step(torch.zeros(2, 1))
            with pytest.raises(EnvError, match=r"gym:Deaf-v0: .*env 0 has gone on for 2 steps.*max_episode_steps"):
                env.step(torch.zeros(2, 1))
            env.reset()
            env.step(torch.zeros(2, 1))  # Another episode, another clock.
            gymnasium.registry["Deaf-v0"].vector_entry_point = lambda num_envs, mode, length: None  # type: ignore[assignment]
            with pytest.raises(ConfigError, match=r"env.cfg.kwargs .* and env.cfg.max_episode_steps 2: .*unexpected"):
                make(limit=2)
        finally:
            gymnasium.registry.pop("Deaf-v0")

    def test_by_id(self, counter: Any) -> None:
        def make(num_envs: int, mode: str = "SameStep", **kwargs: Any) -> Itself:
            return Itself(counter, 3 if mode == "Disabled" else num_envs, mode, **kwargs)

        gymnasium.register("Own-v0", vector_entry_point=make)  # type: ignore[arg-type]
        try:
            check_steps(lambda n: build_env("gym:Own-v0", {"num_envs": n, "kwargs": {"length": 4}}))
            with pytest.raises(ConfigError, match=r"is 3 envs.*num_envs=3"):
                build_env("gym:Own-v0", {"num_envs": 2, "kwargs": {"mode": "Disabled"}})
            with pytest.raises(ConfigError, match="gym:Counter-v0 has no vector_entry_point"):
                build_env("gym:Counter-v0", {"vectorization": "vector_entry_point"})
        finally:
            gymnasium.registry.pop("Own-v0")


def test_pictures_alone(counter: Any) -> None:
    class Picture(counter):  # type: ignore[misc]
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__(render_mode)
            self.observation_space = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)

        def observe(self) -> Any:
            return super().observe()["eye"]

    gymnasium.register("Picture-v0", entry_point=lambda **kwargs: Picture(**kwargs))
    try:
        check_env(lambda n: build_env("gym:Picture-v0", {"num_envs": n, "max_episode_steps": 5}))
        env = build_env("gym:Picture-v0", {"num_envs": 2})
        assert env.cameras == ("image",) and env.fps == 10.0
        assert {name: tuple(value.shape) for name, value in env.reset(seed=0)[0].items()} == {"image": (2, 4, 5, 3)}
    finally:
        gymnasium.registry.pop("Picture-v0")
