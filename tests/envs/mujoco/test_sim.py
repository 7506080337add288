"""Batched stepping: the same bits whatever the threads and the company."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from plaudit.envs.mujoco import panda, scene
from plaudit.envs.mujoco.arm_task import ArmTask
from plaudit.envs.mujoco.batch_sim import Array, BatchSim
from plaudit.envs.mujoco.geometry import THING

N, STEPS = 6, 12


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return scene.build("sim", THING, '<geom class="visual" type="sphere" size=".01"/>')


def _trajectory(model: mujoco.MjModel, envs: list[int], threads: int) -> Array:
    """States (steps, len(envs), d) of envs that hit the cube from above, each in its own way."""
    rng = np.random.default_rng(0)
    starts = rng.uniform([-0.1, -0.1, 0.1], [0.1, 0.1, 0.3], (N, 3))
    ways = rng.uniform(-0.02, 0.02, (N, STEPS, 3)) - np.array([0, 0, 0.015])
    with closing(BatchSim(model, len(envs), scene.SUBSTEPS, threads)) as sim:
        sim.qpos[:, :7] = panda.inverse(starts[envs])
        sim.qpos[:, 9:12] = starts[envs] * np.array([1, 1, 0]) + np.array([0.01, 0, 0.02])
        sim.qpos[:, 12] = 1.0
        sim.ctrl[:, :9] = sim.qpos[:, :9]
        states = []
        for step in range(STEPS):
            target = np.concatenate(
                [panda.inverse(starts[envs] + ways[envs, : step + 1].sum(1)), np.zeros((len(envs), 2))], 1
            )
            sim.step(target)
            states.append(sim.state.copy())
    return np.stack(states)


def test_threads_change_no_bit(model: mujoco.MjModel) -> None:
    one = _trajectory(model, list(range(N)), 1)
    two = _trajectory(model, list(range(N)), 2)
    assert np.ptp(one[:, :, 1:], axis=0).max() > 0.05  # something moved
    assert one.tobytes() == two.tobytes()


def test_company_changes_no_bit(model: mujoco.MjModel) -> None:
    everyone = _trajectory(model, list(range(N)), 1)
    some = _trajectory(model, [4, 1], 1)
    alone = _trajectory(model, [3], 1)
    assert some.tobytes() == everyone[:, [4, 1]].copy().tobytes()
    assert alone.tobytes() == everyone[:, [3]].copy().tobytes()


def test_same_steps_as_plain_mujoco(model: mujoco.MjModel) -> None:
    """One control step is so many `mj_step`s with targets on a straight line."""
    goal = np.array([0.05, -0.3, 0.02, -2.2, -0.01, 2.0, 0.8, 0.02, 0.02])
    with closing(BatchSim(model, 1, scene.SUBSTEPS, 1)) as sim:
        sim.qpos[0, :7] = panda.inverse(np.array([[-0.1, 0, 0.2]]))[0]
        sim.qpos[0, 9:13] = [0, 0, 0.02, 1]
        sim.ctrl[0] = sim.qpos[0, :9]
        data = mujoco.MjData(model)
        data.qpos[:] = sim.qpos[0]
        start = sim.ctrl[0].copy()
        sim.step(goal[None])
        for k in range(1, scene.SUBSTEPS + 1):
            data.ctrl[:] = start + (goal - start) * k / scene.SUBSTEPS
            mujoco.mj_step(model, data)
        np.testing.assert_allclose(sim.qpos[0], data.qpos, atol=1e-9)
        np.testing.assert_allclose(sim.qvel[0], data.qvel, atol=1e-8)
        assert np.array_equal(sim.ctrl[0], goal)


def test_scenery_collides_where_it_is_put() -> None:
    block = '<geom type="box" size=".05 .05 .05" contype="1" conaffinity="3"/>'
    model = scene.build("scenery", THING, block)
    with closing(BatchSim(model, 2, scene.SUBSTEPS, 1)) as sim:
        sim.qpos[:, 9:13] = [0.3, 0.3, 0.14, 1]
        sim.scenery[0, :3] = [0.3, 0.3, 0.05]  # below the cube of env 0; env 1's is elsewhere
        for _ in range(20):
            sim.step(sim.ctrl.copy())
        np.testing.assert_allclose(sim.qpos[:, 11], [0.12, 0.02], atol=2e-3)


def test_physics_that_explodes_is_held_back(
    model: mujoco.MjModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(BatchSim(model, 3, scene.SUBSTEPS, 1)) as sim:
        sim.qpos[:, :7] = panda.inverse(np.array([[-0.1, 0, 0.2]]))
        sim.qpos[:, 9:13] = [0.3, 0.1, 0.02, 1]
        sim.ctrl[:] = sim.qpos[:, :9]
        sim.qvel[1, 0] = 1e11  # more than MuJoCo puts up with
        before = sim.qpos.copy()
        sim.step(sim.ctrl.copy())
        assert sim.jams == 1
        assert np.array_equal(sim.qpos[1], before[1])
        assert not sim.qvel[1].any()
        np.testing.assert_allclose(sim.state[:, 0], scene.SUBSTEPS * scene.TIMESTEP)
        np.testing.assert_allclose(sim.qpos[[0, 2]], before[[0, 2]], atol=1e-3)
        sim.step(sim.ctrl.copy())
        assert sim.jams == 1
    assert list(tmp_path.iterdir()) == []  # no MUJOCO_LOG.TXT


@pytest.mark.parametrize("env_id", ["PushCube", "PickCube", "PegInsertion"])
def test_episodes_are_the_same_with_any_threads_and_company(make: Callable[..., ArmTask], env_id: str) -> None:
    one, two, few = make(env_id, 5), make(env_id, 5, threads=2), make(env_id, 2)
    for _ in range(15):
        action = one.expert_action()
        steps = [one.step(action), two.step(action), few.step(action[:2])]
        assert torch.equal(steps[0].obs["state"], steps[1].obs["state"])
        assert torch.equal(steps[0].obs["state"][:2], steps[2].obs["state"])
        assert torch.equal(steps[0].reward, steps[1].reward)
    assert one.sim.state.tobytes() == two.sim.state.tobytes()
