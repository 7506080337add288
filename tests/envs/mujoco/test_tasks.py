"""The three tasks: difficulty, success worked out by hand, rewards, control, and saved states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from plaudit.envs import Step, build_env
from plaudit.envs.mujoco import panda
from plaudit.envs.mujoco.peg_insertion import BLOCK_HEIGHT, PEG_HALF_LENGTH, PEG_HALF_WIDTH, PegInsertion
from plaudit.envs.mujoco.scene import CONTROL_HZ
from plaudit.envs.mujoco.task import ArmTask
from plaudit.errors import EnvError

TASKS = ["PushCube", "PickCube", "PegInsertion"]
EPISODES = 200
Make = Callable[..., ArmTask]


def _random_actions(env: ArmTask, generator: torch.Generator) -> torch.Tensor:
    return 2 * torch.rand(env.num_envs, *env.action_space.shape, generator=generator) - 1


# Difficulty, from one episode in each of 200 envs.


@dataclass
class Played:
    """What a policy did: per step and env (steps, envs), speeds as a part of Franka's limits."""

    success: NDArray[np.bool_]
    reward: NDArray[np.float32]
    terms: dict[str, NDArray[np.float32]]
    metrics: dict[str, NDArray[np.float32]]
    speed: NDArray[np.float64]
    headline: str

    def rate(self) -> float:
        """The task's headline metric."""
        return float((self.success.any(0) if self.headline == "success_once" else self.success[-1]).mean())


@cache
def _play(env_id: str, policy: str) -> Played:
    env = build_env(env_id, {"num_envs": EPISODES}, threads=1)
    assert isinstance(env, ArmTask)
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    steps: list[Step] = []
    speeds = []
    for _ in range(env.cfg.episode_length):
        action = env.expert_action() if policy == "expert" else _random_actions(env, generator)
        steps.append(env.step(action))
        if len(steps) < env.cfg.episode_length:  # the last step has already begun the next episode
            speeds.append((np.abs(env.sim.qvel[:, :7]) / panda.MAX_SPEED).max(1))
    env.close()
    assert bool(steps[-1].truncated.all())
    return Played(
        success=np.stack([s.success.numpy() for s in steps if s.success is not None]),
        reward=np.stack([s.reward.numpy() for s in steps]),
        terms={name: np.stack([s.rewards[name].numpy() for s in steps]) for name in steps[0].rewards},
        metrics={name: np.stack([s.metrics[name].numpy() for s in steps]) for name in steps[0].metrics},
        speed=np.stack(speeds),
        headline=env.headline,
    )


@pytest.mark.parametrize("env_id", TASKS)
def test_random_policy_succeeds_in_at_most_5_percent(env_id: str) -> None:
    assert _play(env_id, "random").rate() <= 0.05


@pytest.mark.parametrize("env_id", TASKS)
def test_expert_succeeds_in_at_least_95_percent(env_id: str) -> None:
    assert _play(env_id, "expert").rate() >= 0.95


@pytest.mark.parametrize("env_id", TASKS)
def test_holding_tasks_are_judged_at_the_end(env_id: str) -> None:
    assert _play(env_id, "expert").headline == ("success_once" if env_id == "PushCube" else "success_at_end")


@pytest.mark.parametrize("policy", ["random", "expert"])
@pytest.mark.parametrize("env_id", TASKS)
def test_reward_terms_sum_to_the_reward_within_0_and_1(env_id: str, policy: str) -> None:
    played = _play(env_id, policy)
    np.testing.assert_allclose(sum(played.terms.values()), played.reward, atol=1e-6)
    assert played.reward.min() >= 0
    assert played.reward.max() <= 1 + 1e-6
    for name, term in played.terms.items():
        assert term.min() >= 0, name
        assert term.std() > 0 or policy == "random", name


@pytest.mark.parametrize("env_id", TASKS)
def test_success_is_worth_more_than_anything_else(env_id: str) -> None:
    played = _play(env_id, "expert")
    assert played.reward[played.success].min() > np.median(played.reward[~played.success])
    assert (played.terms["success"] > 0).tolist() == played.success.tolist()


@pytest.mark.parametrize("env_id", TASKS)
def test_expert_keeps_frankas_joint_speeds(env_id: str) -> None:
    assert _play(env_id, "expert").speed.max() <= 1.1


@pytest.mark.parametrize("env_id", TASKS)
def test_random_jerks_hardly_ever_exceed_frankas_joint_speeds(env_id: str) -> None:
    # What is commanded never does (below); servos that catch up, or are hit, sometimes do for an instant.
    assert (_play(env_id, "random").speed > 1.1).mean() < 0.02


def test_peg_success_begins_with_the_fifth_deep_step() -> None:
    played = _play("PegInsertion", "expert")
    deep = played.metrics["depth"] > 0.03
    run = np.zeros(EPISODES, int)
    for step in range(len(deep)):
        run = np.where(deep[step], run + 1, 0)
        assert played.success[step].tolist() == (run >= 5).tolist()


# Success, by hand.


def _success(env: ArmTask) -> bool:
    return bool(env.judge()[1][0])


