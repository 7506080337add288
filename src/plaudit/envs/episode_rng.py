"""Random numbers that belong to an episode: they depend on the seed, the env and the episode's number, nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEEDS = 2**31
"""Seeds of other people's random number generators end here at the latest."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al., 2014): every input bit changes half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def episode_uniforms(seed: int, env: NDArray[np.int64], episode: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for each pair of env and episode.

    Args:
        seed: Seed of the run.
        env: int64 (n,), env indices.
        episode: int64 (n,), how many episodes each env had before.
        count: Numbers wanted for each.

    Returns:
        float64 (n, count).
    """
    with np.errstate(over="ignore"):
        key = np.full(len(env), seed % 2**64, dtype=np.uint64)
        for part in (env, episode):
            key = _mix(key + _GOLDEN * (part.astype(np.uint64) + np.uint64(1)))
        bits = _mix(key[:, None] + _GOLDEN * (np.arange(count, dtype=np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def episode_seeds(seed: int, env: NDArray[np.int64], episode: NDArray[np.int64]) -> list[int]:
    """A seed for each pair of env and episode, for simulators that draw their numbers themselves."""
    return [int(SEEDS * number) for number in episode_uniforms(seed, env, episode, 1)[:, 0]]
