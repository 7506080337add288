"""Three manipulation tasks on one robot, simulated in batches by MuJoCo."""

import ctypes
import os
import sys


def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


# MuJoCo reads these when it is first imported. Without a screen, frames come from EGL; Mesa's software renderer draws
# on the thread that asks, because we already have a thread for each core. Where there is no EGL, `import mujoco` would
# fail for a policy that needs no frames too.
if sys.platform.startswith("linux"):
    os.environ.setdefault("MUJOCO_GL", "egl" if _has_egl() else "disable")
    os.environ.setdefault("LP_NUM_THREADS", "0")
