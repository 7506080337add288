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
"""Distance from the goal's centre to the ends of its arms, in metres."""

STATIC_SPEED = 0.2
"""The robot is static if no joint turns faster than this, in rad/s (ManiSkill's value)."""


def _goal_marker() -> str:
    """Return the goal's MJCF: a small ball at the centre and at the end of each of six arms.

    The arms are longer than the cube and the pads, so that a camera sees the goal's position even if the cube hides its
    centre. With a single ball, a cube at the goal would look just like one that happens to be in front of it.
    """
    marker = '<geom class="visual" type="sphere" size=".012" rgba=".1 .75 .25 1"/>'
    for axis, colour in enumerate((".1 .4 .9 1", ".1 .75 .25 1", ".95 .8 .1 1")):
        # One thin box makes both arms along an axis.
        reach = np.eye(3)[axis] * MARKER_REACH
        half_size = np.full(3, 0.002) + reach
        size = f"{half_size[0]} {half_size[1]} {half_size[2]}"
        marker += f'<geom class="visual" type="box" size="{size}" rgba="{colour}"/>'

        for end in (-reach, reach):
            position = f"{end[0]} {end[1]} {end[2]}"
            marker += f'<geom class="visual" type="sphere" size=".009" pos="{position}" rgba="{colour}"/>'
    return marker


class PickCube(ArmTask):
    """Hold the cube at a goal in the air.

    Success is defined as in ManiSkill's PickCube-v1: cube at the goal, robot static.
    """

    cfg: PickCubeConfig
    headline: Headline = "success_at_end"

    def build_model(self) -> mujoco.MjModel:
        return scene.build("pick_cube", THING, _goal_marker())

    def place(self, ids: Ids, u: Array) -> None:
        # The cube lies on the table at any yaw.
        qpos = self.sim.qpos
        qpos[ids, 9] = spread(u[:, 0], -0.1, 0.1)
        qpos[ids, 10] = spread(u[:, 1], -0.1, 0.1)
        qpos[ids, 11] = HALF
        qpos[ids, 12:16] = yaw_quaternion(spread(u[:, 2], -np.pi, np.pi))

        # The goal is 5 to 30 cm above the height of the cube's centre, independent of the cube's position.
        self.sim.scenery[ids, 0] = spread(u[:, 3], -0.1, 0.1)
        self.sim.scenery[ids, 1] = spread(u[:, 4], -0.1, 0.1)
        self.sim.scenery[ids, 2] = HALF + spread(u[:, 5], 0.05, 0.3)

        # The gripper starts open, near a fixed position.
        hand = HAND_START + np.concatenate([spread(u[:, 6:8], -0.02, 0.02), np.zeros((len(ids), 1))], axis=1)
        self.place_robot(ids, hand, 0.04)

    def grasped(self, rows: Rows = EVERYONE) -> NDArray[np.bool_]:
        """Return True for each env whose cube is between the pads and stops them closing, (n,)."""
        # The cube's centre in the hand's axes.
        offset = np.einsum("nij,ni->nj", self.hand[rows], self.thing[rows] - self.tcp[rows])
        between = (np.abs(offset) < np.array([0.02, 0.012, 0.025])).all(1)

        # The fingers are narrow, but wider than their target: something blocks them.
        finger = 0.5 * (self.sim.qpos[rows, 7] + self.sim.qpos[rows, 8])
        squeezed = (finger < 1.5 * HALF) & (self.sim.ctrl[rows, 7] < finger - 0.004)
        result: NDArray[np.bool_] = between & squeezed
        return result

    def task_state(self, rows: Rows) -> Array:
        cube = self.thing[rows]
        goal = self.sim.scenery[rows, :3]

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

        # An image shows whether the cube is at the goal, but not whether the robot is static: hence `looks_done`.
        placed = goal_distance < self.cfg.success_threshold
        speed = np.abs(self.sim.qvel[:, :7]).max(1)
        success = placed & (speed < STATIC_SPEED)

        # The weights add up to 1.
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

        # Approach: go 7 cm above the cube, down to it, and wait there until the grasp is firm.
        over = length(offset[:, :2]) < 0.01
        at_cube = length(offset) < 0.012
        above = self.thing + np.array([0, 0, 0.07])
        waypoint = np.where(over[:, None], self.thing, above)
        waypoint = np.where((at_cube & ~grasped)[:, None], self.tcp, waypoint)

        # Carry: bring the cube, not the gripper, to the goal.
        carry = self.sim.scenery[:, :3] - offset
        waypoint = np.where(grasped[:, None], carry, waypoint)

        move = np.clip((waypoint - self.target) / self.scale, -1, 1)
        grip = np.where(grasped | at_cube, -1.0, 1.0)
        return self._out(np.concatenate([move, grip[:, None]], axis=1))
