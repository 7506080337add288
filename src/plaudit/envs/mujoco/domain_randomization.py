"""Domain randomization: light, colours and camera poses per episode, drawn from one seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import mujoco
import numpy as np
from numpy.typing import NDArray

from plaudit.envs.episode_rng import episode_uniforms

Array = NDArray[np.float64]
Single = NDArray[np.float32]

ROOM, LAMP = range(2)
TABLE, ROBOT, THING, SCENERY = range(4)
STANDING, ON_HAND = range(2)

LIGHT_SPREAD = np.array([[0.2, 0.06, 0.02], [0.4, 0.06, 0.02]])
"""Maximum relative change of the room's light (row 0) and the lamp's (row 1) at a strength of 1.

Columns: dark to bright, cold (blue) to warm (red), magenta to green. Real lamps, tubes and windows vary in this way; no
lab is lit in purple.
"""

LAMP_TILT = 0.6
"""Maximum change of the lamp's direction along x and y; its z component is about -1."""

PAINT_SPREAD = np.array([[0.22, 0.1, 0.03], [0.1, 0.03, 0.01], [0.15, 0.1, 0.05], [0.15, 0.1, 0.05]])
"""Maximum relative change of the colours of table, robot, thing and scenery (rows), with `LIGHT_SPREAD`'s columns.

The changes are factors, so that strong colours keep their hue: the cube stays red, the hole's floor dark.
"""

CAMERA_SHIFT = np.array([0.012, 0.003])
"""Maximum shift of a fixed camera and of one on the hand, along each of its axes, in metres."""

CAMERA_TURN = np.deg2rad([1.2, 0.6])
"""Maximum rotation of a fixed camera and of one on the hand, about each of its axes, in radians."""

ZOOM_SPREAD = 0.02
"""Maximum relative change of the height of a camera's view."""

REMEMBERED = 4096
"""Cache size: more appearances than there are envs, each of which has one for a whole episode."""


@dataclass(frozen=True, eq=False)
class SceneAppearance:
    """Changes of a scene relative to its model.

    Arrays have the scene's own precision, float32, because casts cost more than the additions.

    Attributes:
        light: (2, 3), factors of the colours of room and lamp.
        tilt: (2,), added to x and y of the lamp's direction.
        paint: (4, 3), factors of the colours of table, robot, thing and scenery.
        moves: (2, 3, 3), for a fixed camera and one on the hand: additions to its position, its forward vector and its
            up vector, in the camera's own axes (right, up, back).
        zoom: (2,), factors of the view heights of a fixed camera and one on the hand.
    """

    light: Single
    tilt: Single
    paint: Single
    moves: Single
    zoom: tuple[float, ...]


@lru_cache(maxsize=REMEMBERED)
def look_of(number: int, strength: float) -> SceneAppearance:
    """Return the appearance for a seed, at a strength from 0 (as modelled) to 1."""
    # 34 uniform draws in [-strength, strength): 6 light, 2 tilt, 12 paint, 6 shift, 6 turn, 2 zoom. The seed is the
    # only source of randomness, so env and episode are always 0.
    zero_index = np.zeros(1, np.int64)
    draws = strength * (2 * episode_uniforms(number, zero_index, zero_index, 34)[0] - 1)
    shift = CAMERA_SHIFT * draws[20:26].reshape(3, 2)
    turn = CAMERA_TURN * draws[26:32].reshape(3, 2)

    # For small rotations the change of an axis is the cross product of the rotation vector with it: with forward
    # (0, 0, -1) and with up (0, 1, 0). MuJoCo orthonormalizes the axes afterwards.
    unchanged = np.zeros(2)
    moves = np.array([shift, [-turn[1], turn[0], unchanged], [-turn[2], unchanged, turn[0]]])

    return SceneAppearance(
        light=_factors(LIGHT_SPREAD * draws[:6].reshape(2, 3)),
        tilt=(LAMP_TILT * draws[6:8]).astype(np.float32),
        paint=_factors(PAINT_SPREAD * draws[8:20].reshape(4, 3)),
        moves=moves.transpose(2, 0, 1).astype(np.float32),
        zoom=tuple(map(float, 1 + ZOOM_SPREAD * draws[32:34])),
    )


def _factors(change: Array) -> Single:
    """Convert changes of brightness, warmth and greenness (n, 3) to RGB factors (n, 3)."""
    bright, warm, green = change.T[:, :, None]
    factors: Array = (1 + bright) * (1 + warm * [1, 0, -1] + green * [-0.5, 1, -0.5])
    return factors.astype(np.float32)


class Dresser:
    """Applies an appearance to a scene that `mjv_updateScene` has filled in.

    The model is not changed, because threads share it.

    Args:
        model: The model that the scene shows.
        scene: A scene already filled in, with the same options as later, so that its geoms keep their order.
    """

    def __init__(self, model: mujoco.MjModel, scene: mujoco.MjvScene) -> None:
        # The part (table, robot, thing or scenery) that each geom belongs to.
        geoms = [g for g in scene.geoms[: scene.ngeom] if g.objtype == mujoco.mjtObj.mjOBJ_GEOM]
        bodies = {0: TABLE, model.body("thing").id: THING, model.body("scenery").id: SCENERY}
        self._parts = np.array([bodies.get(int(model.geom_bodyid[g.objid]), ROBOT) for g in geoms])

        # Views of the scene's own memory, here and below: creating them for each frame costs more than filling them.
        self._colours = [g.rgba[:3] for g in geoms]
        self._modelled = np.array(self._colours)
        self._painted = lru_cache(maxsize=REMEMBERED)(self._paint)

        lights = scene.lights[: scene.nlight]
        self._lights = [(ROOM if light.headlight else LAMP, light.diffuse, light.ambient) for light in lights]
        self._directions = [light.dir for light in lights if not light.headlight]

        # The scene has a left and a right eye, and renders from the middle between them.
        self._eyes = [(eye, eye.pos, eye.forward, eye.up) for eye in scene.camera]
        self._mounts = [STANDING if body == 0 else ON_HAND for body in model.cam_bodyid]

    def dress(self, look: SceneAppearance, camera: int, axes: Array) -> None:
        """Apply an appearance to the scene's light, colours and camera.

        Args:
            look: The appearance.
            camera: Index of the camera that the scene was filled in for.
            axes: (3, 3), the camera's axes in its columns.
        """
        for colour, new in zip(self._colours, self._painted(look), strict=True):
            colour[:] = new

        # `mjv_updateScene` restores lights and camera for every frame, so these changes do not accumulate.
        for source, diffuse, ambient in self._lights:
            diffuse *= look.light[source]
            ambient *= look.light[source]
        for direction in self._directions:
            direction[:2] += look.tilt
            direction /= math.hypot(*direction)

        # The appearance holds the camera's changes in the camera's own axes; the scene is in world coordinates.
        mount = self._mounts[camera]
        shift, forward_change, up_change = np.dot(look.moves[mount], axes.T).astype(np.float32)
        for eye, position, forward, up in self._eyes:
            position += shift
            forward += forward_change
            up += up_change
            eye.frustum_bottom *= look.zoom[mount]
            eye.frustum_top *= look.zoom[mount]

    def _paint(self, look: SceneAppearance) -> Single:
        """Return the colours of the geoms, (n, 3), at most 1."""
        painted: Single = np.minimum(self._modelled * look.paint[self._parts], np.float32(1))
        return painted
