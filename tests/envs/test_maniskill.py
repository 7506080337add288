"""ManiSkill's tasks pass the same suite as every env. Without ManiSkill most are skipped."""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from plaudit.envs import build_env
from plaudit.envs.maniskill import adapter
from plaudit.envs.maniskill.adapter import MEMORY, ManiSkillEnv
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.envs.maniskill.process_pool import WorkerPool
from plaudit.envs.maniskill.simulation import ManiSkillSim
from plaudit.envs.testing import CHECKS, Make, check_frames, check_seeds, check_snapshots, check_steps
from plaudit.errors import ConfigError, EnvError, MissingDependencyError, RegistryError
from plaudit.pipelines import env_keys

torch.set_num_threads(1)

SHORT = 12
"""Steps of an episode in the tests."""


@pytest.fixture(autouse=True, scope="module")
def registry_as_it_was() -> Iterator[None]:
    """Where ManiSkill is imported here, Gymnasium takes its PushCube-v1 for the newest version of our PushCube."""
    known = dict(gymnasium.registry)
    yield
    for name in gymnasium.registry.keys() - known.keys():
        del gymnasium.registry[name]


class Pool:
    """Envs that are used again: to start the processes of one takes seconds."""

    def __init__(self) -> None:
        self.free: dict[Any, list[ManiSkillEnv]] = defaultdict(list)
        self.all: list[ManiSkillEnv] = []

    def maker(self, task: str, **keys: Any) -> Make:
        return lambda num_envs: self.take(task, {"num_envs": num_envs, "max_episode_steps": SHORT, **keys})

    def take(self, task: str, keys: dict[str, Any]) -> ManiSkillEnv:
        kind = (task, repr(sorted(keys.items())))
        if self.free[kind]:
            return self.free[kind].pop()
        env = build_env(f"maniskill:{task}", keys, threads=1)
        assert isinstance(env, ManiSkillEnv)
        self.all.append(env)
        limit = env.max_episode_steps

        def give_back() -> None:
            env.max_episode_steps, env.frame_mode = limit, env.cfg.frames
            self.free[kind].append(env)

        env.close = give_back  # type: ignore[method-assign]
        return env

    def close(self) -> None:
        for env in self.all:
            env.sim.close()


@pytest.fixture(scope="module")
def installed() -> None:
    if importlib.util.find_spec("mani_skill") is None and "PLAUDIT_TEST_MANISKILL" not in os.environ:
        pytest.skip("ManiSkill is not installed; 'make test-maniskill' installs it and runs these")


@pytest.fixture(scope="module")
def pool(installed: None) -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("task", ["PushCube-v1", "PickCube-v1", "PegInsertionSide-v1"])
def test_tasks_pass(pool: Pool, task: str, check: Callable[[Make], None]) -> None:
    check(pool.maker(task))


