"""Three manipulation tasks on one robot, simulated in batches by MuJoCo."""

import os
import sys

# MuJoCo reads these when it is first imported. Without a screen, frames come from EGL; Mesa's software renderer draws
# on the thread that asks, because we already have a thread for each core.
if sys.platform.startswith("linux"):
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "0")
