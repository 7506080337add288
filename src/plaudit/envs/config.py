"""Config dataclasses of the envs that need no simulator of ours. Imports neither torch nor Gymnasium."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from plaudit.config.schema import require


@dataclass(frozen=True)
class GymConfig:
    """`env.cfg` of `gym:` ids."""

    num_envs: int = 8  # Envs that step together.
    kwargs: dict[str, Any] = field(default_factory=dict)  # Passed on to gymnasium.make.
    success_key: str | None = None  # Key of `info` that says success; null looks for success and is_success.
    max_episode_steps: int | None = None  # Steps after which an episode is truncated; null is the env's own.
    vectorization: Literal["sync", "async"] = "sync"  # async runs every env in a process of its own.

    def __post_init__(self) -> None:
        require(self.num_envs >= 1, "num_envs", "must be at least 1")
        limit = self.max_episode_steps
        require(limit is None or limit >= 1, "max_episode_steps", "must be at least 1")


@dataclass(frozen=True)
class ProbeConfig:
    """`env.cfg` of the `probe/` envs."""

    num_envs: int = 4  # Envs that step together.

    def __post_init__(self) -> None:
        require(self.num_envs >= 1, "num_envs", "must be at least 1")
