"""Batch renderer: frames of many states of one model, with one GL context per thread."""

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
"""Shadow map size, slices, stacks, quads: enough for 64-pixel frames, five times faster than MuJoCo's defaults."""

FINE = (2048, 28, 16, 4)
"""The same for frames that people look at, which also have shadows and a sky."""


def _gl_context(width: int, height: int) -> Any:
    """Create an off-screen GL context.

    It is an EGL context if `MUJOCO_GL` is "egl", even if the user imported mujoco before this package.
    """
    if os.environ.get("MUJOCO_GL") == "egl":
        from mujoco.egl import GLContext

        return GLContext(width, height)
    return mujoco.GLContext(width, height)


class _RenderThread:
    """A thread that runs submitted calls in order.

    An executor would not do: its threads end before exit handlers can free the GL contexts at interpreter shutdown.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queue a call and return the future of its result."""
        future: Future[Any] = Future()
        self._jobs.put((future, function, args))
        return future

    def stop(self) -> None:
        """End the thread after the queued calls."""
        self._jobs.put(None)

    def _run(self) -> None:
        """Run queued calls until `stop`; exceptions go to the call's future."""
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)


class _ThreadRenderer:
    """One GL context with its scene.

    It must be created, used and closed on the same thread, because EGL refuses any other.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, fine: bool) -> None:
        self.model = model
        self.data = mujoco.MjData(model)
        self.viewport = mujoco.MjrRect(0, 0, width, height)
        self.option = mujoco.MjvOption()

        self.gl = _gl_context(width, height)
        self.gl.make_current()

        # MuJoCo tessellates shapes and sizes the shadow map when a context is created, so the quality is set first.
        quality = model.vis.quality
        quality.shadowsize, quality.numslices, quality.numstacks, quality.numquads = FINE if fine else COARSE
        self.context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.context)
        mujoco.mjr_resizeOffscreen(width, height, self.context)

        # Shadows and sky for fine frames only, reflections for none.
        self.scene = mujoco.MjvScene(model, maxgeom=200)
        flags = mujoco.mjtRndFlag
        for flag in (flags.mjRND_SHADOW, flags.mjRND_REFLECTION, flags.mjRND_SKYBOX):
            self.scene.flags[flag] = fine and flag != flags.mjRND_REFLECTION

        # OpenGL's first row is the bottom one, so frames are flipped when copied out of this buffer.
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
        """Render states into `out`.

        Args:
            qpos: (n, nq).
            scenery: (n, 7), position and quaternion of the mocap body.
            looks: Appearance of each state; `None` renders the scene as modelled.
            cameras: `MjvCamera` objects.
            out: Receives the frames, uint8 (len(cameras), n, H, W, 3).
        """
        model = self.model
        data = self.data
        for i in range(len(qpos)):
            data.qpos[:] = qpos[i]
            data.mocap_pos[0] = scenery[i, :3]
            data.mocap_quat[0] = scenery[i, 3:]

            # Rendering needs only poses, cameras and lights, not the whole of `mj_forward`.
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
        """Apply an appearance to the scene, which `mjv_updateScene` has just filled in."""
        if self.dresser is None:
            self.dresser = Dresser(self.model, self.scene)
        self.dresser.dress(look, camera, self.data.cam_xmat[camera].reshape(3, 3))

    def close(self) -> None:
        """Free the contexts."""
        self.context.free()
        self.gl.free()


class BatchRenderer:
    """Render batches of states, split evenly over threads.

    Args:
        model: The compiled scene.
        height: Height of a frame, in pixels.
        width: Width of a frame, in pixels.
        threads: Number of render threads.
        fine: Render for people: smooth shapes, shadows, a sky. Several times slower.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, threads: int, fine: bool = False) -> None:
        self.model = model
        self.size = (height, width)

        # Each renderer is created on its own thread, because its GL context is bound to that thread.
        self._threads = [_RenderThread(f"render{i}") for i in range(threads)]
        try:
            self._thread_renderers = [
                t.submit(_ThreadRenderer, model, height, width, fine).result() for t in self._threads
            ]
        except (ImportError, AttributeError, RuntimeError, mujoco.FatalError) as error:
            raise MissingDependencyError(
                f"no OpenGL for rendering without a screen ({error}). On Debian or Ubuntu: "
                "sudo apt-get install libegl1 libgl1-mesa-dri"
            ) from error

        # Free the contexts even if `close` is never called. Exit functions run in reverse order: this one is registered
        # after mujoco's own, so it runs before mujoco shuts EGL down.
        self._end = weakref.finalize(self, _free, list(zip(self._threads, self._thread_renderers, strict=True)))
        atexit.register(self._end)

    def render(
        self,
        qpos: NDArray[np.float64],
        scenery: NDArray[np.float64],
        cameras: tuple[str, ...],
        looks: NDArray[np.float64] | None = None,
        strength: float = 0.0,
    ) -> dict[str, Pixels]:
        """Render some states from some cameras.

        Args:
            qpos: (n, nq).
            scenery: (n, 7), position and quaternion of the mocap body.
            cameras: Camera names.
            looks: (n,), the states' appearance seeds, for `look_of`; `None` renders the scene as modelled.
            strength: Strength of the domain randomization, 0 to 1; 0 renders the scene as modelled.

        Returns:
            Camera name to frames, uint8 (n, H, W, 3).
        """
        views = []
        for name in cameras:
            view = mujoco.MjvCamera()
            view.type = mujoco.mjtCamera.mjCAMERA_FIXED
            view.fixedcamid = self.model.camera(name).id
            views.append(view)

        out = np.empty((len(cameras), len(qpos), *self.size, 3), np.uint8)
        appearances = None
        if looks is not None and strength > 0:
            appearances = [look_of(int(number), strength) for number in looks]

        # One contiguous slice of the states per thread; with fewer states than threads, some slices are empty.
        shares = np.array_split(np.arange(len(qpos)), len(self._threads))
        jobs = []
        for thread, renderer, share in zip(self._threads, self._thread_renderers, shares, strict=True):
            if len(share):
                part = slice(share[0], share[-1] + 1)
                part_looks = None if appearances is None else appearances[part]
                jobs.append(thread.submit(renderer.paint, qpos[part], scenery[part], part_looks, views, out[:, part]))

        # `result` also raises a thread's exception here.
        for job in jobs:
            job.result()
        return dict(zip(cameras, out, strict=True))

    def close(self) -> None:
        """Free each context on its own thread; a second call does nothing."""
        self._end()
        atexit.unregister(self._end)


def _free(workers: list[tuple[_RenderThread, _ThreadRenderer]]) -> None:
    """Close each renderer on its own thread, then end the thread."""
    for thread, renderer in workers:
        thread.submit(renderer.close).result()
        thread.stop()
