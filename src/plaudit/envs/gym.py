"""Any Gymnasium env as a `VecEnv`: `gym:Pendulum-v1`."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from plaudit.envs.base import FrameMode, Frames, Obs, Step, VecEnv
from plaudit.envs.config import GymConfig
from plaudit.envs.registry import find_spec
from plaudit.errors import ConfigError, EnvError, MissingDependencyError, nearest

CAMERA = "render"
"""Name of the camera that is the env's own `render()`."""

SUCCESS_KEYS = ("success", "is_success")


class ObsReader:
    """Turns the observations of a Gymnasium env into ours.

    Vectors (and any other numbers) are flattened and joined, in the sorted order of their names, into `state`. Pictures
    (uint8 HxWx3) keep their name; one that is the whole observation is called `image`.
    """

    def __init__(self, space: gymnasium.Space[Any], env_id: str) -> None:
        leaves = sorted(_leaves(space, (), env_id))
        self.bare = not isinstance(space, gymnasium.spaces.Dict)
        self.pictures = {
            ".".join(path) or "image": path for path, box in leaves if box.dtype == np.uint8 and _is_picture(box)
        }
        self.vectors = [path for path, _ in leaves if path not in self.pictures.values()]
        if self.vectors and "state" in self.pictures:
            raise EnvError(f"gym:{env_id} has a picture called 'state', which is the name of our vector observation.")
        boxes = dict(leaves)
        spaces: dict[str, gymnasium.Space[Any]] = {name: boxes[path] for name, path in self.pictures.items()}
        if self.vectors:
            low = np.concatenate([boxes[path].low.reshape(-1).astype(np.float32) for path in self.vectors])
            high = np.concatenate([boxes[path].high.reshape(-1).astype(np.float32) for path in self.vectors])
            spaces["state"] = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.space = gymnasium.spaces.Dict(spaces)

    def __call__(self, obs: Any, device: torch.device) -> Obs:
        """Batched numpy observations as new tensors."""
        result = {name: torch.from_numpy(np.array(_at(obs, path))) for name, path in self.pictures.items()}
        if self.vectors:
            parts = [_at(obs, path) for path in self.vectors]
            flat = [part.reshape(len(part), -1).astype(np.float32) for part in parts]
            result["state"] = torch.from_numpy(np.concatenate(flat, axis=1))
        return {name: value.to(device) for name, value in result.items()}


class GymVecEnv(VecEnv):
    """Copies of one Gymnasium env, with true final observations and frames.

    Args:
        env_id: Id in Gymnasium's registry; `module:Id` imports the module first.
        cfg: How many, and what is passed on.
        device: Where the tensors go; the envs themselves run on the CPU.
    """

    cfg: GymConfig
    can_restart = True

    def __init__(self, env_id: str, cfg: GymConfig | None = None, device: torch.device | str = "cpu") -> None:
        self.env_id = env_id
        self.cfg = cfg or GymConfig()
        self.device = torch.device(device)
        self.num_envs = self.cfg.num_envs
        spec = find_spec(env_id)
        render_mode = self.cfg.kwargs.get("render_mode") or _render_mode(spec, self.cfg)
        self.cameras = (CAMERA,) if render_mode == "rgb_array" else ()
        self.frame_mode: FrameMode = "none"
        self.envs = _make(spec, self.cfg, render_mode)
        self.fps = float(self.envs.metadata.get("render_fps") or self.fps)
        self.max_episode_steps = self.cfg.max_episode_steps or spec.max_episode_steps
        self.reader = ObsReader(self.envs.single_observation_space, env_id)
        self.observation_space = self.reader.space
        self.action_space = _box_action(self.envs, env_id)
        self._success_key = self.cfg.success_key
        self._started = False

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        obs, info = self.envs.reset(seed=seed)
        self._started = True
        self._success(info, ended=False)
        return self.reader(obs, self.device), {"frames": self.render() if self.frame_mode == "always" else None}

    def step(self, action: torch.Tensor) -> Step:
        self.check_action(action)
        if not self._started:
            raise EnvError("step() was called before reset(); reset the env first.")
        space = self.action_space
        clipped = np.clip(action.detach().cpu().numpy(), space.low, space.high).astype(space.dtype)
        obs, reward, terminated, truncated, info = self.envs.step(clipped)
        done = terminated | truncated
        step = Step(
            obs=self.reader(obs, self.device),
            reward=self._tensor(reward, np.float32),
            terminated=self._tensor(terminated, np.bool_),
            truncated=self._tensor(truncated & ~terminated, np.bool_),
            success=self._success(info, ended=bool(done.any())),
        )
        if done.any():
            self._restart(step, done)
        if self.frame_mode == "always":
            step.frames = self.render()
        return step

    def _restart(self, step: Step, done: np.ndarray[Any, Any]) -> None:
        """Keeps the last observations and frames of the envs that ended, and begins their next episodes."""
        ended = step.ended
        step.final_obs = {name: value[ended] for name, value in step.obs.items()}
        if self.frame_mode != "none":
            step.final_frames = self.render(ended)
        step.obs = self._begin(done)

    def restart(self, ids: torch.Tensor) -> Obs:
        chosen = np.zeros(self.num_envs, bool)
        chosen[ids.cpu().numpy()] = True
        obs = self._begin(chosen)
        return {name: value[ids] for name, value in obs.items()}

    def _begin(self, chosen: np.ndarray[Any, Any]) -> Obs:
        """Begins new episodes in some envs, bool (num_envs,), and returns the observations of all."""
        obs, _ = self.envs.reset(options={"reset_mask": chosen})
        return self.reader(obs, self.device)

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none" and not self.cameras:
            super().request_frames(mode)
        self.frame_mode = mode

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        if not self.cameras:
            return super().render(ids)
        rows = range(self.num_envs) if ids is None else ids.tolist()
        try:
            if isinstance(self.envs, SyncVectorEnv):
                pictures: list[Any] = [self.envs.envs[i].render() for i in rows]
            else:
                everyone = self.envs.call("render")
                pictures = [everyone[i] for i in rows]
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingDependencyError(f"gym:{self.env_id} cannot be rendered: {error}") from error
        return {CAMERA: self._tensor(np.stack(pictures), np.uint8)}

    def close(self) -> None:
        self.envs.close()

    def _tensor(self, array: Any, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array, dtype=dtype)).to(self.device)

    def _success(self, info: dict[str, Any], ended: bool) -> torch.Tensor | None:
        """Bool (num_envs,) from `info`, false for envs that do not mention it there; `None` until one first does."""
        if self._success_key is None:
            self._success_key = next((key for key in SUCCESS_KEYS if key in info), None)
        if self._success_key is None:
            return None
        if self._success_key in info:
            said = np.asarray(info[self._success_key]).astype(bool)
            return self._tensor(said & info[f"_{self._success_key}"], np.bool_)
        if ended and self.cfg.success_key is not None:
            known = [key for key in info if not key.startswith("_")]
            raise EnvError(
                f"gym:{self.env_id} ended an episode without env.cfg.success_key '{self.cfg.success_key}' in its info."
                f"{nearest(self.cfg.success_key, known) or ' Its info is empty.'}"
            )
        return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)


