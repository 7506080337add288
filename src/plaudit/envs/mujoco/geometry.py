"""The cube that two tasks handle, and the small geometry that all tasks share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

HALF = 0.02
"""Half of the cube's edge, in metres, as in ManiSkill."""

THING = (
    f'<geom type="box" size="{HALF} {HALF} {HALF}" mass=".064" rgba=".85 .15 .12 1" '
    'contype="1" conaffinity="3" friction=".5"/>'
)


def spread(u: Array, low: float, high: float) -> Array:
    """Maps uniform numbers in [0, 1) to [low, high)."""
    return low + (high - low) * u


def yaw_quaternion(yaw: Array) -> Array:
    """Quaternions (n, 4) of rotations about z by yaw (n,)."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(yaw / 2), zero, zero, np.sin(yaw / 2)], axis=1)


def axes(quaternion: Array) -> Array:
    """The body's x and z axes in world coordinates, (n, 6), of unit quaternions (n, 4)."""
    w, x, y, z = quaternion.T
    return np.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y + w * z),
            2 * (x * z - w * y),
            2 * (x * z + w * y),
            2 * (y * z - w * x),
            1 - 2 * (x * x + y * y),
        ],
        axis=1,
    )


def closeness(distance: Array, sharpness: float = 5.0) -> Array:
    """1 at zero distance, falling to 0: the shape of ManiSkill's dense rewards."""
    return 1.0 - np.tanh(sharpness * distance)


def length(vectors: Array) -> Array:
    """Euclidean length (n,) of vectors (n, k)."""
    result: Array = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return result