@pytest.mark.parametrize("check", [check_frames, check_snapshots], ids=lambda check: check.__name__)
def test_a_camera_that_moves_passes(pool: Pool, check: Callable[[Make], None]) -> None:
    check(pool.maker("PickCube-v1", kwargs={"robot_uids": "panda_wristcam"}, cameras=["hand_camera"]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_pictures_as_observations_pass(pool: Pool, check: Callable[[Make], None]) -> None:
    check(pool.maker("PushCube-v1", obs_mode="rgb", camera_size=(16, 16), max_episode_steps=5))


def test_what_is_in_a_task(pool: Pool) -> None:
    env = pool.take("PegInsertionSide-v1", {"num_envs": 2, "max_episode_steps": SHORT})
    assert env.cameras == ("base_camera", "hand_camera")
    assert not env.can_snapshot and env.can_save_state  # Its peg and hole are built anew for every episode.
    env.close()
    env = pool.take("PickCube-v1", {"num_envs": 2, "max_episode_steps": SHORT})
    assert env.can_snapshot and env.can_save_state and env.can_restart and env.fps == 20.0
    assert env.readings["panda_joint1"].index == 0
    obs, _ = env.reset(seed=0)
    width = env.readings["gripper_width"]
    assert torch.allclose(obs["state"][:, width.index] / width.scale, torch.tensor(0.08), atol=1e-3)  # Open.
    step = env.step(torch.zeros(2, 8))
    assert set(step.metrics) == {"is_obj_placed", "is_robot_static", "is_grasped"}
    assert step.success is not None and step.looks_done is not None
    env.close()


def squeeze(env: ManiSkillEnv, steps: int) -> list[torch.Tensor]:
    """Closes the gripper on the cube, which a controller that follows the cube's position finds; the states seen."""
    seen = []
    for _ in range(steps):
        state = env.sim.state
        towards = (state[:, 36:39] - torch.tensor([0.0, 0.0, 0.01])) * 10  # `tcp_to_obj_pos` in PickCube's state.
        closed = torch.where(state[:, 36:39].norm(dim=1, keepdim=True) < 0.02, -1.0, 1.0)
        seen.append(env.step(torch.cat([towards.clamp(-1, 1), closed], dim=1)).obs["state"].clone())
    return seen


def test_an_episode_does_not_depend_on_the_one_before(pool: Pool) -> None:
    """PhysX remembers contacts: a grasp at the end of an episode must not count, nor show, in the next."""
    keys = {"num_envs": 1, "control_mode": "pd_ee_delta_pos", "max_episode_steps": 100}
    used, fresh = pool.take("PickCube-v1", keys), pool.take("PickCube-v1", keys)
    used.reset(seed=1)
    squeeze(used, 30)
    step = used.step(torch.tensor([[0.0, 0.0, 0.0, -1.0]]))
    assert step.metrics["is_grasped"].item() == 1.0
    first = [env.reset(seed=2)[0]["state"] for env in (used, fresh)]
    assert torch.equal(*first)
    assert first[0][0, 18] == 0.0  # `is_grasped`, the first number after positions and speeds.
    for ours, theirs in zip(squeeze(used, 30), squeeze(fresh, 30), strict=True):
        assert torch.equal(ours, theirs)
    used.close()
    fresh.close()


def test_episodes_are_the_same_for_any_number_of_workers(pool: Pool) -> None:
    one = pool.take("PushCube-v1", {"num_envs": 3, "max_episode_steps": SHORT})
    two = pool.take("PushCube-v1", {"num_envs": 3, "max_episode_steps": SHORT, "workers": 2})
    assert torch.equal(one.reset(seed=5)[0]["state"], two.reset(seed=5)[0]["state"])
    for _ in range(SHORT + 3):
        action = torch.full((3, 8), 0.3)
        ours, theirs = one.step(action), two.step(action)
        assert torch.equal(ours.obs["state"], theirs.obs["state"]) and torch.equal(ours.reward, theirs.reward)
    one.close()
    two.close()


def test_terminations_end_episodes_only_where_asked(pool: Pool) -> None:
    keys = {"num_envs": 1, "max_episode_steps": 50, "control_mode": "pd_ee_delta_pos", "reward_mode": "sparse"}
    for ignore in (True, False):
        env = pool.take("PushCube-v1", {**keys, "ignore_terminations": ignore})
        state = env.reset(seed=0)[0]["state"]
        ended = []
        for number in range(50):
            tcp, cube = state[:, 18:21], state[:, 28:31]  # In PushCube's state.
            target = cube - torch.tensor([0.08 if number < 20 else -0.1, 0.0, 0.0])  # To behind the cube, then through.
            step = env.step(torch.cat([((target - tcp) * 10).clamp(-1, 1), -torch.ones(1, 1)], dim=1))
            state = step.obs["state"]
            assert step.success is not None and torch.equal(step.reward, step.success.float())
            if bool(step.success):
                ended.append(bool(step.terminated))
                break
        assert ended == [not ignore]
        env.close()


def test_nothing_is_drawn_that_nobody_wants(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = ManiSkillSim("PushCube-v1", ManiSkillConfig(camera_size=(16, 16)))
    monkeypatch.setattr(adapter, "simulate", lambda *_: sim)
    env = ManiSkillEnv("PushCube-v1", ManiSkillConfig(num_envs=1, max_episode_steps=3))
    drawn: list[int] = []
    draw = sim.frames
    monkeypatch.setattr(sim, "frames", lambda: drawn.append(1) or draw())
    env.request_frames("terminal")
    env.reset(seed=0)
    for _ in range(2):
        env.step(torch.zeros(1, 8))
    assert not drawn
    assert env.step(torch.zeros(1, 8)).final_frames is not None
    assert len(drawn) == 1
    assert not env.can_save_state and not env.can_snapshot  # As on a GPU: all in one process.
    env.close()


@pytest.mark.parametrize("check", [check_steps, check_seeds])
def test_one_process_with_all_scenes_passes(
    installed: None, check: Callable[[Make], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, on the one scene that a CPU can have."""
    monkeypatch.setattr(adapter, "simulate", lambda task, cfg, *_: ManiSkillSim(task, cfg))

    def make(_: int) -> ManiSkillEnv:
        cfg = ManiSkillConfig(num_envs=1, max_episode_steps=4, obs_mode="rgb", camera_size=(16, 16))
        return ManiSkillEnv("PickCube-v1", cfg)

    check(make)


def test_the_goal_is_seen_or_not(pool: Pool) -> None:
    pictures = {}
    for show in (True, False):
        env = pool.take("PickCube-v1", {"num_envs": 1, "show_goal": show, "camera_size": (64, 64)})
        env.reset(seed=3)
        pictures[show] = env.render()["base_camera"][0].int()
        env.close()
    # A green ball, small from there: pixels that are much more green than red and blue.
    green = {show: int(((p[..., 1] - p[..., [0, 2]].amax(-1)) > 60).sum()) for show, p in pictures.items()}
    assert green[True] >= 3 and green[False] == 0


@pytest.mark.parametrize(
    ("task", "robot", "elsewhere"),
    [
        ("PickCube-v1", "panda", (0.05, 0.0, 0.0)),
        ("PickCube-v1", "panda_wristcam", (0.0, 0.0, 0.05)),  # Its hand is turned by a right angle.
        ("PushCube-v1", "panda", (-0.15, 0.0, 0.0)),
    ],
)
def test_scripted_experts_succeed_and_those_that_are_misled_do_not(
    pool: Pool, task: str, robot: str, elsewhere: tuple[float, ...]
) -> None:
    keys = {"num_envs": 4, "control_mode": "pd_ee_delta_pos", "kwargs": {"robot_uids": robot}}
    env = pool.take(task, keys)
    for offset, wanted in (((0.0, 0.0, 0.0), True), (elsewhere, False)):
        env.reset(seed=3)
        for _ in range(40):
            step = env.step(env.misled_expert_action(np.tile(offset, (4, 1))))
        assert step.success is not None and step.success.tolist() == [wanted] * 4
    env.close()


@pytest.mark.parametrize(
    ("task", "mode", "words"),
    [
        ("PegInsertionSide-v1", "pd_ee_delta_pos", "no scripted expert; there is one of PickCube-v1, PushCube-v1"),
        ("PickCube-v1", None, "acts in 'pd_ee_delta_pos', not in the robot's default"),
        ("PickCube-v1", "pd_joint_pos", "acts in 'pd_ee_delta_pos', not in 'pd_joint_pos'"),
        ("PickCube-v1", "pd_ee_delta_pos", "env.cfg.kwargs: .* moves panda or panda_wristcam, not robot_uids 'fetch'"),
    ],
)
def test_where_no_expert_can_act_it_is_told(task: str, mode: str | None, words: str) -> None:
    env = SimpleNamespace(task=task, cfg=ManiSkillConfig(control_mode=mode, kwargs={"robot_uids": "fetch"}))
    with pytest.raises(ConfigError, match=words):
        ManiSkillEnv.misled_expert_action(cast(ManiSkillEnv, env), np.zeros((1, 3)))


def test_portraits_are_larger_than_frames(pool: Pool) -> None:
    env = pool.take("PickCube-v1", {"num_envs": 2, "max_episode_steps": SHORT})
    env.reset(seed=3)
    assert env.portrait(torch.tensor([1, 0])).shape == (2, 256, 256, 3)
    env.close()


@pytest.mark.parametrize(
    ("task", "keys", "kind", "words"),
    [
        ("PickCub-v1", {}, RegistryError, ["unknown ManiSkill task 'PickCub-v1'", "Did you mean 'PickCube-v1'?"]),
        ("PickCube-v1", {"cameras": ["wrist"]}, ConfigError, ["unknown camera 'wrist'", "there are base_camera"]),
        (
            "PickCube-v1",
            {"control_mode": "pd_ee_delta_po"},
            ConfigError,
            ["Did you mean 'pd_ee_delta_pos'?", "Known: "],
        ),
        ("PickCube-v1", {"kwargs": {"robot_uids": "pandas"}}, EnvError, ["cannot be made", "pandas"]),
        ("TwoRobotPickCube-v1", {}, EnvError, ["With two robots"]),
    ],
)
def test_bad_input_is_told(
    installed: None, task: str, keys: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        build_env(f"maniskill:{task}", {"num_envs": 1, **keys}, threads=1)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert type(caught.value) is kind


OWN_TASK = """
from mani_skill.envs.tasks.tabletop.push_cube import PushCubeEnv
from mani_skill.utils.registration import register_env

@register_env("MyPush-v1", max_episode_steps=7)
class MyPush(PushCubeEnv):
    pass
"""


def test_a_task_of_ones_own_is_imported_where_it_is_simulated(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tasks.py").write_text(OWN_TASK)
    with pytest.raises(MissingDependencyError, match=r"maniskill:my_tasks:MyPush-v1 needs .*my_tasks"):
        build_env("maniskill:my_tasks:MyPush-v1", {"num_envs": 1}, threads=1)
    monkeypatch.syspath_prepend(tmp_path)
    with closing(build_env("maniskill:my_tasks:MyPush-v1", {"num_envs": 2}, threads=1)) as env:
        env.reset(seed=0)
        assert env.max_episode_steps == 7 and env.step(torch.zeros(2, 8)).success is not None


def test_a_state_of_another_number_of_envs_is_refused(pool: Pool) -> None:
    few, many = (pool.take("PushCube-v1", {"num_envs": n, "max_episode_steps": SHORT}) for n in (2, 3))
    few.reset(seed=0)
    with pytest.raises(EnvError, match="of 2 envs, but this env has 3"):
        many.load_state_dict(few.state_dict())
    few.close()
    many.close()


def test_frames_are_pictures_of_the_same_instant_as_the_state(pool: Pool) -> None:
    env = pool.take("PushCube-v1", {"num_envs": 2, "max_episode_steps": SHORT})
    env.request_frames("always")
    env.reset(seed=1)
    before = env.render()["base_camera"]
    step = env.step(torch.ones(2, 8))
    assert step.frames is not None
    assert not torch.equal(step.frames["base_camera"], before)
    assert torch.equal(step.frames["base_camera"], env.render()["base_camera"])
    assert np.asarray(before).std() > 10  # Not a blank picture.
    env.close()


def test_actions_are_clipped_to_the_robots_own_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pool = WorkerPool("fake_sims:Counter", {}, 2, 1, False, (8, 8), 60.0)
    monkeypatch.setattr(adapter, "simulate", lambda *_: pool)
    with closing(ManiSkillEnv("Counter", ManiSkillConfig(num_envs=2))) as env:
        env.reset(seed=0)
        step = env.step(torch.tensor([[5.0], [-0.25]]))
        assert step.obs["state"][:, 1].tolist() == [1.0, -0.25]
        assert env.state_dict()["actions"].tolist() == [[[1.0], [-0.25]]]  # What a resume plays again.


@pytest.mark.parametrize(
    ("keys", "threads", "free", "expected"),
    [
        ({}, 0, None, 8),
        ({}, 0, 16 * MEMORY, 8),
        ({}, 0, 7 * MEMORY, 3),  # And room for as many that evaluate.
        ({}, 0, MEMORY // 2, 1),
        ({}, 6, MEMORY, 6),
        ({"workers": 7}, 6, MEMORY, 7),
    ],
)
def test_as_many_processes_as_there_are_cores_and_memory_for(
    keys: dict[str, Any], threads: int, free: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda _: "there")
    monkeypatch.setattr(adapter, "require_vulkan", lambda: None)
    monkeypatch.setattr(adapter, "cores", lambda: 8)
    monkeypatch.setattr(adapter, "available_memory", lambda: free)
    monkeypatch.setattr(adapter, "WorkerPool", lambda *_, **given: made.update(given))
    adapter.simulate("PickCube-v1", ManiSkillConfig(worker_timeout=9.0, **keys), 64, "cpu", threads)
    assert (made["workers"], made["patience"]) == (expected, 9.0)


def test_without_maniskill_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"make maniskill.*pip install 'plaudit\[maniskill\]'"):
        build_env("maniskill:PickCube-v1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_cannot_simulate() -> None:
    with pytest.raises(ConfigError, match="sim_backend: 'gpu' needs an NVIDIA GPU"):
        build_env("maniskill:PickCube-v1", {"sim_backend": "gpu"})


def test_envs_that_end_together_are_of_all_workers() -> None:
    groups = ManiSkillEnv._groups(cast(ManiSkillEnv, SimpleNamespace(num_envs=32)), 10)
    together = [[(groups[rows] == group).sum().item() for rows in (slice(16), slice(16, 32))] for group in range(10)]
    assert all(abs(one - other) <= 1 for one, other in together)
    few = ManiSkillEnv._groups(cast(ManiSkillEnv, SimpleNamespace(num_envs=4)), 10)
    assert few.tolist() == [0, 2, 5, 7]


def test_a_typo_is_told_where_keys_are_listed(installed: None) -> None:
    with pytest.raises(RegistryError, match=r"unknown ManiSkill task 'PushCub-v1'. Did you mean 'PushCube-v1'\?"):
        env_keys("maniskill:PushCub-v1")
    assert {row["key"] for row in env_keys("maniskill:PushCube-v1")} >= {"num_envs", "obs_mode", "cameras"}
