"""Any Gymnasium env, or vector env, as a `VecEnv`: `gym:Pendulum-v1`."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from plaudit.envs.base import FrameMode, Frames, Obs, Step, VecEnv
from plaudit.envs.config import GymConfig
from plaudit.envs.episode_rng import episode_seeds
from plaudit.envs.gym.experts import Expert
from plaudit.envs.gym.factory import Vector, make_copies, make_ready, pictures
from plaudit.envs.gym.ids import find_spec
from plaudit.envs.gym.observations import ObsReader, row, stack
from plaudit.envs.gym.success import SuccessReader, batched
from plaudit.errors import ConfigError, EnvError, listed
from plaudit.utils.images import fit

logger = logging.getLogger("plaudit")

CAMERA = "render"
"""Name of the camera that is the env's own `render()`; where that gives several pictures: `render.0`, `render.1` ..."""


class GymVecEnv(VecEnv):
    """Copies of one Gymnasium env, or a vector env that is made already, with true final observations and frames.

    Pictures in the observations are cameras. Where there are none, `render()` is one, and nothing is drawn until frames
    are asked for.

    Args:
        env: Id in Gymnasium's registry (`module:Id` imports the module first), or a Gymnasium `VectorEnv`.
        cfg: How many, and what is passed on.
        device: Where the tensors go; the envs themselves run on the CPU.
    """

    cfg: GymConfig

    def __init__(self, env: str | Vector, cfg: GymConfig | None = None, device: torch.device | str = "cpu") -> None:
        self.cfg = cfg or GymConfig()
        self.device, self.real_time = torch.device(device), self.cfg.real_time
        if isinstance(env, VectorEnv):
            spec, ready = env.spec, True
            self.env_id, self.envs = type(env.unwrapped).__name__ if spec is None else spec.id, env
        else:
            spec = find_spec(env)
            ready = self.cfg.vectorization == "vector_entry_point" or spec.entry_point is None
            self.env_id, self.envs = env, (make_ready if ready else make_copies)(spec, self.cfg)
        self._copies = not ready
        try:
            self._set_up(self.cfg.max_episode_steps or (None if spec is None else spec.max_episode_steps))
        except Exception:
            self.envs.close()
            raise

    def _set_up(self, limit: int | None) -> None:
        """Everything that depends on what the envs are."""
        self.num_envs, self.max_episode_steps = self.envs.num_envs, limit
        self.fps = float(self.envs.metadata.get("render_fps") or self.fps)
        self.action_space = _box_action(self.envs, self.env_id)
        size = self.cfg.camera_size
        self.reader = ObsReader(self.envs.single_observation_space, self.env_id, self.cfg.state_keys, size)
        self.observation_space = self.reader.space
        self._ours = isinstance(self.envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        mode = _autoreset_mode(self.envs, self.env_id, self._ours)
        self._resets_itself = mode is AutoresetMode.SAME_STEP
        self.can_restart = self._ours or not self._resets_itself
        renders = self.envs.render_mode == "rgb_array" and not self._resets_itself
        self.cameras = _cameras(self.reader.pictures, renders, self.cfg.cameras, self.env_id)
        self.frame_mode: FrameMode = "none"
        self._success = SuccessReader(self.env_id, self.num_envs, self.cfg.success_key)
        self._expert = Expert(self.cfg.expert, self.env_id) if self.cfg.expert is not None else None
        self._raw: Any = None  # Of the last reset or step, as the envs gave it.
        self._now: Obs = {}
        self._age = np.zeros(self.num_envs, np.int64)  # Steps of the present episodes.
        _tell(_description(self.env_id, self.reader, self.cameras))

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        self._raw, _ = self.envs.reset(seed=seed if seed is None else self._seeds(seed))
        self._age[:] = 0
        self._now = self.reader(self._raw, self.device)
        everyone = range(self.num_envs)
        frames = self._frames(self._now, everyone) if self.frame_mode == "always" else None
        return dict(self._now), {"frames": frames}

    @property
    def success_hint(self) -> str:  # type: ignore[override]
        return self._success.hint

    def _seeds(self, seed: int) -> Any:
        """What the envs are seeded with.

        Gymnasium makes `seed + i` of a number for env i, so that runs of neighbouring seeds would share most of their
        episodes. Its own kinds also take a list; what others take is theirs to say.
        """
        everyone = np.arange(self.num_envs)
        return episode_seeds(seed, everyone, np.zeros_like(everyone)) if self._ours else seed

    def step(self, action: torch.Tensor) -> Step:
        self.check_action(action)
        if self._raw is None:
            raise EnvError("step() was called before reset(); reset the env first.")
        space = self.action_space
        clipped = np.clip(action.detach().cpu().numpy(), space.low, space.high).astype(space.dtype)
        self._raw, reward, terminated, truncated, info = self.envs.step(clipped)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        done = terminated | truncated
        self._count(done)
        last = batched(info.get("final_info", {})) if self._resets_itself else None
        success = self._success(info, last, done)
        step = Step(
            obs=self.reader(self._raw, self.device),
            reward=self._tensor(reward, np.float32),
            terminated=self._tensor(terminated, np.bool_),
            truncated=self._tensor(truncated & ~terminated, np.bool_),
            success=None if success is None else self._tensor(success, np.bool_),
        )
        if done.any():
            self._end(step, info, done)
        self._now = dict(step.obs)
        if self.frame_mode == "always":
            step.frames = self._frames(step.obs, range(self.num_envs))
        return step

    def _count(self, done: NDArray[np.bool_]) -> None:
        """Keeps time for those envs that are trusted to end episodes in time, and says when they do not."""
        self._age += 1
        late = ~done & (self._age >= (self.max_episode_steps or np.inf))
        if late.any():
            raise EnvError(
                f"gym:{self.env_id}: the episode of env {int(late.argmax())} has gone on for {self.max_episode_steps} "
                "steps and should have been truncated. Its vector env must end episodes at the max_episode_steps that "
                "it is made with; or set env.cfg.max_episode_steps to what they last at most."
            )
        self._age[done] = 0

    def _end(self, step: Step, info: dict[str, Any], done: NDArray[np.bool_]) -> None:
        """Keeps the last observations and frames of the envs that ended, whose next episodes begin."""
        rows = np.flatnonzero(done).tolist()
        if self._resets_itself:
            step.final_obs = self.reader(_final(info, rows, self.env_id), self.device)
        else:
            step.final_obs = {name: value[step.ended] for name, value in step.obs.items()}
        if self.frame_mode != "none":
            step.final_frames = self._frames(step.final_obs, rows)
        if not self._resets_itself:
            step.obs = self._begin(done)

    def restart(self, ids: torch.Tensor) -> Obs:
        if not self.can_restart:
            return super().restart(ids)
        chosen = np.zeros(self.num_envs, bool)
        chosen[ids.cpu().numpy()] = True
        self._now = self._begin(chosen)
        return {name: value[ids] for name, value in self._now.items()}

    def _begin(self, chosen: NDArray[np.bool_]) -> Obs:
        """Begins new episodes in some envs, bool (num_envs,), and returns the observations of all."""
        self._age[chosen] = 0
        self._raw, _ = self.envs.reset(options={"reset_mask": chosen})
        return self.reader(self._raw, self.device)

    def expert_action(self) -> torch.Tensor:
        """What the scripted policy of `cfg.expert` would do now, float32 (num_envs, action_dim)."""
        if self._expert is None:
            raise ConfigError(
                f"gym:{self.env_id} has no expert. env.cfg.expert names one, as module:attribute: a function from an "
                "observation of one env to an action, or a class whose get_action is one."
            )
        return self._tensor(self._expert(self._raw, self.num_envs, self.action_space), np.float32)

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none" and not self.cameras:
            super().request_frames(mode)
        self.frame_mode = mode

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        if not self.cameras:
            return super().render(ids)
        if self._raw is None:  # Somebody wants to know what its pictures are like before anything is played.
            self.reset(0)
        rows = list(range(self.num_envs)) if ids is None else ids.tolist()
        return self._frames({name: value[rows] for name, value in self._now.items()}, rows)

    def _frames(self, obs: Obs, rows: Sequence[int]) -> Frames:
        """Pictures of the envs `rows`, whose observations are the rows of `obs`: what is seen there is not drawn."""
        drawn: dict[str, NDArray[np.uint8]] = {}
        if any(camera not in self.reader.pictures for camera in self.cameras):
            drawn = self._draw(rows)
        for camera in self.cameras:
            if camera not in drawn and camera not in self.reader.pictures:
                raise EnvError(
                    f"gym:{self.env_id} has no camera '{camera}': its render() gives {len(drawn)} pictures. Choose "
                    f"with env.cfg.cameras from {', '.join(drawn)}."
                )
        return {
            camera: self._tensor(drawn[camera], np.uint8) if camera in drawn else obs[camera] for camera in self.cameras
        }

    def _draw(self, rows: Sequence[int]) -> dict[str, NDArray[np.uint8]]:
        """What `render()` gives of some envs, by camera."""
        if self._copies:
            everyone: Any = self.envs.call("draw", list(rows))  # type: ignore[attr-defined]  # Both kinds have it.
        else:
            rendered = self.envs.render()
            if rendered is None:
                raise EnvError(f"gym:{self.env_id}: render() of the vector env gave nothing.")
            everyone = [pictures(one, self.env_id) for one in rendered]
        found = [everyone[index] for index in rows]
        names = [CAMERA] if len(found[0]) == 1 else [f"{CAMERA}.{index}" for index in range(len(found[0]))]
        return {
            name: np.stack([fit(one[index], self.cfg.camera_size) for one in found]) for index, name in enumerate(names)
        }

    def close(self) -> None:
        self.envs.close()

    def _tensor(self, array: Any, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array, dtype=dtype)).to(self.device)


