"""The base of envs around envs."""

from __future__ import annotations

import torch

from plaudit.envs.base import FrameMode, Frames, VecEnv


class EnvWrapper(VecEnv):
    """An env that is another one in all but what its subclass changes: `reset`, `step`, `request_frames`, and the state
    of both where it has one of its own.

    Snapshots and restarts are not passed on: whoever wraps an env has to take part in them.

    Args:
        env: The other one.

    Attributes:
        frame_mode: Which frames those outside want.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.num_envs, self.device = env.num_envs, env.device
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.max_episode_steps, self.cameras, self.readings = env.max_episode_steps, env.cameras, env.readings
        self.headline, self.fps, self.can_save_state = env.headline, env.fps, env.can_save_state
        self.real_time = env.real_time
        self.frame_mode: FrameMode = getattr(env, "frame_mode", "none")

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        return self.env.render(ids)

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        return self.env.portrait(ids)

    def stagger(self) -> None:
        self.env.stagger()

    def open_viewer(self) -> None:
        self.env.open_viewer()

    def close(self) -> None:
        self.env.close()
