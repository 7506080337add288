"""PickCube: grasp the cube and hold it at a goal in the air."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Headline
from plaudit.envs.mujoco import scene
from plaudit.envs.mujoco.arm_task import EVERYONE, HAND_START, ArmTask, Array, Ids, Rows, TaskEvaluation
from plaudit.envs.mujoco.config import PickCubeConfig
from plaudit.envs.mujoco.geometry import HALF, THING, axes, closeness, length, spread, yaw_quaternion

MARKER_REACH = 0.055
"""From the goal's middle to the ends of its arms, in metres."""

STATIC_SPEED = 0.2
"""The robot counts as static when no joint turns faster than this, in rad/s (ManiSkill's value)."""


def _goal_marker() -> str:
    """MJCF of the goal: a small ball in the middle, and one on the end of each of six arms.

    The arms are longer than the cube and the pads, so that a camera sees where the goal is also when the cube hides its
    middle. With a single ball, a cube at the goal looks just like one that happens to be in front of it.
    """
    balls = '<geom class="visual" type="sphere" size=".012" rgba=".1 .75 .25 1"/>'
    for axis, colour in enumerate((".1 .4 .9 1", ".1 .75 .25 1", ".95 .8 .1 1")):
        reach, thick = np.eye(3)[axis] * MARKER_REACH, np.full(3, 0.002) + np.eye(3)[axis] * MARKER_REACH
        balls += f'<geom class="visual" type="box" size="{thick[0]} {thick[1]} {thick[2]}" rgba="{colour}"/>'
        for end in (-reach, reach):
            place = f"{end[0]} {end[1]} {end[2]}"
            balls += f'<geom class="visual" type="sphere" size=".009" pos="{place}" rgba="{colour}"/>'
    return balls


class PickCube(ArmTask):
    """Success as ManiSkill's PickCube-v1 defines it: cube at the goal, robot static."""

    cfg: PickCubeConfig
    headline: Headline = "success_at_end"

    def build_model(self) -> mujoco.MjModel:
        return scene.build("pick_cube", THING, _goal_marker())

    def place(self, ids: Ids, u: Array) -> None:
        qpos = self.sim.qpos
        qpos[ids, 9] = spread(u[:, 0], -0.1, 0.1)
        qpos[ids, 10] = spread(u[:, 1], -0.1, 0.1)
        qpos[ids, 11] = HALF
        qpos[ids, 12:16] = yaw_quaternion(spread(u[:, 2], -np.pi, np.pi))
        self.sim.scenery[ids, 0] = spread(u[:, 3], -0.1, 0.1)
        self.sim.scenery[ids, 1] = spread(u[:, 4], -0.1, 0.1)
        self.sim.scenery[ids, 2] = HALF + spread(u[:, 5], 0.05, 0.3)
        hand = HAND_START + np.concatenate([spread(u[:, 6:8], -0.02, 0.02), np.zeros((len(ids), 1))], axis=1)
        self.place_robot(ids, hand, 0.04)

    def grasped(self, rows: Rows = EVERYONE) -> NDArray[np.bool_]:
        """Whether the cube is between the pads and stops them from closing, (n,)."""
        offset = np.einsum("nij,ni->nj", self.hand[rows], self.thing[rows] - self.tcp[rows])
        between = (np.abs(offset) < np.array([0.02, 0.012, 0.025])).all(1)
        finger = 0.5 * (self.sim.qpos[rows, 7] + self.sim.qpos[rows, 8])
        squeezed = (finger < 1.5 * HALF) & (self.sim.ctrl[rows, 7] < finger - 0.004)
        result: NDArray[np.bool_] = between & squeezed
        return result

    def task_state(self, rows: Rows) -> Array:
        cube, goal = self.thing[rows], self.sim.scenery[rows, :3]
        return np.concatenate(
            [
                5 * cube,
                axes(self.sim.qpos[rows, 12:16]),
                self.grasped(rows)[:, None],
                5 * goal,
                5 * (cube - self.tcp[rows]),
                5 * (goal - cube),
            ],
            axis=1,
        )

    def evaluate_task(self) -> TaskEvaluation:
        reach_distance = length(self.thing - self.tcp)
        goal_distance = length(self.sim.scenery[:, :3] - self.thing)
        grasped = self.grasped()
        placed = goal_distance < self.cfg.success_threshold
        speed = np.abs(self.sim.qvel[:, :7]).max(1)
        success = placed & (speed < STATIC_SPEED)
        terms = {
            "reach": 0.1 * closeness(reach_distance),
            "grasp": np.where(grasped, 0.1, 0.0),
            "place": 0.5 * closeness(goal_distance) * grasped,
            "static": 0.1 * closeness(speed) * placed,
            "success": np.where(success, 0.2, 0.0),
        }
        metrics = {
            "goal_distance": goal_distance,
            "reach_distance": reach_distance,
            "grasped": grasped.astype(np.float64),
        }
        return TaskEvaluation(terms, success, metrics, looks_done=placed)

    def expert_action(self) -> torch.Tensor:
        grasped = self.grasped()
        offset = self.thing - self.tcp
        over = length(offset[:, :2]) < 0.01
        at_cube = length(offset) < 0.012
        above = self.thing + np.array([0, 0, 0.07])
        waypoint = np.where(over[:, None], self.thing, above)
        waypoint = np.where((at_cube & ~grasped)[:, None], self.tcp, waypoint)
        carry = self.sim.scenery[:, :3] - offset
        waypoint = np.where(grasped[:, None], carry, waypoint)
        move = np.clip((waypoint - self.target) / self.scale, -1, 1)
        grip = np.where(grasped | at_cube, -1.0, 1.0)
        return self._out(np.concatenate([move, grip[:, None]], axis=1))
