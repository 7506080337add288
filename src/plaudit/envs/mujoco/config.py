"""Config keys of the embedded tasks. No simulator is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from plaudit.config.structured import require

_JOINTS = range(7)

READINGS = MappingProxyType(
    {
        **{f"joint_{joint + 1}": (joint, 1.0) for joint in _JOINTS},
        **{f"joint_speed_{joint + 1}": (7 + joint, 0.3) for joint in _JOINTS},
        "gripper_width": (14, 20.0),
        **{f"tcp_{axis}": (15 + place, 5.0) for place, axis in enumerate("xyz")},
    }
)
"""What the robot measures, to its place in `state` and the factor that it has there: angles in rad, speeds in rad/s,
the gap between the fingers and the gripper's position in m. `ArmTask.proprioception` puts them there."""


@dataclass(frozen=True)
class ArmTaskConfig:
    """Keys that all embedded tasks share."""

    num_envs: int = 256  # Envs stepped together.
    obs_mode: Literal["state", "rgb"] = "state"  # state: everything as numbers; rgb: cameras and proprioception.
    reward_mode: Literal["dense", "sparse"] = "dense"  # dense: shaped, at most 1 a step; sparse: 1 where success.
    control: Literal["ee", "joint"] = "ee"  # ee: gripper moves by x, y, z; joint: all seven joints move.
    action_scale: float | None = None  # Reach of an action of 1 in a step; null is 0.03 m (ee) or 0.1 rad (joint).
    episode_length: int = 50  # Steps (of 50 ms) before an episode is truncated.
    terminate_on_success: bool = False  # End the episode at success instead of going on to its full length.
    cameras: tuple[str, ...] = ("base_camera", "wrist_camera")  # Cameras that are rendered where frames are wanted.
    camera_size: tuple[int, int] = (64, 64)  # Height and width of a frame in pixels.
    frames: Literal["none", "terminal", "always"] = "none"  # Frames given besides observations.
    randomize: float = 0.0  # How much light, colours and cameras differ between episodes: 0 not at all, 1 strongly.

    readings: ClassVar[Mapping[str, tuple[int, float]]] = READINGS

    def __post_init__(self) -> None:
        for key in ("num_envs", "episode_length"):
            require(getattr(self, key) >= 1, key, "must be at least 1")
        require(self.action_scale is None or self.action_scale > 0, "action_scale", "must be greater than 0")
        pixels = len(self.camera_size) == 2 and min(self.camera_size) >= 8
        require(pixels, "camera_size", "must be (height, width) of at least 8 pixels each")
        require(0 <= self.randomize <= 1, "randomize", "must be between 0 and 1")
        for camera in self.cameras:
            require(camera in CAMERAS, "cameras", f"unknown camera '{camera}'; there are {', '.join(CAMERAS)}")
        if self.obs_mode == "rgb" or self.frames != "none":
            why = f"obs_mode '{self.obs_mode}' with frames '{self.frames}' needs at least one"
            require(bool(self.cameras), "cameras", why)


CAMERAS = ("base_camera", "wrist_camera", "show")

MOST_CLEARANCE = 0.038
"""Metres from PegInsertion's peg to the outside of its block: with more clearance there would be no wall."""

HOLE_DEPTH = 0.06
"""Metres from the top of PegInsertion's block to the table."""


@dataclass(frozen=True)
class PushCubeConfig(ArmTaskConfig):
    """Keys of PushCube."""

    success_threshold: float = 0.1  # Success when the cube's centre is within this of the goal's, in metres.

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.success_threshold > 0, "success_threshold", "must be greater than 0")


@dataclass(frozen=True)
class PickCubeConfig(ArmTaskConfig):
    """Keys of PickCube."""

    success_threshold: float = 0.025  # The cube must be within this of the goal, in metres, with the robot static.

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.success_threshold > 0, "success_threshold", "must be greater than 0")


@dataclass(frozen=True)
class PegInsertionConfig(ArmTaskConfig):
    """Keys of PegInsertion."""

    episode_length: int = 100  # Steps (of 50 ms) before an episode is truncated.
    clearance: float = 0.003  # Room between peg and hole on each side, in metres.
    success_depth: float = 0.03  # Success when the peg's tip is this far below the block's top, in metres...
    success_hold_steps: int = 5  # ...for this many steps in a row.

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, limit in (("clearance", MOST_CLEARANCE), ("success_depth", HOLE_DEPTH)):
            require(0 < getattr(self, key) < limit, key, f"must be greater than 0 and less than {limit}")
        require(self.success_hold_steps >= 1, "success_hold_steps", "must be at least 1")
