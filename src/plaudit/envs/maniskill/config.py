"""Config of ManiSkill envs. Imports neither torch nor ManiSkill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plaudit.config.structured import require

OURS = (
    "num_envs",
    "obs_mode",
    "control_mode",
    "reward_mode",
    "render_mode",
    "sensor_configs",
    "human_render_camera_configs",
    "sim_backend",
    "render_backend",
)
"""Arguments of a ManiSkill task that are set by the keys of `ManiSkillConfig`."""


@dataclass(frozen=True)
class ManiSkillConfig:
    """Config `env.cfg` of `maniskill:` env ids."""

    num_envs: int | None = None  # Envs that step together; null is 16 on the CPU, 512 on a GPU.
    obs_mode: Literal["state", "rgb"] = "state"  # state: a state vector; rgb: camera images and all else it observes.
    control_mode: str | None = None  # ManiSkill's name, such as pd_ee_delta_pos; null is the robot's default.
    reward_mode: Literal["dense", "normalized_dense", "sparse", "none"] = "normalized_dense"  # normalized: 1 at most.
    ignore_terminations: bool = True  # Success and failure do not end an episode; false ends it there.
    max_episode_steps: int | None = None  # Steps after which an episode is truncated; null is the task's own.
    cameras: tuple[str, ...] | None = None  # Cameras to render if frames are needed; null is all of them.
    camera_size: tuple[int, int] = (64, 64)  # Height and width of a frame in pixels.
    shader: Literal["minimal", "default", "rt-fast", "rt-med", "rt"] = "minimal"  # From fastest to most realistic.
    show_goal: bool = True  # Show goal markers in images; ManiSkill hides those of many tasks.
    frames: Literal["none", "terminal", "always"] = "none"  # Frames given besides observations.
    sim_backend: Literal["auto", "cpu", "gpu"] = "auto"  # Simulation device; auto is the GPU if runtime.cuda has one.
    render_backend: Literal["auto", "cpu", "gpu"] = "auto"  # Render device; auto is the GPU if there is one.
    workers: int = 0  # CPU simulation processes; 0 is runtime.threads, or one for each core if memory allows.
    worker_timeout: float = 600.0  # Seconds after which processes that do not answer count as hanging.
    kwargs: dict[str, Any] = field(
        default_factory=dict
    )  # Passed to the task, such as robot_uids; null is the task's default.

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", {key: value for key, value in self.kwargs.items() if value is not None})

        # Ranges of single keys.
        for key in ("num_envs", "max_episode_steps"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        require(self.workers >= 0, "workers", "must not be negative")
        require(self.worker_timeout > 0, "worker_timeout", "must be greater than 0")
        valid_size = len(self.camera_size) == 2 and min(self.camera_size) >= 8
        require(valid_size, "camera_size", "must be (height, width) of at least 8 pixels each")

        # Combinations of keys.
        if self.obs_mode == "rgb" or self.frames != "none":
            reason = f"obs_mode '{self.obs_mode}' with frames '{self.frames}' needs at least one"
            require(self.cameras is None or bool(self.cameras), "cameras", reason)
        ray_traced = self.shader.startswith("rt")
        require(not (ray_traced and self.sim_backend == "gpu"), "shader", "rays are traced only with sim_backend cpu")
        for key in OURS:
            require(key not in self.kwargs, "kwargs", f"'{key}' is decided by keys of env.cfg itself")
