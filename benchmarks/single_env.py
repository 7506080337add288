"""PushCube as a careful user would write it for Gymnasium: one env, one `MjData`, plain numbers. The peers step this.

Same model, control, observation, reward, success and episodes as the batched env (a test holds the two together), but
for the solver's warm start, which a single env keeps from step to step. Scalars instead of numpy where numpy's
overhead for one env would make the peer look slower than it has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import acos, atan2, cos, hypot, pi, sin, sqrt, tanh
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from plaudit.envs.episode_rng import episode_uniforms
from plaudit.envs.mujoco import panda
from plaudit.envs.mujoco.arm_task import HAND_START, MAX_LEAD, WORKSPACE
from plaudit.envs.mujoco.config import PushCubeConfig
from plaudit.envs.mujoco.geometry import HALF
from plaudit.envs.mujoco.push_cube import BEHIND, GOAL_DISTANCE, GOAL_HEADING, PushCube
from plaudit.envs.mujoco.scene import CONTROL_HZ, SUBSTEPS

Array = NDArray[np.float64]

UPPER_ARM, FOREARM = hypot(panda.D3, panda.A4), hypot(panda.D5, panda.A4)
SHOULDER_OFFSET = atan2(panda.A4, panda.D3)
ELBOW_OFFSET = atan2(panda.D3, panda.A4) + atan2(panda.D5, panda.A4)
LIMITS = list(zip(panda.LOWER.tolist(), panda.UPPER.tolist(), strict=True))
STEP_LIMITS = (panda.MAX_SPEED / CONTROL_HZ).tolist()
BOX = list(zip(*WORKSPACE.tolist(), strict=True))
RAMP = np.linspace(0, 1, SUBSTEPS + 1)[1:, None]
START = (HAND_START + np.array([-0.1, 0, 0])).tolist()


def inverse(x: float, y: float, z: float) -> list[float]:
    """Joint angles for one gripper position, as `panda.inverse`."""
    x -= panda.BASE_X
    out, up = hypot(x, y) - panda.A7, z + panda.HAND_TO_TCP + panda.FLANGE - panda.D1
    far = min(max(hypot(out, up), 0.2), UPPER_ARM + FOREARM - 1e-4)
    elbow = acos(min(max((UPPER_ARM**2 + FOREARM**2 - far * far) / (2 * UPPER_ARM * FOREARM), -1), 1))
    shoulder = acos(min(max((UPPER_ARM**2 + far * far - FOREARM**2) / (2 * UPPER_ARM * far), -1), 1))
    turn = atan2(y, x)
    lift = atan2(out, up) - shoulder - SHOULDER_OFFSET
    bend = ELBOW_OFFSET + elbow - 2 * pi
    angles = (turn, lift, 0.0, bend, 0.0, lift - bend, turn + pi / 4)
    return [min(max(angle, low), high) for angle, (low, high) in zip(angles, LIMITS, strict=True)]


class SinglePushCube(gymnasium.Env[Any, Any]):
    """One PushCube.

    Args:
        index: Which env of a batch this is: it draws the same episodes as that one.
        seed: Seed of the run.
    """

    def __init__(self, index: int = 0, seed: int = 0) -> None:
        self.cfg = PushCubeConfig(num_envs=1)
        batch = PushCube(self.cfg, threads=1)
        self.model = batch.sim.model
        self.observation_space = batch.observation_space["state"]
        self.action_space = batch.action_space
        self.scale = batch.scale
        batch.close()
        self.data = mujoco.MjData(self.model)
        # Views of the simulator's memory, taken once: looking them up costs more than using them.
        self.qpos, self.qvel, self.ctrl = self.data.qpos, self.data.qvel, self.data.ctrl
        self.tcp = self.data.site("tcp").xpos
        self.index, self.run_seed, self.episode, self.clock = np.array([index]), seed, -1, 0
        self.target = [0.0, 0.0, 0.0]
        self.goal = (0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self.episode += 1
        self.clock = 0
        u = episode_uniforms(self.run_seed, self.index, np.array([self.episode]), PushCube.randoms)[0].tolist()
        mujoco.mj_resetData(self.model, self.data)
        x, y, yaw = -0.12 + 0.16 * u[0], -0.1 + 0.2 * u[1], pi * (2 * u[2] - 1)
        heading = GOAL_HEADING * (2 * u[3] - 1)
        self.goal = (x + GOAL_DISTANCE * cos(heading), y + GOAL_DISTANCE * sin(heading))
        self.data.mocap_pos[0] = (*self.goal, 0.0)
        hand = [centre + 0.02 * (2 * random - 1) for centre, random in zip(START, u[4:7], strict=True)]
        self.qpos[:] = (*inverse(*hand), 0.0, 0.0, x, y, HALF, cos(yaw / 2), 0.0, 0.0, sin(yaw / 2))
        self.ctrl[:] = self.qpos[:9]
        mujoco.mj_kinematics(self.model, self.data)
        self.target = self.tcp.tolist()
        return self._look()[0], {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        controls = self._controls([min(max(part, -1.0), 1.0) for part in action.tolist()])
        model, data, ctrl = self.model, self.data, self.ctrl
        for row in controls:
            ctrl[:] = row
            mujoco.mj_step(model, data)
        mujoco.mj_kinematics(model, data)
        self.clock += 1
        obs, reward, success = self._look()
        return obs, reward, False, self.clock >= self.cfg.episode_length, {"success": success}

    def _controls(self, action: list[float]) -> Array:
        """Actuator targets of each substep, (substeps, 9)."""
        reach = MAX_LEAD * self.scale
        target = []
        for part, at, tcp, (low, high) in zip(action[:3], self.target, self.tcp.tolist(), BOX, strict=True):
            lead = min(max(at + part * self.scale - tcp, -reach), reach)
            target.append(min(max(tcp + lead, low), high))
        self.target = target
        change = [new - old for new, old in zip(inverse(*target), self.ctrl.tolist()[:7], strict=True)]
        slow = max(1.0, *(abs(part) / limit for part, limit in zip(change, STEP_LIMITS, strict=True)))
        finger = panda.FINGER_CLOSED + (panda.FINGER_OPEN - panda.FINGER_CLOSED) * 0.5 * (action[3] + 1)
        now = self.ctrl.copy()
        final = now.copy()
        final[:7] += np.array(change) / slow
        final[7:] = finger
        controls: Array = now + RAMP * (final - now)
        return controls

    def _look(self) -> tuple[NDArray[np.float32], float, bool]:
        """Observation, dense reward and success of the present state."""
        qpos, qvel = self.qpos.tolist(), self.qvel.tolist()
        tx, ty, tz = self.tcp.tolist()
        cx, cy, cz, w, x, y, z = qpos[9:]
        gx, gy = self.goal[0] - cx, self.goal[1] - cy
        distance = hypot(gx, gy)
        away = BEHIND / max(distance, 1e-6)
        px, py, pz = cx - away * gx - tx, cy - away * gy - ty, cz - tz
        success = distance < self.cfg.success_threshold and cz < HALF + 0.005
        reach = 1.0 if success else 1.0 - tanh(5 * sqrt(px * px + py * py + pz * pz))
        reward = 0.2 * reach + 0.5 * (1.0 - tanh(5 * distance)) + 0.3 * success
        ax, ay, az = self.target
        state = [
            *qpos[:7],
            *(0.3 * speed for speed in qvel[:7]),
            20 * (qpos[7] + qpos[8]),
            *(5 * tx, 5 * ty, 5 * tz),
            *(10 * (ax - tx), 10 * (ay - ty), 10 * (az - tz)),
            *(5 * cx, 5 * cy, 5 * cz),
            *(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
            *(2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
            *qvel[9:12],
            *(5 * self.goal[0], 5 * self.goal[1]),
            *(5 * (cx - tx), 5 * (cy - ty), 5 * (cz - tz)),
            *(5 * px, 5 * py, 5 * pz),
            *(5 * gx, 5 * gy),
        ]
        return np.array(state, np.float32), reward, success


def makers(count: int, seed: int = 0) -> list[Callable[[], SinglePushCube]]:
    """Constructors of the first `count` envs of a batch, for vector envs of one process each."""
    return [partial(SinglePushCube, index, seed) for index in range(count)]