def _make_one(spec: EnvSpec, cfg: GymConfig, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    """One copy; what can go wrong with it is said in our words."""
    kwargs = {**cfg.kwargs, "render_mode": render_mode}
    try:
        return gymnasium.make(spec, max_episode_steps=cfg.max_episode_steps, **kwargs)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingDependencyError(f"gym:{spec.id} needs more than is installed: {error}.") from error
    except TypeError as error:
        raise ConfigError(f"gym:{spec.id} cannot be made with env.cfg.kwargs {cfg.kwargs}: {error}.") from error


def _make(spec: EnvSpec, cfg: GymConfig, render_mode: str | None) -> SyncVectorEnv | AsyncVectorEnv:
    """The copies, which we reset ourselves: with Gymnasium's own auto-reset the last picture would be lost."""
    kind = SyncVectorEnv if cfg.vectorization == "sync" else AsyncVectorEnv
    make = partial(_make_one, spec, cfg, render_mode)
    return kind([make] * cfg.num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED)


def _render_mode(spec: EnvSpec, cfg: GymConfig) -> str | None:
    """`rgb_array` if the env says that it can draw so. Nothing is drawn until frames are asked for."""
    entry = spec.entry_point
    try:
        creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    except ImportError as error:
        raise MissingDependencyError(f"gym:{spec.id} needs more than is installed: {error}.") from error
    if not hasattr(creator, "metadata"):  # A function: only the env that it makes can tell.
        creator = _make_one(spec, cfg, None)
        creator.close()
    return "rgb_array" if "rgb_array" in creator.metadata.get("render_modes", []) else None


def _box_action(envs: SyncVectorEnv | AsyncVectorEnv, env_id: str) -> gymnasium.spaces.Box:
    """The action space of one env, if it is one that our policies can act in."""
    space = envs.single_action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        envs.close()
        raise EnvError(
            f"gym:{env_id} takes actions from {space}; Plaudit's policies give continuous vectors, so it needs an env "
            f"with a one-dimensional Box action space."
        )
    return space


def _is_picture(box: gymnasium.spaces.Box) -> bool:
    return len(box.shape) == 3 and box.shape[-1] == 3


def _leaves(
    space: gymnasium.Space[Any], path: tuple[str, ...], env_id: str
) -> list[tuple[tuple[str, ...], gymnasium.spaces.Box]]:
    """The boxes in a space with the keys that lead to them."""
    if isinstance(space, gymnasium.spaces.Box):
        return [(path, space)]
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*path, key), env_id)]
    name = f" '{'.'.join(path)}'" if path else ""
    raise EnvError(
        f"gym:{env_id} observes{name} {space}; only Box spaces and Dicts of them can be read. "
        f"gymnasium.wrappers.FlattenObservation may help."
    )


def _at(obs: Any, path: tuple[str, ...]) -> Any:
    """The array that the keys lead to."""
    for key in path:
        obs = obs[key]
    return obs
