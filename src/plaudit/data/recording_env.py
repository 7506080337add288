"""An env that collects what happens in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from plaudit.data.recorder import RewardDataCollector
from plaudit.data.step_adapter import Array
from plaudit.envs.base import FrameMode, Obs, Step, VecEnv
from plaudit.envs.wrapper import EnvWrapper
from plaudit.errors import ConfigError, nearest

_MODES: tuple[FrameMode, ...] = ("none", "terminal", "always")
_KEY = "collector"


class DataCollectorWrapper(EnvWrapper):
    """Any env, to whose every step a collector listens. Once the collector has all that it wants, no frames are asked
    of the env for it any more, and steps are passed on as they are.

    Where the env takes snapshots, nothing is rendered as it happens, but only those frames that are kept, once it is
    known which: a few of an episode that is wanted, and none of one that is not.

    Args:
        env: The env.
        collector: Who listens. Its writer is closed by whoever made it.
    """

    def __init__(self, env: VecEnv, collector: RewardDataCollector) -> None:
        for camera in collector.cameras or ():
            if env.cameras and camera not in env.cameras:
                raise ConfigError(f"image_keys: the env has no camera '{camera}'.{nearest(camera, env.cameras)}")
        super().__init__(env)
        self.collector = collector
        # Pictures that the policy sees anyway cost nothing more.
        seen = all(camera in env.observation_space.spaces for camera in env.cameras)
        self._snapshots = env.can_snapshot and not seen
        self._collecting = False
        if not collector.complete:
            collector.draw = self._draw
            self._collecting = True
            self._ask()

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, info = self.env.reset(seed)
        if self._collecting:
            self.collector.add(self.collector.reader.reset(obs, info.get("frames"), self._present()))
            info["frames"] = info.get("frames") if self.frame_mode == "always" else None
        return obs, info

    def step(self, action: torch.Tensor) -> Step:
        step = self.env.step(action)
        if not self._collecting:
            return step
        # Envs that ended have begun anew, which `step.snapshot` does not show.
        present = self._present() if step.final_obs is not None else step.snapshot
        self.collector.add_env_output(step, {"actions": action, "snapshots": present})
        step.snapshot = None  # Nobody outside has asked for it.
        if self.frame_mode != "always":
            step.frames = None
        if self.frame_mode == "none":
            step.final_frames = None
        if self.collector.complete:
            self._collecting = False
            self._ask()
        return step

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none" and not self.cameras:
            super().request_frames(mode)
        self.frame_mode = mode
        self._ask()

    @property
    def _late(self) -> bool:
        """Whether frames are drawn later, from snapshots."""
        return self._collecting and self._snapshots and self.frame_mode != "always"

    def _ask(self) -> None:
        """Asks the env for the frames that either of us needs, or for snapshots in their place."""
        if self._snapshots:
            self.env.request_snapshots(self._late)
        ours: FrameMode = "always" if self._collecting and not self._late else "none"
        self.env.request_frames(max(self.frame_mode, ours, key=_MODES.index))

    def _present(self) -> torch.Tensor | None:
        return self.env.snapshot() if self._late else None

    def _draw(self, snapshots: Array) -> dict[str, Array]:
        frames = self.env.render_snapshots(torch.from_numpy(snapshots))
        return {camera: pixels.cpu().numpy() for camera, pixels in frames.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**self.env.state_dict(), _KEY: _map_leaves(_tensor, self.collector.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.collector.load_state_dict(_map_leaves(_array, state.get(_KEY)))
        return self.env.load_state_dict({key: value for key, value in state.items() if key != _KEY})


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """The same dicts with every value in them changed."""
    return {key: _map_leaves(change, item) for key, item in value.items()} if isinstance(value, dict) else change(value)


def _tensor(value: Any) -> Any:
    """Arrays as tensors: an env's state holds no others, so that it can be read without pickle's powers."""
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def _array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value