def _ways(distance: float) -> list[tuple[float, float, float]]:
    """Displacements of one length, along axes and a diagonal."""
    part = distance / np.sqrt(3)
    return [(distance, 0, 0), (0, -distance, 0), (0, 0, distance), (part, -part, part)]


def test_pick_cube_within_2_5_cm(make: Make) -> None:
    env = make("PickCube")
    goal = env.sim.scenery[0, :3].copy()
    for distance, expected in ((0.0, True), (0.024, True), (0.026, False)):
        for way in _ways(distance):
            env.sim.qpos[0, 9:12] = goal + np.array(way)
            assert _success(env) is expected


def test_pick_cube_threshold_is_a_setting(make: Make) -> None:
    env = make("PickCube", success_threshold=0.01)
    env.sim.qpos[0, 9:12] = env.sim.scenery[0, :3] + np.array([0.009, 0, 0])
    assert _success(env)
    env.sim.qpos[0, 9] += 0.002
    assert not _success(env)


@pytest.mark.parametrize("joint", range(7))
def test_pick_cube_needs_a_static_robot(make: Make, joint: int) -> None:
    env = make("PickCube")
    env.sim.qpos[0, 9:12] = env.sim.scenery[0, :3]
    for speed, expected in ((0.19, True), (-0.19, True), (0.21, False), (-0.21, False)):
        env.sim.qvel[0, :7] = 0.0
        env.sim.qvel[0, joint] = speed
        assert _success(env) is expected


def test_pick_cube_fingers_and_cube_may_move(make: Make) -> None:
    env = make("PickCube")
    env.sim.qpos[0, 9:12] = env.sim.scenery[0, :3]
    env.sim.qvel[0, 7:] = 0.5
    assert _success(env)


def test_push_cube_within_10_cm_on_the_table(make: Make) -> None:
    env = make("PushCube")
    goal = env.sim.scenery[0, :2].copy()
    for distance, expected in ((0.099, True), (0.101, False)):
        for angle in np.linspace(0, 2 * np.pi, 8):
            env.sim.qpos[0, 9:11] = goal + distance * np.array([np.cos(angle), np.sin(angle)])
            assert _success(env) is expected
    env.sim.qpos[0, 9:11] = goal
    for height, expected in ((0.024, True), (0.026, False)):  # at most 5 mm above where it lies
        env.sim.qpos[0, 11] = height
        assert _success(env) is expected


def test_push_cube_threshold_is_a_setting(make: Make) -> None:
    env = make("PushCube", success_threshold=0.05)
    env.sim.qpos[0, 9:11] = env.sim.scenery[0, :2] + np.array([0.0, 0.049])
    assert _success(env)
    env.sim.qpos[0, 10] += 0.002
    assert not _success(env)


def _put_tip(env: ArmTask, depth: float, sideways: float = 0.0) -> None:
    """Holds an upright peg with its lower end so deep below the block's top."""
    env.sim.qpos[0, 9:12] = env.sim.scenery[0, :3] + np.array([sideways, 0, BLOCK_HEIGHT - depth + PEG_HALF_LENGTH])
    env.sim.qpos[0, 12:16] = [1, 0, 0, 0]


def test_peg_depth_held_for_five_steps(make: Make) -> None:
    env = make("PegInsertion")
    _put_tip(env, 0.029)
    assert [_success(env) for _ in range(8)] == [False] * 8
    _put_tip(env, 0.031)
    assert [_success(env) for _ in range(7)] == [False] * 4 + [True] * 3
    _put_tip(env, 0.029)  # one shallow step, and the count begins again
    assert not _success(env)
    _put_tip(env, 0.031)
    assert [_success(env) for _ in range(6)] == [False] * 4 + [True] * 2


def test_peg_hold_and_depth_are_settings(make: Make) -> None:
    env = make("PegInsertion", success_hold_steps=1, success_depth=0.01)
    _put_tip(env, 0.009)
    assert not _success(env)
    _put_tip(env, 0.011)
    assert _success(env)


def test_peg_beside_the_hole_is_not_inside(make: Make) -> None:
    env = make("PegInsertion", success_hold_steps=1)
    _put_tip(env, 0.04, sideways=0.011)
    assert _success(env)
    _put_tip(env, 0.04, sideways=0.013)
    assert not _success(env)
    _put_tip(env, 0.055, sideways=0.2)  # beside the block
    assert not _success(env)


def test_peg_clearance_is_what_the_config_says(make: Make) -> None:
    env = make("PegInsertion", clearance=0.001)
    model = env.sim.model
    block = model.body("scenery").id
    walls = [g for g in range(model.ngeom) if model.geom_bodyid[g] == block and model.geom_contype[g]]
    gaps = [
        np.abs(model.geom_pos[g, :2]).max() - model.geom_size[g, np.abs(model.geom_pos[g, :2]).argmax()] for g in walls
    ]
    assert gaps == pytest.approx([PEG_HALF_WIDTH + 0.001] * 4)


