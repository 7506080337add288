"""Films of a policy at work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import VecEnv
from plaudit.rl.obs import flat
from plaudit.rl.policy import Policy
from plaudit.rl.rng import preserved_rng

LONGEST = 500
"""Steps after which a film stops even if the episode goes on."""


@dataclass(frozen=True)
class Reel:
    """The first episodes of several envs, filmed.

    Attributes:
        frames: uint8 (T, n, H, W, 3); an env whose episode ended shows its last picture until the others end.
        success: bool (T, n), whether the picture shows success.
        lengths: int64 (n,), pictures of each episode.
        fps: Pictures in a second of the real thing.
    """

    frames: NDArray[np.uint8]
    success: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    fps: float


def film(policy: Policy, env: VecEnv, episodes: int, seed: int) -> Reel:
    """Films one episode in each of the first `episodes` envs. Training's random state stays as it was."""
    ids = torch.arange(min(episodes, env.num_envs))
    running = np.ones(len(ids), bool)
    lengths = np.ones(len(ids), np.int64)
    with preserved_rng(), torch.no_grad():
        obs = flat(env.reset(seed)[0])
        frames = [env.portrait(ids).cpu().numpy()]
        success = [np.zeros(len(ids), bool)]
        while running.any() and len(frames) < LONGEST:
            step = env.step(policy.get_action(obs, deterministic=True)[0])
            running &= ~step.done[: len(ids)].cpu().numpy()
            now = frames[-1].copy()
            if running.any():
                now[running] = env.portrait(ids[torch.from_numpy(running)]).cpu().numpy()
            frames.append(now)
            good = success[-1].copy()
            if step.success is not None:
                good[running] = step.success[: len(ids)].cpu().numpy()[running]
            success.append(good)
            lengths[running] += 1
            obs = flat(step.obs)
    return Reel(np.stack(frames), np.stack(success), lengths, env.fps)
