"""How the robot is moved, what it sees, and how its state is saved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from plaudit.envs.mujoco import panda
from plaudit.envs.mujoco.arm_task import ArmTask
from plaudit.envs.mujoco.peg_insertion import PegInsertion
from plaudit.envs.mujoco.scene import CONTROL_HZ
from plaudit.errors import EnvError

TASKS = ["PushCube", "PickCube", "PegInsertion"]
Make = Callable[..., ArmTask]


def _random_actions(env: ArmTask, generator: torch.Generator) -> torch.Tensor:
    return 2 * torch.rand(env.num_envs, *env.action_space.shape, generator=generator) - 1


# Control.


@pytest.mark.parametrize("scale", [None, 0.05])
def test_joint_control_moves_joints_by_action_scale(make: Make, scale: float | None) -> None:
    reach = scale or 0.1
    env = make("PushCube", 14, control="joint", action_scale=scale)
    assert env.action_space.shape == (8,)
    before = env.sim.qpos[:, :7].copy()
    action = torch.zeros(14, 8)
    expected = np.zeros((14, 7))
    for i in range(7):
        for row, sign in ((i, 1), (7 + i, -1)):
            action[row, i], expected[row, i] = sign, sign * reach
    env.step(action)
    np.testing.assert_allclose(env.sim.ctrl[:, :7] - before, expected, atol=1e-9)
    for _ in range(6):
        env.step(torch.zeros(14, 8))
    np.testing.assert_allclose(env.sim.qpos[:, :7] - before, expected, atol=0.05 * reach)


def test_joint_control_keeps_the_limits(make: Make) -> None:
    env = make("PickCube", 14, control="joint", episode_length=1000)
    action = torch.zeros(14, 8)
    for i in range(7):
        action[i, i], action[7 + i, i] = 1, -1
    for _ in range(65):
        env.step(action)
        assert (env.sim.ctrl[:, :7] >= panda.LOWER).all()
        assert (env.sim.ctrl[:, :7] <= panda.UPPER).all()
        assert (env.sim.qpos[:, :7] >= panda.LOWER - 0.02).all()
        assert (env.sim.qpos[:, :7] <= panda.UPPER + 0.02).all()
    # Joint 1 meets nothing on its way to either end.
    np.testing.assert_allclose(env.sim.qpos[[0, 7], 0], np.array([panda.UPPER[0], panda.LOWER[0]]), atol=0.02)


def test_joint_targets_do_not_run_away_from_a_blocked_arm(make: Make) -> None:
    env = make("PushCube", 1, control="joint", episode_length=1000)
    action = torch.zeros(1, 8)
    action[0, 1] = 1.0  # the shoulder leans forward until the hand is on the table
    for _ in range(40):
        before = env.sim.qpos[:, :7].copy()
        env.step(action)
        assert np.abs(env.sim.ctrl[:, :7] - before).max() <= 0.2 + 1e-9
    assert env.tcp[0, 2] < 0.05
    assert env.sim.qpos[0, 1] < 1.2


@pytest.mark.parametrize("scale", [None, 0.01])
def test_ee_control_moves_the_gripper_by_action_scale(make: Make, scale: float | None) -> None:
    reach = scale or 0.03
    env = make("PickCube", 6, action_scale=scale)
    env.sim.qpos[:, 9] = 0.5  # out of the way
    env.place_robot(np.arange(6), np.tile([-0.05, 0.0, 0.2], (6, 1)), 0.04)
    env._look()
    env.target[:] = env.tcp
    before = env.tcp.copy()
    way = np.concatenate([np.eye(3), -np.eye(3)])
    action = torch.cat([torch.from_numpy(way).float(), torch.ones(6, 1)], 1)
    for _ in range(3):
        env.step(action)
    np.testing.assert_allclose(env.target - before, 3 * reach * way, atol=1e-6)
    for _ in range(6):
        env.step(torch.zeros(6, 4))
    np.testing.assert_allclose(env.tcp - before, 3 * reach * way, atol=0.1 * reach)
    np.testing.assert_allclose(env.hand[:, :, 2], np.tile([0.0, 0.0, -1.0], (6, 1)), atol=0.02)


@pytest.mark.parametrize("control", ["ee", "joint"])
@pytest.mark.parametrize("env_id", TASKS)
def test_commanded_speed_keeps_frankas_limits(make: Make, env_id: str, control: str) -> None:
    env = make(env_id, 16, control=control, action_scale=0.3)
    generator = torch.Generator().manual_seed(1)
    fastest = 0.0
    for _ in range(20):
        before = env.sim.ctrl[:, :7].copy()
        env.step(_random_actions(env, generator).sign())
        fastest = max(fastest, float((np.abs(env.sim.ctrl[:, :7] - before) * CONTROL_HZ / panda.MAX_SPEED).max()))
    assert 0.99 < fastest <= 1 + 1e-9


def test_actions_beyond_one_are_one(make: Make) -> None:
    one, ten = make("PickCube", 2), make("PickCube", 2)
    for _ in range(3):
        assert torch.equal(one.step(torch.ones(2, 4)).obs["state"], ten.step(10 * torch.ones(2, 4)).obs["state"])


def test_gripper_opens_and_closes(make: Make) -> None:
    env = make("PickCube", 2)
    env.sim.qpos[:, 9] = 0.5
    action = torch.zeros(2, 4)
    action[:, 3] = torch.tensor([1.0, -1.0])
    for _ in range(15):
        env.step(action)
    # Joint limits are springs: a finger that presses with 15 N is a millimetre beyond.
    np.testing.assert_allclose(env.sim.qpos[:, 7:9], np.array([[0.04, 0.04], [0.0, 0.0]]), atol=2e-3)


def test_the_cube_stays_grasped(make: Make) -> None:
    env = make("PickCube", 20, episode_length=200)
    for _ in range(50):
        step = env.step(env.expert_action())
    assert step.success is not None
    assert step.success.all()
    for _ in range(50):
        step = env.step(env.expert_action())
        assert step.metrics["grasped"].all()
    assert step.success is not None
    assert step.success.all()


def test_the_cube_stays_grasped_when_shaken(make: Make) -> None:
    env = make("PickCube", 20, episode_length=200)
    env.sim.scenery[:, 2] = 0.2
    for _ in range(50):
        env.step(env.expert_action())
    offset = env.thing - env.tcp
    for step in range(40):
        action = -torch.ones(20, 4)
        action[:, :2] = 0.5 if step // 2 % 2 else -0.5  # to and fro, 3 cm each way at half speed
        action[:, 2] = 0.0
        outcome = env.step(action)
    assert outcome.metrics["grasped"].float().mean() >= 0.95
    slip = np.linalg.norm(env.thing - env.tcp - offset, axis=1)
    assert np.median(slip) < 0.01


# Observations.


@pytest.mark.parametrize("env_id", TASKS)
def test_rgb_gives_images_and_proprioception_only(make: Make, env_id: str) -> None:
    env = make(env_id, 3, obs_mode="rgb", camera_size=(32, 40))
    obs = env.observe()
    assert set(obs) == {"state", "base_camera", "wrist_camera"}
    assert obs["base_camera"].shape == (3, 32, 40, 3)
    assert np.array_equal(obs["state"].numpy(), env.proprioception(slice(None)).astype(np.float32))
    # Object and goal elsewhere: other pictures, the same numbers.
    env.sim.qpos[:, 9:11] += 0.07
    env.sim.scenery[:, :2] -= 0.05
    moved = env.observe()
    assert torch.equal(moved["state"], obs["state"])
    assert not torch.equal(moved["base_camera"], obs["base_camera"])
    full = make(env_id, 3).observe()["state"]
    assert torch.equal(full[:, : obs["state"].shape[1]], obs["state"])


@pytest.mark.parametrize("env_id", TASKS)
def test_state_shows_object_and_goal(make: Make, env_id: str) -> None:
    env = make(env_id, 2)
    before = env.observe()["state"]
    env.sim.qpos[:, 9] += 0.03
    moved_object = env.observe()["state"]
    env.sim.scenery[:, 1] += 0.03
    moved_goal = env.observe()["state"]
    assert (before != moved_object).any(1).all()
    assert (moved_goal != moved_object).any(1).all()


@pytest.mark.parametrize(("control", "lead"), [("ee", 3), ("joint", 7)])
def test_proprioception_by_hand(make: Make, control: str, lead: int) -> None:
    env = make("PickCube", 2, control=control)
    for _ in range(3):
        step = env.step(0.5 * torch.ones(2, *env.action_space.shape))
    state = step.obs["state"][:, : 18 + lead].numpy()
    sim = env.sim
    np.testing.assert_allclose(state[:, :7], sim.qpos[:, :7], atol=1e-6)
    np.testing.assert_allclose(state[:, 7:14], 0.3 * sim.qvel[:, :7], atol=1e-6)
    np.testing.assert_allclose(state[:, 14], 20 * sim.qpos[:, 7:9].sum(1), atol=1e-6)
    np.testing.assert_allclose(state[:, 15:18], 5 * panda.forward(sim.qpos[:, :7])[0], atol=1e-6)
    ahead = env.target - env.tcp if control == "ee" else sim.ctrl[:, :7] - sim.qpos[:, :7]
    np.testing.assert_allclose(state[:, 18:], 10 * ahead, atol=1e-6)
    assert env.proprioception(slice(None)).shape == (2, 18 + lead)


# Saved states.


@pytest.mark.parametrize("control", ["ee", "joint"])
@pytest.mark.parametrize("env_id", TASKS)
def test_saved_state_goes_on_bit_for_bit_through_resets(make: Make, env_id: str, control: str) -> None:
    env, other = (make(env_id, 4, seed=s, control=control, episode_length=12) for s in (0, 9))
    env.stagger()
    generator = torch.Generator().manual_seed(0)
    actions = [_random_actions(env, generator) for _ in range(37)]
    for action in actions[:7]:
        last = env.step(action)
    saved = env.state_dict()
    assert torch.equal(other.load_state_dict(saved)["state"], last.obs["state"])
    ended = 0
    for action in actions[7:]:
        one, two = env.step(action), other.step(action)
        assert torch.equal(one.obs["state"], two.obs["state"])
        assert torch.equal(one.reward, two.reward)
        assert torch.equal(one.truncated, two.truncated)
        ended += len(one.ended)
    assert ended >= 8
    assert env.sim.state.tobytes() == other.sim.state.tobytes()
    assert env.episode.tolist() == other.episode.tolist()


def test_saved_state_keeps_how_long_the_peg_was_held(make: Make) -> None:
    env, other = make("PegInsertion", 4), make("PegInsertion", 4, seed=5)
    assert isinstance(env, PegInsertion)
    while not 0 < env.held_for.max() < 4:
        env.step(env.expert_action())
    other.load_state_dict(env.state_dict())
    for _ in range(6):
        action = env.expert_action()
        one, two = env.step(action), other.step(action)
        assert one.success is not None
        assert two.success is not None
        assert torch.equal(one.success, two.success)
    assert one.success is not None
    assert one.success.any()


def test_saved_state_is_a_copy_and_of_as_many_envs(make: Make) -> None:
    env = make("PickCube", 2)
    saved = env.state_dict()
    kept = saved["physics"].clone()
    env.step(torch.ones(2, 4))
    assert torch.equal(saved["physics"], kept)
    with pytest.raises(EnvError, match="is of 2 envs, but this env has 3"):
        make("PickCube", 3).load_state_dict(saved)


def test_push_cube_rl_takes_the_tutorials_keys(make: Make) -> None:
    env = make("PushCubeRL", 4, obs_mode="state", episode_length=7, action_scale=0.05, success_threshold=0.02)
    assert env.max_episode_steps == 7
    assert env.scale == 0.05
    for _ in range(7):
        step = env.step(torch.zeros(4, 4))
    assert step.truncated.all()
