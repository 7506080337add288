"""Config dataclasses of the envs that need no simulator of ours. Imports neither torch nor Gymnasium."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plaudit.config.structured import require


@dataclass(frozen=True)
class GymConfig:
    """`env.cfg` of `gym:` ids."""

    num_envs: int = 8  # Envs that step together.
    kwargs: dict[str, Any] = field(default_factory=dict)  # Passed on to gymnasium.make.
    state_keys: tuple[str, ...] | None = None  # Parts of the observation that make up `state`, in order; null is all.
    success_key: str | None = None  # Key of `info` that says success; null finds the usual ones.
    cameras: tuple[str, ...] | None = None  # Frames that are given; null: pictures observed, or else render().
    camera_size: tuple[int, int] | None = None  # Height and width that pictures are scaled to; null: as they come.
    draft: bool = False  # Draws MuJoCo's envs without shadows and smooth edges: far quicker where there is no GPU.
    expert: str | None = None  # module:attribute of a scripted policy for actors of kind expert.
    max_episode_steps: int | None = None  # Steps after which an episode is truncated; null is the env's own.
    vectorization: Literal["sync", "async", "vector_entry_point"] = "sync"  # async: a process for each; or its own.
    real_time: bool = False  # The world goes on while nobody acts, as a robot's does: runtime.mode=async never waits.
    worker_timeout: float = 300.0  # Seconds after which a process of async that does not answer counts as hanging.

    def __post_init__(self) -> None:
        require(self.num_envs >= 1, "num_envs", "must be at least 1")
        limit = self.max_episode_steps
        require(limit is None or limit >= 1, "max_episode_steps", "must be at least 1")
        for key in ("state_keys", "cameras"):
            require(getattr(self, key) != (), key, "must name something, or be null")
        require(self.camera_size is None or min(self.camera_size) >= 1, "camera_size", "must be at least 1 by 1")
        require(self.worker_timeout > 0, "worker_timeout", "must be greater than 0")


@dataclass(frozen=True)
class ProbeConfig:
    """`env.cfg` of the `probe/` envs."""

    num_envs: int = 4  # Envs that step together.

    def __post_init__(self) -> None:
        require(self.num_envs >= 1, "num_envs", "must be at least 1")
