"""Env contract: `VecEnv` and `Step`, and the base class `TaskEnv`.

`TaskEnv` implements the bookkeeping (time limit, auto-reset, final observations) of the envs in this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import torch

from plaudit.errors import EnvError, NonFiniteError

Obs: TypeAlias = dict[str, torch.Tensor]
"""One batch of observations: `state` float32 (n, d), cameras uint8 (n, H, W, 3)."""

Frames: TypeAlias = dict[str, torch.Tensor]
"""One batch of images: camera name to uint8 (n, H, W, 3)."""

FrameMode: TypeAlias = Literal["none", "terminal", "always"]
"""Frames to render: none, the last one of each episode, or all."""

Headline: TypeAlias = Literal["success_once", "success_at_end"]
"""Success metric that is most informative for a task."""


STAGGERED = 10
"""Number of env groups that start their first episode at different time steps."""


@dataclass(slots=True)
class Step:
    """Result of one `VecEnv` step.

    Unpacks as Gymnasium's five values: obs, reward, terminated, truncated, info.

    Attributes:
        obs: Observations to act on next; for envs whose episode ended, the first one of the next episode.
        reward: float32 (num_envs,).
        terminated: bool (num_envs,), the task itself ended the episode: do not bootstrap.
        truncated: bool (num_envs,), the time limit ended the episode: bootstrap from `final_obs`.
        success: bool (num_envs,), ground truth of the state after the action, or `None` if there is none.
        looks_done: bool (num_envs,), true if a single image of that state looks like success, including states that
            differ from success only in motion or time; `None` if an image shows everything that `success` requires.
        final_obs: True last observations of the envs that ended, rows in the order of `ended`; `None` if none ended.
        frames: Images of the same instants as `obs`, in mode `always`.
        final_frames: Images of the same instants as `final_obs`, in modes `terminal` and `always`.
        rewards: Named terms of the reward, float32 (num_envs,) each.
        metrics: Named measurements, float32 (num_envs,) each.
        env_reward: float32 (num_envs,), the env's own reward if `reward` comes from a reward model; else `None`.
        verdict: bool (num_envs,), true if the reward model classifies the state after the action as a success; `None`
            if there is no reward model. `success` stays the ground truth.
        snapshot: (num_envs, k), snapshots of the states after the actions, including the last states of episodes, once
            enabled by `request_snapshots`; else `None`.
    """

    obs: Obs
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor | None = None
    looks_done: torch.Tensor | None = None
    final_obs: Obs | None = None
    frames: Frames | None = None
    final_frames: Frames | None = None
    rewards: dict[str, torch.Tensor] = field(default_factory=dict)
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)
    env_reward: torch.Tensor | None = None
    verdict: torch.Tensor | None = None
    snapshot: torch.Tensor | None = None

    @property
    def done(self) -> torch.Tensor:
        """Bool (num_envs,): terminated or truncated."""
        return self.terminated | self.truncated

    @property
    def ended(self) -> torch.Tensor:
        """Indices of the envs whose episode ended, int64 (k,)."""
        return self.done.nonzero().squeeze(-1)

    @property
    def info(self) -> dict[str, Any]:
        """Gymnasium-style info dict with everything beyond the first four values."""
        return {
            "rewards": self.rewards,
            "metrics": self.metrics,
            "success": self.success,
            "looks_done": self.looks_done,
            "final_obs": self.final_obs,
            "frames": self.frames,
            "final_frames": self.final_frames,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "env_reward": self.env_reward,
            "verdict": self.verdict,
        }

    def __iter__(self) -> Iterator[Any]:
        return iter((self.obs, self.reward, self.terminated, self.truncated, self.info))


@dataclass(frozen=True)
class Reading:
    """Location in `state` of a quantity that the robot itself can measure.

    Attributes:
        index: Index into `state`.
        scale: Factor by which the quantity is multiplied in `state`.
    """

    index: int
    scale: float = 1.0


class VecEnv(ABC):
    """Batch of envs that step together and reset automatically.

    Attributes:
        num_envs: Number of envs that step together.
        device: Device of observations, rewards and actions.
        observation_space: Space of *one* env: a `Dict` with `state` and/or camera names.
        action_space: Space of *one* env: a `Box`.
        max_episode_steps: Steps after which an episode is truncated, or `None`.
        cameras: Names of the cameras that `render` supports.
        headline: Success metric that is most informative for this task.
        fps: Control steps per second of simulated or real time, for videos.
        can_save_state: True if `state_dict` and `load_state_dict` give an exact resume.
        can_snapshot: True if `snapshot` and `render_snapshots` can render an instant after it has passed, and steps
            have a `snapshot` once `request_snapshots` enables them (`TaskEnv` implements the latter).
        can_restart: True if `restart` can start new episodes on request.
        real_time: True if the world goes on between actions, as a physical one does, so that the actor must not wait.
        readings: Quantities that can be read from `state`, by name, for guards on a learned reward.
        success_hint: If `Step.success` is `None`: advice to the user on how to obtain it.
    """

    num_envs: int
    device: torch.device
    observation_space: gym.spaces.Dict
    action_space: gym.spaces.Box
    max_episode_steps: int | None = None
    cameras: tuple[str, ...] = ()
    headline: Headline = "success_once"
    fps: float = 20.0
    can_save_state: bool = False
    can_snapshot: bool = False
    can_restart: bool = False
    real_time: bool = False
    readings: Mapping[str, Reading] = MappingProxyType({})
    success_hint: str = "An env of yours says it in Step.success."

    @abstractmethod
    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start a new episode in every env; the same seed gives the same episodes.

        Returns:
            The observations, and an info dict, which has `frames` in mode `always`.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Advance every env by one action and reset the envs whose episode ended.

        Args:
            action: float32 (num_envs, action_dim).
        """

    def close(self) -> None:  # noqa: B027 - most envs hold no resources
        """Release the env's resources: threads, GL contexts, processes."""

    def restart(self, ids: torch.Tensor) -> Obs:
        """Abort the current episodes of the envs `ids`, int64 (n,), and start new ones.

        Returns:
            The first observations of the new episodes, rows in the order of `ids`.
        """
        raise EnvError(f"{type(self).__name__} cannot begin episodes on request; see can_restart.")

    def request_frames(self, mode: FrameMode) -> None:
        """Set which frames are rendered from now on; no others are."""
        if mode != "none":
            raise EnvError(f"{type(self).__name__} has no cameras, so it cannot give frames ('{mode}').")

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        """Return images of the current state of the envs `ids`, int64 (n,); default all."""
        raise EnvError(f"{type(self).__name__} has no cameras, so it cannot be rendered.")

    def snapshot(self) -> torch.Tensor:
        """Return snapshots (num_envs, k) from which the current state can be rendered later.

        A consumer that needs only a few of many frames then renders only those.
        """
        raise EnvError(f"{type(self).__name__} takes no snapshots; see can_snapshot.")

    def request_snapshots(self, wanted: bool) -> None:
        """Enable or disable snapshots of the resulting states in every `Step` from now on."""
        if wanted:
            reason = "says can_snapshot, but has no request_snapshots" if self.can_snapshot else "takes no snapshots"
            raise EnvError(f"{type(self).__name__} {reason}; see VecEnv.can_snapshot.")

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        """Render snapshots (n, k), of any envs of this kind, as `render` would have at their instants."""
        raise EnvError(f"{type(self).__name__} takes no snapshots; see can_snapshot.")

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        """Return images of the envs `ids` for human viewers, uint8 (n, H, W, 3).

        These are the first camera's images unless an env provides better ones.
        """
        return next(iter(self.render(ids).values()))

    def stagger(self) -> None:  # noqa: B027 - an env without support starts all episodes together
        """Spread the envs over the phases of their first episode, right after `reset`.

        A rollout then contains all phases of an episode.
        """

    def open_viewer(self) -> None:
        """Open a viewer window for the first env."""
        raise EnvError(f"{type(self).__name__} has no viewer; set runtime.headless to true.")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; requires `can_save_state`."""
        raise EnvError(f"{type(self).__name__} cannot save its state.")

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        """Restore a `state_dict` and return the observations to act on next."""
        raise EnvError(f"{type(self).__name__} cannot load a state.")

    def check_action(self, action: torch.Tensor) -> None:
        """Raise an `EnvError` if the action's shape is wrong or a value is not finite.

        The message names both shapes, or the env with the non-finite action.
        """
        expected = (self.num_envs, *self.action_space.shape)
        if tuple(action.shape) != expected:
            raise EnvError(
                f"action has shape {tuple(action.shape)}, but this env takes {expected} (num_envs, action_dim)."
            )

        if not torch.isfinite(action).all():
            bad = int((~torch.isfinite(action)).any(-1).nonzero()[0])
            raise NonFiniteError(f"action for env {bad} is not finite: {action[bad].tolist()}.")


@dataclass(slots=True)
class Outcome:
    """Result of one `TaskEnv` control step, before the time limit and resets are applied.

    Attributes:
        reward: float32 (num_envs,).
        terminated: bool (num_envs,).
        success: bool (num_envs,), or `None`.
        looks_done: bool (num_envs,), or `None`, as in `Step`.
        rewards: Named terms of the reward.
        metrics: Named measurements.
    """

    reward: torch.Tensor
    terminated: torch.Tensor
    success: torch.Tensor | None = None
    looks_done: torch.Tensor | None = None
    rewards: dict[str, torch.Tensor] = field(default_factory=dict)
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)


class TaskEnv(VecEnv):
    """Base class that implements time limit, auto-reset, final observations and frames.

    A subclass sets `num_envs`, `device` and the spaces in its constructor, and implements `start` (new episodes in some
    envs), `advance` (one control step for all) and `observe`. `max_episode_steps` is applied here.
    """

    can_restart = True

    def __init__(self, cfg: Any, device: torch.device | str = "cpu") -> None:
        self.cfg = cfg
        self.device = torch.device(device)
        self.frame_mode: FrameMode = "none"
        self.gives_snapshots = False
        self.clock = torch.zeros(0, dtype=torch.int64)

    @abstractmethod
    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        """Start a new episode in the envs `ids`, int64 (n,); reseed first if `seed` is given."""

    @abstractmethod
    def advance(self, action: torch.Tensor) -> Outcome:
        """Advance every env by one validated action, float32 (num_envs, action_dim)."""

    @abstractmethod
    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        """Return observations of the envs `ids`, default all, as new tensors, not views."""

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        env_ids = torch.arange(self.num_envs)
        self.clock = torch.zeros(self.num_envs, dtype=torch.int64)
        self.start(env_ids, seed)
        obs = self.observe()
        return obs, {"frames": self._frames(obs) if self.frame_mode == "always" else None}

    def step(self, action: torch.Tensor) -> Step:
        self.check_action(action)
        if len(self.clock) != self.num_envs:
            raise EnvError("step() was called before reset(); reset the env first.")

        outcome = self.advance(action)

        # Apply the time limit; a terminated episode is never also truncated.
        self.clock += 1
        truncated = torch.zeros_like(outcome.terminated)
        if self.max_episode_steps is not None:
            truncated = (self.clock >= self.max_episode_steps).to(self.device) & ~outcome.terminated

        # Clone, because an outcome may hold views of arrays that the start of the next episode overwrites.
        step = Step(
            obs={},
            reward=outcome.reward.clone(),
            terminated=outcome.terminated.clone(),
            truncated=truncated,
            success=None if outcome.success is None else outcome.success.clone(),
            looks_done=None if outcome.looks_done is None else outcome.looks_done.clone(),
            rewards=outcome.rewards,
            metrics=outcome.metrics,
        )

        # Snapshots and final observations must be taken before the reset replaces the last states.
        if self.gives_snapshots:
            step.snapshot = self.snapshot()
        ended = step.ended
        if len(ended):
            step.final_obs = self.observe(ended)
            if self.frame_mode != "none":
                step.final_frames = self._frames(step.final_obs, ended)
            self._start_episodes(ended)

        step.obs = self.observe()
        if self.frame_mode == "always":
            step.frames = self._frames(step.obs)
        return step

    def restart(self, ids: torch.Tensor) -> Obs:
        self._start_episodes(ids)
        return self.observe(ids)

    def _start_episodes(self, ids: torch.Tensor) -> None:
        """Start new episodes in the envs `ids` and reset their step counters."""
        self.clock[ids.cpu()] = 0
        self.start(ids)

    def _frames(self, obs: Obs, ids: torch.Tensor | None = None) -> Frames:
        """Return images of the instants of `obs`, reusing those that it already contains."""
        if all(camera in obs for camera in self.cameras):
            return {camera: obs[camera] for camera in self.cameras}
        return self.render(ids)

    def stagger(self) -> None:
        # If all episodes have the same length, envs that start together stay in phase for ever. A few groups are
        # enough, and cheaper than resetting an env or two at every step.
        if self.max_episode_steps is not None:
            groups = min(STAGGERED, self.max_episode_steps)
            self.clock = self._groups(groups) * self.max_episode_steps // groups

    def _groups(self, count: int) -> torch.Tensor:
        """Return each env's group index, int64 (num_envs,); a group starts together."""
        return torch.arange(self.num_envs) * count // self.num_envs

    def request_snapshots(self, wanted: bool) -> None:
        if wanted and not self.can_snapshot:
            super().request_snapshots(wanted)
        self.gives_snapshots = wanted

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none" and not self.cameras:
            super().request_frames(mode)
        self.frame_mode = mode
