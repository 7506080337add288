"""Frames/s at 64x64 of our `BatchRenderer`, against a bare `mujoco.Renderer` loop: same scene, states, quality, flags.

The frames of both sides are compared pixel by pixel first: a renderer that draws less is not faster.
"""

from __future__ import annotations

import os

os.environ["MUJOCO_GL"] = "egl"  # MuJoCo reads it when it is imported, Mesa reads the other one.
os.environ["LP_NUM_THREADS"] = "0"

import statistics
import time
from collections.abc import Callable

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.envs.mujoco.config import PushCubeConfig
from plaudit.envs.mujoco.push_cube import PushCube
from plaudit.envs.mujoco.renderer import COARSE, BatchRenderer
from plaudit.utils.threads import claim_threads, cores

SIZE = 64
CAMERAS = ("base_camera", "wrist_camera")
Array = NDArray[np.float64]


def states(count: int) -> tuple[mujoco.MjModel, Array, Array]:
    """The scene, and `count` states of it under way: qpos (count, nq) and scenery (count, 7)."""
    env = PushCube(PushCubeConfig(num_envs=count))
    env.reset(0)
    for _ in range(10):
        env.step(2 * torch.rand(count, 4) - 1)
    found = env.sim.model, env.sim.qpos.copy(), env.sim.scenery.copy()
    env.close()
    return found


class BareRenderer:
    """MuJoCo's own renderer in a plain loop, with our quality settings and flags."""

    def __init__(self, model: mujoco.MjModel) -> None:
        quality = model.vis.quality
        quality.shadowsize, quality.numslices, quality.numstacks, quality.numquads = COARSE
        self.model, self.data = model, mujoco.MjData(model)
        self.renderer = mujoco.Renderer(model, SIZE, SIZE, max_geom=200)
        flags = mujoco.mjtRndFlag
        for flag in (flags.mjRND_SHADOW, flags.mjRND_REFLECTION, flags.mjRND_SKYBOX):
            self.renderer.scene.flags[flag] = False

    def render(self, qpos: Array, scenery: Array) -> NDArray[np.uint8]:
        """uint8 (cameras, n, H, W, 3)."""
        model, data, renderer = self.model, self.data, self.renderer
        out = np.empty((len(CAMERAS), len(qpos), SIZE, SIZE, 3), np.uint8)
        for i in range(len(qpos)):
            data.qpos[:] = qpos[i]
            data.mocap_pos[0], data.mocap_quat[0] = scenery[i, :3], scenery[i, 3:]
            # Only what a picture needs; mj_forward, which many loops call here, is several times dearer.
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            for c, camera in enumerate(CAMERAS):
                renderer.update_scene(data, camera)
                renderer.render(out=out[c, i])
        return out

    def close(self) -> None:
        """Frees the GL context."""
        self.renderer.close()


def frames_per_second(render: Callable[[], object], count: int) -> Callable[[], float]:
    """A run that draws `count` states from every camera, for `take_turns`."""

    def run() -> float:
        started = time.perf_counter()
        render()
        return count * len(CAMERAS) / (time.perf_counter() - started)

    return run


def benchmark(quick: bool) -> list[Row]:
    """Measures one thread, all cores, and the bare loop in turns."""
    claim_threads()
    count, rounds = (256, 3) if quick else (1024, 9)
    model, qpos, scenery = states(count)
    bare = BareRenderer(model)
    one = BatchRenderer(model, SIZE, SIZE, threads=1)
    every = BatchRenderer(model, SIZE, SIZE, threads=cores())
    theirs, ours = bare.render(qpos, scenery), one.render(qpos, scenery, CAMERAS)
    same = all(np.array_equal(ours[name], frames) for name, frames in zip(CAMERAS, theirs, strict=True))
    say(f"frames/s at {SIZE}x{SIZE}; frames of both sides are {'the same' if same else 'DIFFERENT'}")
    runs = {
        "one thread": frames_per_second(lambda: one.render(qpos, scenery, CAMERAS), count),
        "mujoco.Renderer": frames_per_second(lambda: bare.render(qpos, scenery), count),
        f"{cores()} threads": frames_per_second(lambda: every.render(qpos, scenery, CAMERAS), count),
    }
    seen = take_turns(runs, rounds)
    for renderer in (bare, one, every):
        renderer.close()
    single, limit, all_cores = seen.values()
    rows = []
    for threads, values, target in ((1, single, 0.85), (cores(), all_cores, None)):
        value, peer = statistics.median(values), statistics.median(limit)
        name = f"rendering {SIZE}x{SIZE}, {threads} thread{'s' if threads > 1 else ''}"
        note = f"frames of both sides are {'the same' if same else 'DIFFERENT'}" if threads == 1 else ""
        ratio = paired_ratio(values, limit)
        rows.append(Row(name, value, "frames/s", "bare mujoco.Renderer, 1 thread", peer, ratio, target, note=note))
    return rows


if __name__ == "__main__":
    main(benchmark)
