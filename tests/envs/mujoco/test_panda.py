"""The robot's own kinematics against MuJoCo's, and its limits against Franka's published numbers."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from plaudit.envs.mujoco import panda, scene
from plaudit.envs.mujoco.arm_task import WORKSPACE
from plaudit.envs.mujoco.geometry import THING

# https://frankaemika.github.io/docs/control_parameters.html, "Limits for Panda".
FRANKA_LOWER = [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]
FRANKA_UPPER = [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973]
FRANKA_SPEED = [2.1750, 2.1750, 2.1750, 2.1750, 2.6100, 2.6100, 2.6100]
FRANKA_TORQUE = [87, 87, 87, 87, 12, 12, 12]


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return scene.build("panda", THING, '<geom class="visual" type="sphere" size=".01"/>')


def test_forward_is_mujocos(model: mujoco.MjModel) -> None:
    q = np.random.default_rng(0).uniform(panda.LOWER, panda.UPPER, (200, 7))
    position, axes = panda.forward(q)
    data = mujoco.MjData(model)
    for i, joints in enumerate(q):
        data.qpos[:7] = joints
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(position[i], data.site("tcp").xpos, atol=1e-6)
        np.testing.assert_allclose(axes[i], data.body("hand").xmat.reshape(3, 3), atol=1e-6)


def test_forward_by_hand() -> None:
    # All joints at zero: the arm stands straight up, then A7 forward and the flange and hand down from the wrist.
    # x = -0.615 + 0.088, z = 0.333 + 0.316 + 0.384 - 0.107 - 0.1034.
    position, axes = panda.forward(np.zeros((1, 7)))
    np.testing.assert_allclose(position[0], [-0.527, 0.0, 0.8226], atol=1e-12)
    np.testing.assert_allclose(axes[0, :, 2], [0, 0, -1], atol=1e-12)


REACH = np.hypot(panda.D3, panda.A4) + np.hypot(panda.D5, panda.A4)


def _wrist(tcp: panda.Array) -> panda.Array:
    """Out and up (n, 2) from the shoulder to the wrist of a gripper that points straight down."""
    out = np.hypot(tcp[:, 0] - panda.BASE_X, tcp[:, 1]) - panda.A7
    return np.stack([out, tcp[:, 2] + panda.HAND_TO_TCP + panda.FLANGE - panda.D1], axis=1)


def test_inverse_undoes_forward_gripper_straight_down() -> None:
    tcp = np.random.default_rng(1).uniform(WORKSPACE[0], WORKSPACE[1], (2000, 3))
    q = panda.inverse(tcp)
    position, axes = panda.forward(q)
    # Approach straight down, fingers opening along y, also where the target is too far away.
    np.testing.assert_allclose(axes, np.broadcast_to(np.diag([1.0, -1.0, -1.0]), axes.shape), atol=1e-9)
    assert (q > panda.LOWER).all()
    assert (q < panda.UPPER).all()
    # The arm's two links, stretched out, are 72 cm long: the far edges of the box are beyond them.
    distance = np.linalg.norm(_wrist(tcp), axis=1)
    near = distance < REACH - 1e-3
    assert near.mean() > 0.85
    np.testing.assert_allclose(position[near], tcp[near], atol=1e-9)
    # What is beyond is pulled straight towards the shoulder.
    far = distance > REACH
    assert far.any()
    reached, wanted = _wrist(position[far]), _wrist(tcp[far])
    np.testing.assert_allclose(np.linalg.norm(reached, axis=1), REACH, atol=2e-4)
    np.testing.assert_allclose(reached / REACH, wanted / distance[far, None], atol=1e-3)


def test_inverse_of_the_unreachable_stays_inside_the_limits() -> None:
    far = np.array([[5.0, 0.0, 0.1], [0.0, 3.0, 2.0], [panda.BASE_X, 0.0, 0.3], [-0.5, 0.0, -1.0]])
    q = panda.inverse(far)
    assert np.isfinite(q).all()
    assert (q >= panda.LOWER).all()
    assert (q <= panda.UPPER).all()


def test_limits_are_frankas(model: mujoco.MjModel) -> None:
    assert panda.LOWER.tolist() == FRANKA_LOWER
    assert panda.UPPER.tolist() == FRANKA_UPPER
    assert panda.MAX_SPEED.tolist() == FRANKA_SPEED
    for j in range(7):
        name = f"joint{j + 1}"
        assert model.joint(name).range.tolist() == [FRANKA_LOWER[j], FRANKA_UPPER[j]]
        assert model.actuator(name).ctrlrange.tolist() == [FRANKA_LOWER[j], FRANKA_UPPER[j]]
        assert model.actuator(name).forcerange.tolist() == [-FRANKA_TORQUE[j], FRANKA_TORQUE[j]]


def test_gripper_is_frankas(model: mujoco.MjModel) -> None:
    # Franka Hand: 80 mm of travel, 70 N of continuous force.
    for name in ("finger1", "finger2"):
        assert model.joint(name).range.tolist() == [0, 0.04]
        assert model.actuator(name).forcerange.tolist() == [-70, 70]
    assert panda.FINGER_OPEN == 0.04


def test_arm_holds_itself_against_gravity(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    data.qpos[:7] = panda.inverse(np.array([[0.1, 0.2, 0.3]]))[0]
    data.ctrl[:7] = data.qpos[:7]
    before = panda.forward(data.qpos[None, :7])[0]
    for _ in range(160):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(panda.forward(data.qpos[None, :7])[0], before, atol=1e-3)
