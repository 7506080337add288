"""Frames of many states of one model, drawn by one GL context per thread."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plaudit.envs.mujoco.domain_randomization import Dresser, SceneAppearance, look_of
from plaudit.errors import MissingDependencyError

Pixels = NDArray[np.uint8]

COARSE = (0, 10, 4, 1)
"""Shadow map, slices, stacks, quads: what a 64-pixel frame can show, and five times faster than MuJoCo's defaults."""

FINE = (2048, 28, 16, 4)
"""The same for pictures that people look at, which also get shadows and a sky."""


def _gl_context(width: int, height: int) -> Any:
    """An off-screen context: EGL where `MUJOCO_GL` says so, even if the user imported mujoco before us."""
    if os.environ.get("MUJOCO_GL") == "egl":
        from mujoco.egl import GLContext

        return GLContext(width, height)
    return mujoco.GLContext(width, height)


class _RenderThread:
    """A thread that does what it is given, in order.

    Not an executor's: those are gone before anything can be cleaned up at the interpreter's end.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queues a call; the future holds its result."""
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        return future

    def stop(self) -> None:
        """Ends the thread after what is queued."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)


class _Painter:
    """One GL context with its scene. Lives and dies on the thread that made it (EGL refuses any other)."""

    def __init__(self, model: mujoco.MjModel, height: int, width: int, fine: bool) -> None:
        self.model = model
        self.data = mujoco.MjData(model)
        self.viewport = mujoco.MjrRect(0, 0, width, height)
        self.option = mujoco.MjvOption()
        self.gl = _gl_context(width, height)
        self.gl.make_current()
        # MuJoCo tessellates shapes and sizes the shadow map when a context is made.
        quality = model.vis.quality
        quality.shadowsize, quality.numslices, quality.numstacks, quality.numquads = FINE if fine else COARSE
        self.context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.context)
        mujoco.mjr_resizeOffscreen(width, height, self.context)
        self.scene = mujoco.MjvScene(model, maxgeom=200)
        flags = mujoco.mjtRndFlag
        for flag in (flags.mjRND_SHADOW, flags.mjRND_REFLECTION, flags.mjRND_SKYBOX):
            self.scene.flags[flag] = fine and flag != flags.mjRND_REFLECTION
        self.upside_down = np.empty((height, width, 3), np.uint8)
        self.dresser: Dresser | None = None

    def paint(
        self,
        qpos: NDArray[np.float64],
        scenery: NDArray[np.float64],
        looks: list[SceneAppearance] | None,
        cameras: list[Any],
        out: Pixels,
    ) -> None:
        """Draws states qpos (n, nq), scenery (n, 7) into out, uint8 (len(cameras), n, H, W, 3)."""
        data, model = self.data, self.model
        for i in range(len(qpos)):
            data.qpos[:] = qpos[i]
            data.mocap_pos[0], data.mocap_quat[0] = scenery[i, :3], scenery[i, 3:]
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            for c, camera in enumerate(cameras):
                mujoco.mjv_updateScene(model, data, self.option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, self.scene)
                if looks is not None:
                    self._dress(looks[i], camera.fixedcamid)
                mujoco.mjr_render(self.viewport, self.scene, self.context)
                mujoco.mjr_readPixels(self.upside_down, None, self.viewport, self.context)
                out[c, i] = self.upside_down[::-1]

    def _dress(self, look: SceneAppearance, camera: int) -> None:
        if self.dresser is None:
            self.dresser = Dresser(self.model, self.scene)
        self.dresser.dress(look, camera, self.data.cam_xmat[camera].reshape(3, 3))

    def close(self) -> None:
        self.context.free()
        self.gl.free()


class BatchRenderer:
    """Draws batches of states, each thread its share.

    Args:
        model: The scene.
        height: Of a frame, in pixels.
        width: Of a frame, in pixels.
        threads: Threads that draw.
        fine: For people: smooth shapes, shadows, a sky. Several times slower.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, threads: int, fine: bool = False) -> None:
        self.model = model
        self.size = (height, width)
        self._threads = [_RenderThread(f"render{i}") for i in range(threads)]
        try:
            self._painters = [t.submit(_Painter, model, height, width, fine).result() for t in self._threads]
        except (ImportError, AttributeError, RuntimeError, mujoco.FatalError) as error:
            raise MissingDependencyError(
                f"no OpenGL for rendering without a screen ({error}). On Debian or Ubuntu: "
                "sudo apt-get install libegl1 libgl1-mesa-dri"
            ) from error
        # For those who forget to close. Registered after mujoco's own exit function, to run before it ends EGL.
        self._end = weakref.finalize(self, _free, list(zip(self._threads, self._painters, strict=True)))
        atexit.register(self._end)

    def render(
        self,
        qpos: NDArray[np.float64],
        scenery: NDArray[np.float64],
        cameras: tuple[str, ...],
        looks: NDArray[np.float64] | None = None,
        strength: float = 0.0,
    ) -> dict[str, Pixels]:
        """Frames of some states.

        Args:
            qpos: (n, nq).
            scenery: (n, 7).
            cameras: Their names.
            looks: (n,), numbers of the states' looks, for `look_of`. `None`: as modelled.
            strength: Of the looks, 0 to 1; 0 is as modelled.

        Returns:
            Camera name to uint8 (n, H, W, 3).
        """
        views = []
        for name in cameras:
            view = mujoco.MjvCamera()
            view.type = mujoco.mjtCamera.mjCAMERA_FIXED
            view.fixedcamid = self.model.camera(name).id
            views.append(view)
        out = np.empty((len(cameras), len(qpos), *self.size, 3), np.uint8)
        worn = [look_of(int(number), strength) for number in looks] if looks is not None and strength > 0 else None
        shares = np.array_split(np.arange(len(qpos)), len(self._threads))
        jobs = []
        for thread, painter, share in zip(self._threads, self._painters, shares, strict=True):
            if len(share):
                part = slice(share[0], share[-1] + 1)
                dress = None if worn is None else worn[part]
                jobs.append(thread.submit(painter.paint, qpos[part], scenery[part], dress, views, out[:, part]))
        for job in jobs:
            job.result()
        return dict(zip(cameras, out, strict=True))

    def close(self) -> None:
        """Frees each context on its own thread; a second call does nothing."""
        self._end()
        atexit.unregister(self._end)


def _free(drawers: list[tuple[_RenderThread, _Painter]]) -> None:
    for thread, painter in drawers:
        thread.submit(painter.close).result()
        thread.stop()