def _autoreset_mode(envs: Vector, env_id: str, ours: bool) -> AutoresetMode:
    """When the envs begin their next episodes; an error where their last observations could not be had.

    Args:
        envs: The envs.
        env_id: What messages call them.
        ours: Whether they are Gymnasium's own kinds, which can be reset one by one in every mode.
    """
    try:
        mode = AutoresetMode(envs.metadata.get("autoreset_mode"))
    except ValueError:
        raise EnvError(
            f"gym:{env_id} does not say when it resets itself: set metadata['autoreset_mode'] of its VectorEnv to a "
            "gymnasium.vector.AutoresetMode."
        ) from None
    inner = envs.unwrapped
    # Without shared memory what we reset ourselves is reset once more, at the cost of an action.
    ours = ours and not (isinstance(inner, AsyncVectorEnv) and not inner.shared_memory)
    if mode is AutoresetMode.NEXT_STEP and not ours:
        raise EnvError(
            f"gym:{env_id} begins its next episodes a step late (AutoresetMode.NEXT_STEP), and ignores the action of "
            "that step, which no policy could learn from. Make it with SAME_STEP or DISABLED (env.cfg.kwargs), or use "
            "env.cfg.vectorization=sync if it has an entry_point."
        )
    return mode


def _final(info: dict[str, Any], rows: Sequence[int], env_id: str) -> Any:
    """The last observations of the envs `rows` that have begun anew already, as a batch."""
    last = info.get("final_obs", info.get("final_observation"))
    if last is None:
        raise EnvError(f"gym:{env_id} ended an episode without info['final_obs'], which SAME_STEP asks for.")
    return stack([row(last, index) for index in rows])