def test_a_peg_with_a_millimetre_of_room_falls_in(make: Make) -> None:
    env = make("PegInsertion", clearance=0.001)
    env.sim.qpos[0, :7] = panda.inverse(np.array([[-0.3, 0.0, 0.4]]))[0]
    env.sim.qpos[0, 7:9] = 0.04
    env.sim.ctrl[0] = env.sim.qpos[0, :9]
    _put_tip(env, -0.002)
    for _ in range(20):
        env.sim.step(env.sim.ctrl.copy())
    assert env.sim.scenery[0, 2] + BLOCK_HEIGHT + PEG_HALF_LENGTH - env.thing[0, 2] > 0.05


def test_a_peg_that_spins_slows_down(make: Make) -> None:
    # Random policies squeeze the peg out of the gripper. Its spin must not grow until MuJoCo resets the state.
    env = make("PegInsertion")
    _put_tip(env, -1.0)
    env.sim.qvel[0, 12:15] = [30.0, 10.0, 100.0]
    env.sim.ctrl[0, 7:9] = 0.0
    for _ in range(8):
        env.sim.step(env.sim.ctrl.copy())
        assert np.linalg.norm(env.sim.qvel[0, 12:15]) < 105
    assert env.sim.jams == 0


# Rewards and episodes.


@pytest.mark.parametrize("env_id", TASKS)
def test_sparse_reward_is_success(make: Make, env_id: str) -> None:
    env = make(env_id, 8, reward_mode="sparse")
    seen = set()
    for _ in range(env.cfg.episode_length):
        step = env.step(env.expert_action())
        assert step.success is not None
        assert torch.equal(step.reward, step.success.float())
        seen.update(step.reward.tolist())
    assert seen == {0.0, 1.0}


@pytest.mark.parametrize("env_id", TASKS)
def test_terminate_on_success_ends_episodes(make: Make, env_id: str) -> None:
    env = make(env_id, 8, terminate_on_success=True)
    ends = torch.zeros(8, dtype=torch.int64)
    for _ in range(env.cfg.episode_length):
        step = env.step(env.expert_action())
        assert step.success is not None
        assert torch.equal(step.terminated, step.success)
        ends += step.done
        if len(step.ended):
            assert step.final_obs is not None
            assert not torch.equal(step.final_obs["state"], step.obs["state"][step.ended])
            assert (env.clock[step.ended] == 0).all()
    assert (ends >= 1).all()


@pytest.mark.parametrize("env_id", TASKS)
def test_poses_differ_between_envs_episodes_and_seeds(make: Make, env_id: str) -> None:
    env = make(env_id, 50, episode_length=1)

    def poses() -> NDArray[np.float64]:
        return np.concatenate([env.thing[:, :2], env.sim.scenery[:, :2], env.tcp[:, :2]], axis=1)

    first = poses()
    env.step(torch.zeros(50, *env.action_space.shape))
    second = poses()
    env.reset(seed=1)
    other_seed = poses()
    env.reset(seed=0)
    assert np.array_equal(first, poses())
    every = np.concatenate([first, second, other_seed])
    for column in every.T:
        assert len(np.unique(column)) == 150


@pytest.mark.parametrize(
    ("env_id", "thing", "scenery"),
    [
        ("PushCube", ([-0.12, -0.1, 0.02], [0.04, 0.1, 0.02]), ([0.05, -0.2, 0.0], [0.24, 0.2, 0.0])),
        ("PickCube", ([-0.1, -0.1, 0.02], [0.1, 0.1, 0.02]), ([-0.1, -0.1, 0.07], [0.1, 0.1, 0.32])),
        ("PegInsertion", ([-0.1, -0.05, 0.14], [0.0, 0.05, 0.18]), ([-0.1, -0.1, 0.0], [0.05, 0.1, 0.0])),
    ],
)
def test_poses_fill_the_documented_ranges(
    make: Make, env_id: str, thing: tuple[list[float], list[float]], scenery: tuple[list[float], list[float]]
) -> None:
    env = make(env_id, 600)
    for seen, (low, high) in ((env.thing, thing), (env.sim.scenery[:, :3], scenery)):
        span = np.subtract(high, low)
        assert (seen >= np.array(low) - 1e-9).all()
        assert (seen <= np.array(high) + 1e-9).all()
        np.testing.assert_allclose(seen.min(0), low, atol=0.1 * span.max())
        np.testing.assert_allclose(seen.max(0), high, atol=0.1 * span.max())


def test_push_goal_is_20_cm_ahead(make: Make) -> None:
    env = make("PushCube", 100)
    vector = env.sim.scenery[:, :2] - env.thing[:, :2]
    np.testing.assert_allclose(np.linalg.norm(vector, axis=1), 0.2)
    assert np.abs(np.arctan2(vector[:, 1], vector[:, 0])).max() <= np.pi / 6


@pytest.mark.parametrize("env_id", TASKS)
def test_nothing_moves_before_the_robot_does(make: Make, env_id: str) -> None:
    env = make(env_id, 20)
    thing, tcp = env.thing.copy(), env.tcp.copy()
    for _ in range(10):
        env.step(torch.zeros(20, *env.action_space.shape))
    np.testing.assert_allclose(env.tcp, tcp, atol=2e-3)
    np.testing.assert_allclose(env.thing, thing, atol=2e-3)


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
