"""PegInsertion: insert the peg that the gripper holds into a hole with a few millimetres of clearance."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Headline
from plaudit.envs.mujoco import panda, scene
from plaudit.envs.mujoco.arm_task import EVERYONE, ArmTask, Array, Ids, Rows, TaskEvaluation
from plaudit.envs.mujoco.config import PegInsertionConfig
from plaudit.envs.mujoco.geometry import axes, closeness, length, spread

PEG_HALF_WIDTH = 0.012
PEG_HALF_LENGTH = 0.05
GRIP = 0.03
"""The peg's centre hangs this far below the gripper's centre point."""

BLOCK_HALF = 0.05
BLOCK_HEIGHT = 0.06
START = np.array([-0.05, 0.0, BLOCK_HEIGHT + GRIP + PEG_HALF_LENGTH + 0.05])


class PegInsertion(ArmTask):
    """The gripper stays closed on the peg, which friction holds: a hard collision tilts it or pushes it up."""

    cfg: PegInsertionConfig
    headline: Headline = "success_at_end"
    has_gripper_action = False

    def __init__(self, cfg: PegInsertionConfig, device: torch.device | str = "cpu", threads: int = 0) -> None:
        self.held_for = np.zeros(cfg.num_envs, np.int64)
        super().__init__(cfg, device, threads)

    def build_model(self) -> mujoco.MjModel:
        peg = (
            f'<geom type="box" size="{PEG_HALF_WIDTH} {PEG_HALF_WIDTH} {PEG_HALF_LENGTH}" mass=".155" '
            'rgba=".9 .55 .1 1" contype="1" conaffinity="3" friction=".3"/>'
        )
        hole = PEG_HALF_WIDTH + self.cfg.clearance
        wall, mid, up = (BLOCK_HALF - hole) / 2, (BLOCK_HALF + hole) / 2, BLOCK_HEIGHT / 2
        boxes = [
            (mid, 0, wall, BLOCK_HALF),
            (-mid, 0, wall, BLOCK_HALF),
            (0, mid, hole, wall),
            (0, -mid, hole, wall),
        ]
        block = "".join(
            f'<geom type="box" pos="{x} {y} {up}" size="{sx} {sy} {up}" rgba=".2 .35 .6 1" '
            'contype="1" conaffinity="3" friction=".3"/>'
            for x, y, sx, sy in boxes
        )
        floor = f'<geom class="visual" type="box" pos="0 0 .001" size="{hole} {hole} .001" rgba=".05 .05 .05 1"/>'
        return scene.build("peg_insertion", peg, block + floor, damping=5e-4, cone="pyramidal")

    def place(self, ids: Ids, u: Array) -> None:
        self.sim.scenery[ids, 0] = spread(u[:, 0], -0.1, 0.05)
        self.sim.scenery[ids, 1] = spread(u[:, 1], -0.1, 0.1)
        hand = START + spread(u[:, 2:5], -0.05, 0.05) * np.array([1, 1, 0.4])
        self.place_robot(ids, hand, PEG_HALF_WIDTH)
        self.sim.ctrl[ids, 7:9] = panda.FINGER_CLOSED
        self.sim.qpos[ids, 9:12] = hand - np.array([0, 0, GRIP])
        self.sim.qpos[ids, 12] = 1.0
        self.held_for[ids] = 0

    def _tip_to_hole(self, rows: Rows = EVERYONE) -> tuple[Array, Array]:
        """Vectors from the peg's tip to the middle of the hole's mouth (n, 3), and how deep it is inside (n,)."""
        tip = self.thing[rows] - PEG_HALF_LENGTH * axes(self.sim.qpos[rows, 12:16])[:, 3:]
        vector = self.sim.scenery[rows, :3] + np.array([0, 0, BLOCK_HEIGHT]) - tip
        inside = (np.abs(vector[:, :2]) < PEG_HALF_WIDTH).all(1)
        return vector, np.where(inside, np.maximum(vector[:, 2], 0.0), 0.0)

    def task_state(self, rows: Rows) -> Array:
        vector, depth = self._tip_to_hole(rows)
        return np.concatenate(
            [
                5 * self.sim.scenery[rows, :2],
                10 * vector,
                10 * np.tanh(50 * vector[:, :2]),
                20 * depth[:, None],
                axes(self.sim.qpos[rows, 12:16]),
                10 * (self.thing[rows] - self.tcp[rows]),
                self.held_for[rows, None] / self.cfg.success_hold_steps,
            ],
            axis=1,
        )

    def evaluate_task(self) -> TaskEvaluation:
        vector, depth = self._tip_to_hole()
        deep = depth > self.cfg.success_depth
        self.held_for = np.where(deep, self.held_for + 1, 0)
        success = self.held_for >= self.cfg.success_hold_steps
        lateral = length(vector[:, :2])
        above = np.abs(vector[:, 2])
        aligned = closeness(lateral, 40.0)
        terms: dict[str, Array] = {
            "align": 0.2 * closeness(lateral, 10.0) + 0.1 * aligned,
            "approach": 0.2 * aligned * closeness(np.where(depth > 0, 0.0, above), 20.0),
            "insert": 0.3 * np.minimum(depth / self.cfg.success_depth, 1.0),
            "success": np.where(success, 0.2, 0.0),
        }
        return TaskEvaluation(terms, success, {"lateral_error": lateral, "depth": depth}, looks_done=deep)

    def expert_action(self) -> torch.Tensor:
        vector, depth = self._tip_to_hole()
        lateral = length(vector[:, :2])
        inside = depth > 0
        # The better the aim, the faster it goes down; far from the hole it stays 2 cm above the block.
        aim = np.where(inside, 1.0, np.clip(1.5 - lateral / self.cfg.clearance, 0.0, 1.0))
        over = lateral < 2 * self.cfg.clearance
        down = np.where(inside | over, vector[:, 2] - 1.4 * self.cfg.success_depth, vector[:, 2] + 0.02)
        move = vector.copy()
        move[:, 2] = np.where(inside | over, np.clip(down, -0.005 * aim, 0.005), np.clip(down, -0.015, 0.015))
        return self._out(np.clip((move - (self.target - self.tcp)) / self.scale, -1, 1))

    def _saved(self) -> dict[str, NDArray[np.float64]]:
        return {**super()._saved(), "held_for": self.held_for}