def _cameras(seen: Sequence[str], renders: bool, wanted: Sequence[str] | None, env_id: str) -> tuple[str, ...]:
    """Names of the cameras whose frames are given.

    Args:
        seen: Pictures that are observed.
        renders: Whether `render()` is to be had.
        wanted: What the user chose; `None` takes what is observed, or else `render()`.
        env_id: What messages call the env.
    """
    there = (*seen, CAMERA) if renders else tuple(seen)
    if wanted is None:
        return tuple(seen) or there
    for camera in wanted:
        if camera not in there and not (renders and re.fullmatch(rf"{CAMERA}\.\d+", camera)):
            raise ConfigError(f"env.cfg.cameras: gym:{env_id} has no camera '{camera}'; it has {listed(camera, there)}")
    return tuple(wanted)


def _box_action(envs: Vector, env_id: str) -> gymnasium.spaces.Box:
    """The action space of one env, if it is one that our policies can act in."""
    space = envs.single_action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise EnvError(
            f"gym:{env_id} takes actions from {space}; Plaudit's policies give continuous vectors, so it needs an env "
            f"with a one-dimensional Box action space."
        )
    return space


def _description(env_id: str, reader: ObsReader, cameras: Sequence[str]) -> str:
    """What a user should know of how an env is read, before it runs."""
    parts = ", ".join(f"{name or 'all'} {size}" for name, size in reader.parts.items())
    return f"gym:{env_id}: state is {parts or 'empty'}; cameras: {', '.join(cameras) or 'none'}."


@functools.cache
def _tell(text: str) -> None:
    """Logs a line once: training and evaluation have envs of the same kind."""
    logger.info(text)
