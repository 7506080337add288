"""The env contract: `VecEnv` and `Step`, and `TaskEnv`, which does the bookkeeping for envs written here."""

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
"""Camera name to uint8 (n, H, W, 3)."""

FrameMode: TypeAlias = Literal["none", "terminal", "always"]
"""Which frames are rendered: none, the last one of each episode, or all."""

Headline: TypeAlias = Literal["success_once", "success_at_end"]
"""The success metric that says most about a task."""


STAGGERED = 10
"""Groups of envs that start their first episode at different points."""


@dataclass(slots=True)
class Step:
    """What one step of a `VecEnv` returns. Unpacks as Gymnasium's five: obs, reward, terminated, truncated, info.

    Attributes:
        obs: Observations to act on next; for envs that ended, the first of their next episode.
        reward: float32 (num_envs,).
        terminated: bool (num_envs,), the task itself ended: do not bootstrap.
        truncated: bool (num_envs,), the clock ended it: bootstrap from `final_obs`.
        success: bool (num_envs,), ground truth of the state that the action led to, or `None` where there is none.
        looks_done: bool (num_envs,), whether one picture of that state would look like success, which it also does
            where only motion or time tells the difference; `None` where a picture shows all that `success` asks for.
        final_obs: True last observations of the envs that ended, rows in the order of `ended`; `None` if none did.
        frames: Pictures of the same instants as `obs`, in mode `always`.
        final_frames: Pictures of the same instants as `final_obs`, in modes `terminal` and `always`.
        rewards: Named terms of the reward, float32 (num_envs,) each.
        metrics: Named measurements, float32 (num_envs,) each.
        env_reward: float32 (num_envs,), the env's own reward where `reward` is somebody else's; else `None`.
        verdict: bool (num_envs,), whether that somebody takes the state that the action led to for a success; `None`
            where nobody was asked. `success` stays the truth.
        snapshot: (num_envs, k), of the states that the actions led to, the last ones of episodes too, once
            `request_snapshots` has asked for them; else `None`.
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
        """Bool (num_envs,): ended either way."""
        return self.terminated | self.truncated

    @property
    def ended(self) -> torch.Tensor:
        """int64 (k,): indices of the envs that ended."""
        return self.done.nonzero().squeeze(-1)

    @property
    def info(self) -> dict[str, Any]:
        """Everything beyond the first four, as Gymnasium users expect it."""
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
    """Where a quantity that the robot itself can measure stands in `state`.

    Attributes:
        index: Its place.
        scale: `state` holds the quantity times this.
    """

    index: int
    scale: float = 1.0


class VecEnv(ABC):
    """A batch of envs that step together and reset themselves.

    Attributes:
        num_envs: How many envs step together.
        device: Where observations, rewards and actions live.
        observation_space: Space of *one* env: a `Dict` with `state` and/or camera names.
        action_space: Space of *one* env: a `Box`.
        max_episode_steps: Steps after which an episode is truncated, or `None`.
        cameras: Names of the cameras that can be rendered.
        headline: The success metric that says most about this task.
        fps: Steps in a second of the real thing, for videos.
        can_save_state: Whether `state_dict` and `load_state_dict` give an exact resume.
        can_snapshot: Whether `snapshot` and `render_snapshots` draw an instant after it has passed, and steps have a
            `snapshot` where `request_snapshots` asks for it, as those of a `TaskEnv` do by themselves.
        can_restart: Whether `restart` begins new episodes on request.
        real_time: Whether the world goes on while nobody acts, as a real one does: then nobody may be kept waiting.
        readings: Quantities that can be read off `state`, by name, for guards on a learned reward.
        success_hint: Where `Step.success` is `None`: what somebody who wants it can do.
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
        """Starts a new episode in every env; the same seed gives the same episodes.

        Returns:
            The observations, and an info dict with `frames` in mode `always`.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Advances every env by one action, float32 (num_envs, action_dim); ended envs start anew."""

    def close(self) -> None:  # noqa: B027 - most envs hold nothing
        """Gives back what the env holds: threads, GL contexts, processes."""

    def restart(self, ids: torch.Tensor) -> Obs:
        """Ends the episodes of the envs `ids`, int64 (n,), where they are, and begins new ones.

        Returns:
            The first observations of the new episodes, rows in the order of `ids`.
        """
        raise EnvError(f"{type(self).__name__} cannot begin episodes on request; see can_restart.")

    def request_frames(self, mode: FrameMode) -> None:
        """Says which frames are wanted from now on; no others are rendered."""
        if mode != "none":
            raise EnvError(f"{type(self).__name__} has no cameras, so it cannot give frames ('{mode}').")

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        """Pictures of the present state of the envs `ids`, int64 (n,); of all of them by default."""
        raise EnvError(f"{type(self).__name__} has no cameras, so it cannot be rendered.")

    def snapshot(self) -> torch.Tensor:
        """Numbers (num_envs, k) from which the present state can be drawn later: whoever needs few of many frames
        then draws only those.
        """
        raise EnvError(f"{type(self).__name__} takes no snapshots; see can_snapshot.")

    def request_snapshots(self, wanted: bool) -> None:
        """Says whether every `Step` is to have a snapshot of the states that it led to, from now on."""
        if wanted:
            but = "says can_snapshot, but has no request_snapshots" if self.can_snapshot else "takes no snapshots"
            raise EnvError(f"{type(self).__name__} {but}; see VecEnv.can_snapshot.")

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        """What `render` would have given at the instants of some snapshots (n, k), of any envs of this kind."""
        raise EnvError(f"{type(self).__name__} takes no snapshots; see can_snapshot.")

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        """Pictures for people of the envs `ids`, uint8 (n, H, W, 3): the first camera's, unless there are better."""
        return next(iter(self.render(ids).values()))

    def stagger(self) -> None:  # noqa: B027 - an env that cannot just starts in step
        """Spreads the envs over their first episode, right after `reset`, so that a rollout holds all its phases."""

    def open_viewer(self) -> None:
        """Opens a window on the first env."""
        raise EnvError(f"{type(self).__name__} has no viewer; set runtime.headless to true.")

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact resume needs, where `can_save_state`."""
        raise EnvError(f"{type(self).__name__} cannot save its state.")

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        """Puts back what `state_dict` gave and returns the observations to act on next."""
        raise EnvError(f"{type(self).__name__} cannot load a state.")

    def check_action(self, action: torch.Tensor) -> None:
        """Raises an `EnvError` that names both shapes, or the env with a non-finite action."""
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
    """What a `TaskEnv` says of one control step, before the clock and resets are applied.

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
    """A `VecEnv` that does the clock, the automatic reset, final observations and frames for its subclass.

    A subclass sets `num_envs`, `device` and the spaces in its constructor, and writes `start` (new episodes in some
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
        """Begins a new episode in the envs `ids`, int64 (n,). With `seed`, restarts the random numbers first."""

    @abstractmethod
    def advance(self, action: torch.Tensor) -> Outcome:
        """Moves every env by one checked action, float32 (num_envs, action_dim)."""

    @abstractmethod
    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        """Observations of the present state of the envs `ids`, of all by default. New tensors, not views."""

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        everyone = torch.arange(self.num_envs)
        self.clock = torch.zeros(self.num_envs, dtype=torch.int64)
        self.start(everyone, seed)
        obs = self.observe()
        return obs, {"frames": self._frames(obs) if self.frame_mode == "always" else None}

    def step(self, action: torch.Tensor) -> Step:
        self.check_action(action)
        if len(self.clock) != self.num_envs:
            raise EnvError("step() was called before reset(); reset the env first.")
        outcome = self.advance(action)
        self.clock += 1
        truncated = torch.zeros_like(outcome.terminated)
        if self.max_episode_steps is not None:
            truncated = (self.clock >= self.max_episode_steps).to(self.device) & ~outcome.terminated
        # Copies, since an outcome may be views of arrays that the next episode's start overwrites.
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
        if self.gives_snapshots:
            step.snapshot = self.snapshot()
        ended = step.ended
        if len(ended):
            step.final_obs = self.observe(ended)
            if self.frame_mode != "none":
                step.final_frames = self._frames(step.final_obs, ended)
            self._start_anew(ended)
        step.obs = self.observe()
        if self.frame_mode == "always":
            step.frames = self._frames(step.obs)
        return step

    def restart(self, ids: torch.Tensor) -> Obs:
        self._start_anew(ids)
        return self.observe(ids)

    def _start_anew(self, ids: torch.Tensor) -> None:
        self.clock[ids.cpu()] = 0
        self.start(ids)

    def _frames(self, obs: Obs, ids: torch.Tensor | None = None) -> Frames:
        """Pictures of the instants that `obs` shows; those that it holds already are not drawn again."""
        if all(camera in obs for camera in self.cameras):
            return {camera: obs[camera] for camera in self.cameras}
        return self.render(ids)

    def stagger(self) -> None:
        # Where every episode has the same length, envs that start together end together, for ever. A few groups are
        # enough, and cheaper than an env or two that start anew at every step.
        if self.max_episode_steps is not None:
            groups = min(STAGGERED, self.max_episode_steps)
            self.clock = self._groups(groups) * self.max_episode_steps // groups

    def _groups(self, count: int) -> torch.Tensor:
        """Which of so many groups each env is in, int64 (num_envs,): those of a group start together."""
        return torch.arange(self.num_envs) * count // self.num_envs

    def request_snapshots(self, wanted: bool) -> None:
        if wanted and not self.can_snapshot:
            super().request_snapshots(wanted)
        self.gives_snapshots = wanted

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none" and not self.cameras:
            super().request_frames(mode)
        self.frame_mode = mode
