"""Many copies of one MuJoCo model stepped together on a thread pool."""

from __future__ import annotations

import logging

import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray

from plaudit.errors import EnvError

Array = NDArray[np.float64]

logger = logging.getLogger("plaudit")


def _note_warning(message: str) -> None:
    """Takes MuJoCo's warnings, which would otherwise go to a file in whatever folder the user is in."""
    logger.debug("MuJoCo: %s", message)


_CONTROL = int(
    mujoco.mjtState.mjSTATE_CTRL.value
    | mujoco.mjtState.mjSTATE_MOCAP_POS.value
    | mujoco.mjtState.mjSTATE_MOCAP_QUAT.value
)


class BatchSim:
    """States of `num_envs` copies of a model with one mocap body, advanced by `mujoco.rollout`.

    Every copy is stepped from its own full state with a cold solver, so results depend neither on the number of threads
    nor on which envs share a batch.

    Args:
        model: The compiled scene.
        num_envs: How many copies.
        substeps: Physics steps in one control step.
        threads: Threads that step them.

    Attributes:
        qpos: float64 (num_envs, nq), a view that may be written.
        qvel: float64 (num_envs, nv), a view that may be written.
        ctrl: float64 (num_envs, nu), actuator targets reached at the end of the last control step.
        scenery: float64 (num_envs, 7), position and quaternion of the mocap body.
        jams: How often an env's physics had to be held back.
    """

    def __init__(self, model: mujoco.MjModel, num_envs: int, substeps: int, threads: int) -> None:
        mujoco.set_mju_user_warning(_note_warning)
        self.model = model
        self.substeps = substeps
        self.jams = 0
        self._pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(max(1, threads))]
        self._models = [model] * num_envs
        self.state = np.zeros((num_envs, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)))
        self.qpos = self.state[:, 1 : 1 + model.nq]
        self.qvel = self.state[:, 1 + model.nq : 1 + model.nq + model.nv]
        self.ctrl = np.zeros((num_envs, model.nu))
        self.scenery = np.zeros((num_envs, 7))
        self.scenery[:, 3] = 1.0
        self._control = np.zeros((num_envs, substeps, model.nu + 7))
        self._trace = np.zeros((num_envs, substeps, self.state.shape[1]))
        self._sensors = np.zeros((num_envs, substeps, model.nsensordata))
        self._ramp = np.linspace(0, 1, substeps + 1)[1:, None]

    def step(self, target: Array) -> None:
        """Moves the actuator targets to `target`, float64 (num_envs, nu), in a straight line over one control step."""
        if self._pool.rollout_ is None:
            raise EnvError("the env was closed; build a new one.")
        nu = self.model.nu
        self._control[:, :, :nu] = self.ctrl[:, None] + self._ramp * (target - self.ctrl)[:, None]
        self._control[:, :, nu:] = self.scenery[:, None]
        self._pool.rollout(
            self._models,
            self._data,
            nstep=self.substeps,
            control_spec=_CONTROL,
            initial_state=self.state,
            control=self._control,
            state=self._trace,
            sensordata=self._sensors,
            skip_checks=True,
        )
        self._accept(self._trace[:, -1])
        self.ctrl[:] = target

    def _accept(self, after: Array) -> None:
        """Takes over the new states, but for those that MuJoCo gave up on.

        Where accelerations explode (a thing jammed between stiff ones), MuJoCo warns and starts the model over, its
        clock too. Such an env stays where it was, at rest, which is what a jam looks like.
        """
        elapsed = after[:, 0] - self.state[:, 0]
        fine = np.abs(elapsed - self.substeps * self.model.opt.timestep) < 1e-6
        if fine.all():
            self.state[:] = after
            return
        self.jams += int((~fine).sum())
        self.state[fine] = after[fine]
        self.state[~fine, 0] += self.substeps * self.model.opt.timestep
        self.qvel[~fine] = 0.0

    def close(self) -> None:
        """Ends the thread pool."""
        self._pool.close()
