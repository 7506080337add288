"""Films of a policy at work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import VecEnv
from plaudit.errors import ConfigError
from plaudit.rl.acting import on_the_side
from plaudit.rl.obs import flat
from plaudit.rl.policy import Policy

LONGEST = 500
"""Pictures after which a film stops even if the episode goes on."""


@dataclass(frozen=True)
class Reel:
    """The first episodes of several envs, filmed. T is the longest episode's pictures and, if it ended, one more.

    Attributes:
        frames: uint8 (T, n, H, W, 3). An env that ends is in its next episode at once, so the state that its last
            action led to has no picture: from there on the picture before it is repeated.
        success: bool (T, n), what the env said of the state at that time; from an episode's end on, of its last
            state, so that an episode which ends by success is good on its repeated picture.
        lengths: int64 (n,), pictures of each episode, without the repeated ones.
        fps: Pictures in a second of the real thing.
    """

    frames: NDArray[np.uint8]
    success: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    fps: float


def film(policy: Policy, env: VecEnv, episodes: int, seed: int) -> Reel:
    """Films one episode in each of the first `episodes` envs, acting by the mean. Training's random state and the
    policy's mode stay as they were.

    Args:
        policy: Who acts.
        env: Envs with pictures; they are reset with `seed`.
        episodes: How many, at least 1; at most one for each env is filmed.
        seed: Same seed, same film.
    """
    if episodes < 1:
        raise ConfigError(f"a film needs at least 1 episode (runtime.video_episodes), not {episodes}.")
    with on_the_side(policy):
        torch.manual_seed(seed)
        return _shoot(policy, env, min(episodes, env.num_envs), seed)


def _shoot(policy: Policy, env: VecEnv, count: int, seed: int) -> Reel:
    ids = torch.arange(count)
    running = np.ones(count, bool)
    lengths = np.ones(count, np.int64)
    obs = flat(env.reset(seed)[0])
    frames = [env.portrait(ids).cpu().numpy()]
    success = [np.zeros(count, bool)]
    while running.any() and len(frames) < LONGEST:
        step = env.step(policy.act(obs, deterministic=True))
        good = success[-1].copy()
        if step.success is not None:
            # Of the ending step too: it is told before the next episode begins.
            good[running] = step.success[:count].cpu().numpy()[running]
        success.append(good)
        running &= ~step.done[:count].cpu().numpy()
        now = frames[-1].copy()
        if running.any():
            now[running] = env.portrait(ids[torch.from_numpy(running)]).cpu().numpy()
        frames.append(now)
        lengths[running] += 1
        obs = flat(step.obs)
    return Reel(np.stack(frames), np.stack(success), lengths, env.fps)
