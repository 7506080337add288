"""How an episode looks: light, colours and the cameras' places, drawn from one number and put into a scene."""

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
"""How far room and lamp may go at a strength of 1: from dark to bright, from cold (blue) to warm (red), and from
magenta to green, as parts of what they are. Lamps, tubes and windows differ like this; no lab is lit in purple."""

LAMP_TILT = 0.6
"""How far the lamp's direction may move along x and y, where it points down by about 1."""

PAINT_SPREAD = np.array([[0.22, 0.1, 0.03], [0.1, 0.03, 0.01], [0.15, 0.1, 0.05], [0.15, 0.1, 0.05]])
"""The same for the colours of table, robot, thing and scenery.

These are factors, so that what is strongly coloured keeps its hue: the cube stays red, the hole's floor dark.
"""

CAMERA_SHIFT = np.array([0.012, 0.003])
"""How far a camera that stands, and one on the hand, may be from its place along each of its axes, in metres."""

CAMERA_TURN = np.deg2rad([1.2, 0.6])
"""How far they may be turned about each of their axes, in radians."""

ZOOM_SPREAD = 0.02
"""How much more or less of the scene a camera may see, as a part of its frame's height."""

REMEMBERED = 4096
"""Looks that are kept: more than there are envs, each of which has one for a whole episode."""


@dataclass(frozen=True, eq=False)
class SceneAppearance:
    """How a scene differs from what its model says; in the scene's own precision, as casts cost more than the sums.

    Attributes:
        light: (2, 3), factors of the colours of room and lamp.
        tilt: (2,), added to x and y of the lamp's direction.
        paint: (4, 3), factors of the colours of table, robot, thing and scenery.
        moves: (2, 3, 3), of a camera that stands and one on the hand: what is added to its place, its forward and its
            up, along its own right, up and back.
        zoom: (2,), factors of the heights of their views.
    """

    light: Single
    tilt: Single
    paint: Single
    moves: Single
    zoom: tuple[float, ...]


@lru_cache(maxsize=REMEMBERED)
def look_of(number: int, strength: float) -> SceneAppearance:
    """The look that a number stands for, at a strength from 0 (as modelled) to 1."""
    nobody = np.zeros(1, np.int64)
    draws = strength * (2 * episode_uniforms(number, nobody, nobody, 34)[0] - 1)
    shift, turn = CAMERA_SHIFT * draws[20:26].reshape(3, 2), CAMERA_TURN * draws[26:32].reshape(3, 2)
    none = np.zeros(2)
    # For small turns the change is the cross product, of forward (0, 0, -1) and of up (0, 1, 0). MuJoCo makes the axes
    # orthonormal again.
    moves = np.array([shift, [-turn[1], turn[0], none], [-turn[2], none, turn[0]]])
    return SceneAppearance(
        light=_factors(LIGHT_SPREAD * draws[:6].reshape(2, 3)),
        tilt=(LAMP_TILT * draws[6:8]).astype(np.float32),
        paint=_factors(PAINT_SPREAD * draws[8:20].reshape(4, 3)),
        moves=moves.transpose(2, 0, 1).astype(np.float32),
        zoom=tuple(map(float, 1 + ZOOM_SPREAD * draws[32:34])),
    )


def _factors(change: Array) -> Single:
    """Factors of red, green and blue (n, 3), of changes of brightness, warmth and greenness (n, 3)."""
    bright, warm, green = change.T[:, :, None]
    factors: Array = (1 + bright) * (1 + warm * [1, 0, -1] + green * [-0.5, 1, -0.5])
    return factors.astype(np.float32)


class Dresser:
    """Gives a scene its look, after `mjv_updateScene` has filled it in as modelled. The model, which threads share,
    stays as it is.

    Args:
        model: What the scene shows.
        scene: Filled in, with the options that it will always be filled in with: its geoms keep their order.
    """

    def __init__(self, model: mujoco.MjModel, scene: mujoco.MjvScene) -> None:
        geoms = [g for g in scene.geoms[: scene.ngeom] if g.objtype == mujoco.mjtObj.mjOBJ_GEOM]
        bodies = {0: TABLE, model.body("thing").id: THING, model.body("scenery").id: SCENERY}
        self._parts = np.array([bodies.get(int(model.geom_bodyid[g.objid]), ROBOT) for g in geoms])
        # These are views of the scene's own memory. Making them anew for each frame costs more than filling them.
        self._colours = [g.rgba[:3] for g in geoms]
        self._modelled = np.array(self._colours)
        self._painted = lru_cache(maxsize=REMEMBERED)(self._paint)
        lights = scene.lights[: scene.nlight]
        self._lights = [(ROOM if light.headlight else LAMP, light.diffuse, light.ambient) for light in lights]
        self._directions = [light.dir for light in lights if not light.headlight]
        self._eyes = [(eye, eye.pos, eye.forward, eye.up) for eye in scene.camera]
        self._mounts = [STANDING if body == 0 else ON_HAND for body in model.cam_bodyid]

    def dress(self, look: SceneAppearance, camera: int, axes: Array) -> None:
        """Changes light, colours and the camera, of an index and with axes (3, 3) in its columns, to a look's."""
        for colour, new in zip(self._colours, self._painted(look), strict=True):
            colour[:] = new
        for source, diffuse, ambient in self._lights:
            diffuse *= look.light[source]
            ambient *= look.light[source]
        for direction in self._directions:
            direction[:2] += look.tilt
            direction /= math.hypot(*direction)
        mount = self._mounts[camera]
        shift, forward_change, up_change = np.dot(look.moves[mount], axes.T).astype(np.float32)
        # The scene has an eye on the left and one on the right, and draws what is between them.
        for eye, place, forward, up in self._eyes:
            place += shift
            forward += forward_change
            up += up_change
            eye.frustum_bottom *= look.zoom[mount]
            eye.frustum_top *= look.zoom[mount]

    def _paint(self, look: SceneAppearance) -> Single:
        """Colours of the geoms, (n, 3)."""
        painted: Single = np.minimum(self._modelled * look.paint[self._parts], np.float32(1))
        return painted
