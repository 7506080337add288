"""The three tasks: difficulty, success worked out by hand, rewards and episodes."""

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
from plaudit.envs.mujoco.arm_task import ArmTask
from plaudit.envs.mujoco.peg_insertion import BLOCK_HEIGHT, PEG_HALF_LENGTH, PEG_HALF_WIDTH

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
    return bool(env.evaluate_task().success[0])


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


def test_a_cube_carried_through_the_goal_looks_done_but_is_not(make: Make) -> None:
    env = make("PickCube", 2)
    env.sim.qpos[:, 9:12] = env.sim.scenery[:, :3]
    env.sim.qvel[:, 0] = (0.0, 1.0)
    verdict = env.evaluate_task()
    assert verdict.looks_done is not None and verdict.looks_done.tolist() == [True, True]
    assert verdict.success.tolist() == [True, False]


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
@pytest.mark.parametrize("control", ["ee", "joint"])
@pytest.mark.parametrize("env_id", TASKS)
def test_readings_are_what_the_robot_measures(make: Make, env_id: str, control: str, obs_mode: str) -> None:
    env = make(env_id, num_envs=3, control=control, obs_mode=obs_mode)
    env.reset(seed=0)
    random = torch.Generator().manual_seed(0)
    for _ in range(5):
        step = env.step(2 * torch.rand(3, env.action_space.shape[0], generator=random) - 1)
    found = {name: step.obs["state"][:, at.index].numpy() / at.scale for name, at in env.readings.items()}
    true = {f"joint_{i + 1}": env.sim.qpos[:, i] for i in range(7)}
    true |= {f"joint_speed_{i + 1}": env.sim.qvel[:, i] for i in range(7)}
    true |= {f"tcp_{axis}": env.tcp[:, i] for i, axis in enumerate("xyz")}
    true |= {"gripper_width": env.sim.qpos[:, 7:9].sum(1)}
    assert found.keys() == true.keys()
    for name, values in found.items():
        assert values == pytest.approx(true[name], rel=1e-4, abs=1e-6), name


def test_a_cube_that_is_tilted_in_the_goal_looks_done_but_is_not(make: Make) -> None:
    env = make("PushCube", 4)
    env.sim.qpos[:, 9:11] = env.sim.scenery[:, :2]
    env.sim.qpos[:, 11] = (0.02, 0.027, 0.08, 0.02)
    env.sim.qpos[3, 9] += 0.11
    verdict = env.evaluate_task()
    assert verdict.success.tolist() == [True, False, False, False]
    assert verdict.looks_done is not None and verdict.looks_done.tolist() == [True, True, False, False]


@pytest.mark.parametrize("env_id", TASKS)
def test_a_misled_expert_ends_beside_the_goal_and_leaves_the_goal_where_it_is(make: Make, env_id: str) -> None:
    env = make(env_id, num_envs=2)
    env.reset(seed=0)
    goals, succeeded = env.sim.scenery.copy(), torch.zeros(2, dtype=torch.bool)
    offset = np.zeros((2, 3))
    offset[1, 1] = 0.15
    for _ in range(env.cfg.episode_length - 1):
        step = env.step(env.misled_expert_action(offset))
        succeeded |= step.success
    assert succeeded.tolist() == [True, False]
    assert (env.sim.scenery == goals).all()
