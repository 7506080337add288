"""PushCube: push the cube into a goal disc on the table."""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from plaudit.envs.mujoco import scene
from plaudit.envs.mujoco.arm_task import EVERYONE, HAND_START, ArmTask, Array, Ids, Rows, TaskEvaluation
from plaudit.envs.mujoco.config import PushCubeConfig
from plaudit.envs.mujoco.geometry import HALF, THING, axes, closeness, length, spread, yaw_quaternion

GOAL_DISTANCE = 0.2
GOAL_HEADING = np.pi / 6
BEHIND = 0.045
"""Distance of the push point behind the cube's centre, seen from the goal, in metres."""

STEEP = 'pos=".6 0 .886" xyaxes="0 1 0 -.866 0 .5" fovy="31.3"'
"""Base camera 60 degrees above the table: motion along and across it, all that matters here, is equally visible."""


def push_point(cube: Array, direction: Array) -> Array:
    """Return the points to push from, (n, 3), to move cubes (n, 3) along directions (n, 2)."""
    point = cube.copy()
    point[:, :2] -= BEHIND * direction
    return point


class PushCube(ArmTask):
    """Push the cube to a goal 20 cm away, up to 30 degrees to either side of straight ahead."""

    cfg: PushCubeConfig

    def build_model(self) -> mujoco.MjModel:
        # A target of five concentric rings; each is 0.5 mm above the next larger one, so that all are visible.
        rings = zip((1.0, 0.8, 0.6, 0.4, 0.2), (".1 .35 .75 1", ".95 .95 .95 1") * 3, strict=False)
        goal = "".join(
            f'<geom class="visual" type="cylinder" size="{self.cfg.success_threshold * radius} .0005" '
            f'pos="0 0 {0.0005 * (i + 1)}" rgba="{colour}"/>'
            for i, (radius, colour) in enumerate(rings)
        )
        return scene.build("push_cube", THING, goal, STEEP)

    def place(self, ids: Ids, u: Array) -> None:
        # The cube lies on the table at any yaw.
        qpos = self.sim.qpos
        qpos[ids, 9] = spread(u[:, 0], -0.12, 0.04)
        qpos[ids, 10] = spread(u[:, 1], -0.1, 0.1)
        qpos[ids, 11] = HALF
        qpos[ids, 12:16] = yaw_quaternion(spread(u[:, 2], -np.pi, np.pi))

        # The goal is always at the same distance from the cube, in a random direction.
        heading = spread(u[:, 3], -GOAL_HEADING, GOAL_HEADING)
        self.sim.scenery[ids, 0] = qpos[ids, 9] + GOAL_DISTANCE * np.cos(heading)
        self.sim.scenery[ids, 1] = qpos[ids, 10] + GOAL_DISTANCE * np.sin(heading)

        # The gripper starts closed.
        hand = HAND_START + np.array([-0.1, 0, 0]) + spread(u[:, 4:7], -0.02, 0.02)
        self.place_robot(ids, hand, 0.0)

    def _to_goal(self, rows: Rows = EVERYONE) -> tuple[Array, Array]:
        """Return unit vectors from cube to goal on the table (n, 2), and distances (n,)."""
        vector = self.sim.scenery[rows, :2] - self.thing[rows, :2]
        distance = length(vector)
        return vector / np.maximum(distance, 1e-6)[:, None], distance

    def task_state(self, rows: Rows) -> Array:
        cube = self.thing[rows]
        goal = self.sim.scenery[rows, :3]
        tcp = self.tcp[rows]
        direction, _ = self._to_goal(rows)

        return np.concatenate(
            [
                5 * cube,
                axes(self.sim.qpos[rows, 12:16]),
                self.sim.qvel[rows, 9:12],
                5 * goal[:, :2],
                5 * (cube - tcp),
                5 * (push_point(cube, direction) - tcp),
                5 * (goal - cube)[:, :2],
            ],
            axis=1,
        )

    def evaluate_task(self) -> TaskEvaluation:
        direction, distance = self._to_goal()
        reach_distance = length(push_point(self.thing, direction) - self.tcp)
        height = self.thing[:, 2]
        inside = distance < self.cfg.success_threshold
        success = inside & (height < HALF + 0.005)

        # After success the reach term is at its maximum, so that the robot need not follow the cube.
        terms: dict[str, Array] = {
            "reach": 0.2 * np.where(success, 1.0, closeness(reach_distance)),
            "push": 0.5 * closeness(distance),
            "success": np.where(success, 0.3, 0.0),
        }
        metrics = {"goal_distance": distance, "reach_distance": reach_distance}

        # A cube that the gripper tilts by a few millimetres is no success, but a small image does not show the tilt.
        return TaskEvaluation(terms, success, metrics, looks_done=inside & (height < 2 * HALF))

    def expert_action(self) -> torch.Tensor:
        # The gripper's position relative to the cube, along and across the direction of the push.
        direction, distance = self._to_goal()
        side = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
        offset = (self.tcp - self.thing)[:, :2]
        along = (offset * direction).sum(1)
        across = (offset * side).sum(1)

        # Approach: rise, move over a point 2 cm behind the push point, go down.
        start = push_point(self.thing, direction)
        start[:, :2] -= 0.02 * direction
        over_start = length(self.tcp[:, :2] - start[:, :2]) < 0.015
        clear = self.tcp[:, 2] > 0.09
        waypoint = np.where((over_start | clear)[:, None], start, self.tcp)
        waypoint[:, 2] = np.where(over_start, 0.025, 0.12)

        # Push: from behind the cube, go ahead along the direction and correct the sideways error.
        behind = (along < -HALF) & (np.abs(across) < 0.015) & (self.tcp[:, 2] < 0.05)
        push = self.tcp.copy()
        push[:, :2] += 0.03 * direction - across[:, None] * side
        push[:, 2] = 0.025
        waypoint = np.where(behind[:, None], push, waypoint)

        # Stop well inside the goal.
        waypoint = np.where((distance < 0.5 * self.cfg.success_threshold)[:, None], self.tcp, waypoint)
        move = np.clip((waypoint - self.target) / self.scale, -1, 1)
        return self._out(np.concatenate([move, -np.ones((self.num_envs, 1))], axis=1))
