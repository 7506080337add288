"""The robot: a Franka Panda with its real kinematics, limits and link masses, drawn with primitive shapes.

Lengths and limits are Franka's published ones (modified Denavit-Hartenberg). The forward kinematics here and the MJCF
below describe the same arm; a test holds them together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

D1, D3, D5, A4, A7, FLANGE = 0.333, 0.316, 0.384, 0.0825, 0.088, 0.107
HAND_TO_TCP = 0.1034
BASE_X = -0.615
"""The base stands here on the table, as in ManiSkill, so that the workspace is around the origin."""

LOWER = np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973])
UPPER = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])
MAX_SPEED = np.array([2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61])
FINGER_OPEN = 0.04
"""Travel of one finger, so the gap is twice this."""

FINGER_CLOSED = -0.01
"""Target of a closed finger: beyond the middle, so that it presses on what it holds."""

_UPPER_ARM, _FOREARM = np.hypot(D3, A4), np.hypot(D5, A4)
_SHOULDER_OFFSET = np.arctan2(A4, D3)
_ELBOW_OFFSET = np.arctan2(D3, A4) + np.arctan2(D5, A4)


def inverse(tcp: Array) -> Array:
    """Joint angles that hold the gripper straight down, fingers along y, at `tcp`.

    With joints 3 and 5 at zero the arm is a planar two-link chain, so the solution is closed-form. Targets out of reach
    are pulled to the nearest reachable distance from the shoulder.

    Args:
        tcp: float64 (n, 3), world coordinates in metres.

    Returns:
        float64 (n, 7), inside the joint limits.
    """
    x, y = tcp[:, 0] - BASE_X, tcp[:, 1]
    out = np.hypot(x, y) - A7
    up = tcp[:, 2] + HAND_TO_TCP + FLANGE - D1
    distance = np.clip(np.hypot(out, up), 0.2, _UPPER_ARM + _FOREARM - 1e-4)
    elbow = np.arccos(np.clip((_UPPER_ARM**2 + _FOREARM**2 - distance**2) / (2 * _UPPER_ARM * _FOREARM), -1, 1))
    shoulder = np.arccos(np.clip((_UPPER_ARM**2 + distance**2 - _FOREARM**2) / (2 * _UPPER_ARM * distance), -1, 1))
    q = np.zeros((len(tcp), 7))
    q[:, 0] = np.arctan2(y, x)
    q[:, 1] = np.arctan2(out, up) - shoulder - _SHOULDER_OFFSET
    q[:, 3] = -(2 * np.pi - _ELBOW_OFFSET - elbow)
    q[:, 5] = q[:, 1] - q[:, 3]
    q[:, 6] = q[:, 0] + np.pi / 4
    return np.clip(q, LOWER, UPPER)


_AXES = (  # the z axis of each joint frame, as columns of its parent: rotation about x by 0 or +-90 degrees
    (0, D1, 0.0),
    (-1, 0.0, 0.0),
    (1, -D3, 0.0),
    (1, 0.0, A4),
    (-1, D5, -A4),
    (1, 0.0, 0.0),
    (1, 0.0, A7),
)


def forward(q: Array) -> tuple[Array, Array]:
    """Position of the tool centre point and orientation of the hand.

    Args:
        q: float64 (n, 7), joint angles.

    Returns:
        float64 (n, 3), and the hand's x, y and z axes as the columns of float64 (n, 3, 3).
    """
    # Vectors are (3, n) here: numpy is several times faster when the long axis is the last one.
    cos, sin = np.cos(q.T), np.sin(q.T)
    x, y, z = np.eye(3)[:, :, None]
    position = np.zeros((3, len(q)))
    position[0] = BASE_X
    for joint, (turn, along, across) in enumerate(_AXES):
        if turn == 0:
            position += along * z
        else:
            # Offsets lie along the parent's y (links that stand on it) and x; then the frame turns about x.
            if across:
                position += across * x
            if along:
                position += along * y
            y, z = turn * z, -turn * y
        x, y = cos[joint] * x + sin[joint] * y, cos[joint] * y - sin[joint] * x
    position += (FLANGE + HAND_TO_TCP) * z
    half = np.sqrt(0.5)
    hand = np.stack([half * (x - y), half * (x + y), z], axis=-1)
    return np.ascontiguousarray(position.T), np.ascontiguousarray(hand.transpose(1, 0, 2))


def _servo(joint: int, kp: float, kv: float, force: float) -> str:
    return (
        f'<position name="joint{joint}" joint="joint{joint}" kp="{kp}" kv="{kv}" '
        f'ctrlrange="{LOWER[joint - 1]} {UPPER[joint - 1]}" forcerange="{-force} {force}"/>'
    )


def actuators() -> str:
    """MJCF of the arm's joint servos and the two force-limited fingers."""
    arm = [_servo(j, 4500, 200, 87) for j in (1, 2)] + [_servo(j, 3500, 130, 87) for j in (3, 4)]
    wrist = [_servo(j, 2000, 45, 12) for j in (5, 6, 7)]
    finger = '<position name="{0}" joint="{0}" kp="1500" kv="60" ctrlrange="-0.01 0.04" forcerange="-70 70"/>'
    return "".join(arm + wrist + [finger.format("finger1"), finger.format("finger2")])


