"""MuJoCo's window on one env, for `runtime.headless: false`."""

from __future__ import annotations

import os
import sys
import time

import mujoco
import numpy as np
from numpy.typing import NDArray

from plaudit.envs.mujoco.scene import CONTROL_HZ
from plaudit.errors import EnvError

LOOK_AT = (-0.2, 0.0, 0.25)
"""Middle of the first view, between the robot's base and the table's workspace, in metres."""


class Viewer:
    """Shows states in MuJoCo's passive viewer, no faster than they happen.

    Args:
        model: The scene.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise EnvError("runtime.headless is false, but there is no display (DISPLAY is not set). Set it to true.")
        import mujoco.viewer

        self.model = model
        self.data = mujoco.MjData(model)
        self.window = mujoco.viewer.launch_passive(model, self.data, show_left_ui=False, show_right_ui=False)
        with self.window.lock():
            # A free camera, so that the mouse can turn it, set to see what the camera "show" sees.
            self.window.cam.lookat[:] = LOOK_AT
            self.window.cam.distance, self.window.cam.azimuth, self.window.cam.elevation = 1.8, 131.0, -20.0
        self._due = time.monotonic()

    def show(self, qpos: NDArray[np.float64], scenery: NDArray[np.float64]) -> None:
        """Draws one state; a closed window is left closed."""
        if not self.window.is_running():
            return
        with self.window.lock():
            self.data.qpos[:] = qpos
            self.data.mocap_pos[0], self.data.mocap_quat[0] = scenery[:3], scenery[3:]
            mujoco.mj_forward(self.model, self.data)
        self.window.sync()
        self._due = max(self._due + 1 / CONTROL_HZ, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))

    def close(self) -> None:
        """Closes the window."""
        self.window.close()
