"""Config keys of the embedded tasks. No simulator is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"num_envs: must be at least 1, not {self.num_envs}")
        if self.episode_length < 1:
            raise ValueError(f"episode_length: must be at least 1, not {self.episode_length}")
        if self.action_scale is not None and self.action_scale <= 0:
            raise ValueError(f"action_scale: must be positive, not {self.action_scale}")
        if len(self.camera_size) != 2 or min(self.camera_size) < 8:
            raise ValueError(f"camera_size: must be (height, width) of at least 8 pixels each, not {self.camera_size}")
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise ValueError(f"cameras: unknown camera '{camera}'; there are {', '.join(CAMERAS)}")
        if not self.cameras and (self.obs_mode == "rgb" or self.frames != "none"):
            raise ValueError(f"cameras: obs_mode '{self.obs_mode}' with frames '{self.frames}' needs at least one")


CAMERAS = ("base_camera", "wrist_camera", "show")


@dataclass(frozen=True)
class PushCubeConfig(ArmTaskConfig):
    """Keys of PushCube."""

    success_threshold: float = 0.1  # Success when the cube's centre is within this of the goal's, in metres.


@dataclass(frozen=True)
class PickCubeConfig(ArmTaskConfig):
    """Keys of PickCube."""

    success_threshold: float = 0.025  # The cube must be within this of the goal, in metres, with the robot static.


@dataclass(frozen=True)
class PegInsertionConfig(ArmTaskConfig):
    """Keys of PegInsertion."""

    episode_length: int = 100  # Steps (of 50 ms) before an episode is truncated.
    clearance: float = 0.003  # Room between peg and hole on each side, in metres.
    success_depth: float = 0.03  # Success when the peg's tip is this far below the block's top, in metres...
    success_hold_steps: int = 5  # ...for this many steps in a row.