def _joint(index: int) -> str:
    return f'<joint name="joint{index}" axis="0 0 1" range="{LOWER[index - 1]} {UPPER[index - 1]}"/>'


WHITE, GREY, DARK = "0.93 0.93 0.91 1", "0.45 0.47 0.5 1", "0.17 0.17 0.19 1"


def body() -> str:
    """MJCF of the arm. Masses are the real links'; shapes are capsules and boxes, of which few can collide."""
    finger = f"""
      <geom class="visual" type="box" size=".0105 .008 .012" pos="0 .012 .012" rgba="{GREY}" mass=".005"/>
      <geom class="pad" type="box" size=".011 .006 .0215" pos="0 .006 .0335" rgba="{DARK}" mass=".01"/>"""
    return f"""
<body name="link0" pos="{BASE_X} 0 0">
  <geom class="visual" type="capsule" fromto="-.05 0 .06 .0 0 .06" size=".07" rgba="{WHITE}" mass="0.6"/>
  <geom class="visual" type="cylinder" fromto="0 0 0 0 0 .2" size=".065" rgba="{WHITE}" mass="2"/>
  <body name="link1" pos="0 0 {D1}" gravcomp="1">{_joint(1)}
    <geom class="visual" type="capsule" fromto="0 0 -.12 0 0 0" size=".06" rgba="{WHITE}" mass="4.97"/>
    <body name="link2" quat="1 -1 0 0" gravcomp="1">{_joint(2)}
      <geom class="visual" type="capsule" fromto="0 0 -.055 0 0 .055" size=".062" rgba="{GREY}" mass=".25"/>
      <geom class="visual" type="capsule" fromto="0 0 0 0 -.16 0" size=".057" rgba="{WHITE}" mass=".4"/>
      <body name="link3" pos="0 {-D3} 0" quat="1 1 0 0" gravcomp="1">{_joint(3)}
        <geom class="visual" type="capsule" fromto="0 0 -.12 0 0 -.04" size=".054" rgba="{WHITE}" mass="2.2"/>
        <geom class="visual" type="capsule" fromto="{A4} -.045 0 {A4} .045 0" size=".055" rgba="{GREY}" mass="1"/>
        <body name="link4" pos="{A4} 0 0" quat="1 1 0 0" gravcomp="1">{_joint(4)}
          <geom class="visual" type="capsule" fromto="0 0 0 {-A4} .1 0" size=".053" rgba="{WHITE}" mass="3.59"/>
          <body name="link5" pos="{-A4} {D5} 0" quat="1 -1 0 0" gravcomp="1">{_joint(5)}
            <geom class="arm" type="capsule" fromto="0 .04 -.24 0 .06 -.06" size=".046" rgba="{WHITE}" mass="1.23"/>
            <body name="link6" quat="1 1 0 0" gravcomp="1">{_joint(6)}
              <geom class="visual" type="capsule" fromto="0 0 -.05 0 0 .05" size=".05" rgba="{GREY}" mass=".8"/>
              <geom class="arm" type="capsule" fromto="0 0 0 {A7} 0 0" size=".048" rgba="{WHITE}" mass=".87"/>
              <body name="link7" pos="{A7} 0 0" quat="1 1 0 0" gravcomp="1">{_joint(7)}
                <geom class="arm" type="cylinder" fromto="0 0 .02 0 0 .1" size=".045" rgba="{WHITE}" mass=".74"/>
                <body name="hand" pos="0 0 {FLANGE}" quat=".9238795 0 0 -.3826834" gravcomp="1">
                  <geom class="arm" type="box" size=".02 .1 .028" pos="0 0 .032" rgba="{WHITE}" mass=".73"/>
                  <camera name="wrist_camera" pos=".1 0 .02" xyaxes="0 1 0 .819 0 .574" fovy="62"/>
                  <site name="tcp" pos="0 0 {HAND_TO_TCP}" size=".005" group="4"/>
                  <body name="finger_left" pos="0 0 .0584" gravcomp="1">
                    <joint name="finger1" class="finger" axis="0 1 0"/>{finger}
                  </body>
                  <body name="finger_right" pos="0 0 .0584" quat="0 0 0 1" gravcomp="1">
                    <joint name="finger2" class="finger" axis="0 1 0"/>{finger}
                  </body>
                </body>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
  </body>
</body>"""


DEFAULTS = """
<default>
  <joint armature=".1" damping="1"/>
  <geom condim="3"/>
  <default class="visual"><geom contype="0" conaffinity="0"/></default>
  <default class="arm"><geom contype="2" conaffinity="1"/></default>
  <default class="pad">
    <geom contype="2" conaffinity="1" friction="1 .02 .002" priority="1" condim="4" solref=".01 1"
          solimp=".95 .99 .001"/>
  </default>
  <default class="finger"><joint type="slide" range="0 0.04" damping="20" armature=".2"/></default>
</default>"""
