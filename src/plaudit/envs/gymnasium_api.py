"""Our envs as Gymnasium sees them: `gymnasium.make("PushCube")` and `gymnasium.make_vec("PushCube", num_envs=64)`."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from plaudit.envs.base import Obs, Step, VecEnv
from plaudit.envs.registry import build_env, env_config_type
from plaudit.errors import EnvError

Array: TypeAlias = np.ndarray[Any, Any]


def _fresh_seed() -> int:
    """For a first reset without a seed: our envs start from seed 0 by themselves, and all copies would play alike."""
    return int(np.random.SeedSequence().generate_state(1)[0])


class SingleEnv(gymnasium.Env[Any, Array]):
    """A batch of one as a plain Gymnasium env: numpy, no auto-reset, the true last observation on the ending step.

    Args:
        env: A `VecEnv` with one env.
        render_mode: `rgb_array`, for envs with cameras: `render()` gives the first camera's picture.
    """

    def __init__(self, env: VecEnv, render_mode: str | None = None) -> None:
        if env.num_envs != 1:
            raise EnvError(f"a single Gymnasium env needs num_envs=1, but {type(env).__name__} has {env.num_envs}.")
        self.env = env
        self.metadata = {
            "render_modes": ["rgb_array"] if env.cameras else [],
            "render_fps": env.fps,
        }
        self.render_mode = _checked_render_mode(env, render_mode)
        self.observation_space = _plain_space(env.observation_space)
        self.action_space = env.action_space
        if render_mode is not None:
            env.request_frames("terminal")
        self._next: Obs | None = None  # First observation of the episode that the ending step has begun.
        self._final_frame: Array | None = None
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and not self._seeded:
            seed = _fresh_seed()
        self._seeded = True
        super().reset(seed=seed)
        obs = self._next if seed is None else None
        if obs is None:
            obs, _ = self.env.reset(seed)
        self._next = self._final_frame = None
        return _row(obs, 0), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._next is not None:
            raise EnvError("the episode is over; call reset() before the next step().")
        batch = torch.as_tensor(np.asarray(action, dtype=np.float32)).unsqueeze(0).to(self.env.device)
        step = self.env.step(batch)
        obs = step.obs
        if step.final_obs is not None:
            self._next, obs = step.obs, step.final_obs
            if step.final_frames is not None:
                self._final_frame = step.final_frames[self.env.cameras[0]][0].cpu().numpy()
        info: dict[str, Any] = {
            "rewards": {name: term.item() for name, term in step.rewards.items()},
            "metrics": {name: value.item() for name, value in step.metrics.items()},
        }
        if step.success is not None:
            info["success"] = bool(step.success.item())
        return _row(obs, 0), step.reward.item(), bool(step.terminated.item()), bool(step.truncated.item()), info

    def render(self) -> Any:
        if self.render_mode is None:
            raise EnvError("this env was made without a render_mode; make it with render_mode='rgb_array'.")
        if self._final_frame is not None:
            return self._final_frame
        return self.env.render()[self.env.cameras[0]][0].cpu().numpy()

    def close(self) -> None:
        self.env.close()


class VectorView(gymnasium.vector.VectorEnv[Any, Array, Array]):
    """A `VecEnv` as a Gymnasium vector env: numpy, same-step auto-reset, `final_obs` and `final_info` in the info."""

    def __init__(self, env: VecEnv, render_mode: str | None = None) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": ["rgb_array"] if env.cameras else [],
            "render_fps": env.fps,
        }
        self.render_mode = _checked_render_mode(env, render_mode)
        self.single_observation_space = _plain_space(env.observation_space)
        self.single_action_space = env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._seeded = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if isinstance(seed, list):
            raise EnvError("this env draws all its episodes from one seed; pass an int, not a list.")
        if seed is None and not self._seeded:
            seed = _fresh_seed()
        self._seeded = True
        obs, _ = self.env.reset(seed)
        return _row(obs), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        step = self.env.step(torch.as_tensor(np.asarray(actions, dtype=np.float32)).to(self.env.device))
        terminated, truncated = step.terminated.cpu().numpy(), step.truncated.cpu().numpy()
        return _row(step.obs), step.reward.cpu().numpy(), terminated, truncated, self._infos(step)

    def _infos(self, step: Step) -> dict[str, Any]:
        """Gymnasium's layout: every key has a mask `_key`, and what ended is told under `final_info`."""
        done = step.done.cpu().numpy()
        infos = _masked(step, ~done)
        if step.final_obs is not None:
            final = np.full(self.num_envs, None, dtype=object)
            for row, env in enumerate(step.ended.tolist()):
                final[env] = _row(step.final_obs, row)
            infos |= {"final_obs": final, "_final_obs": done, "final_info": _masked(step, done), "_final_info": done}
        return infos

    def render(self) -> Any:
        if self.render_mode is None:
            raise EnvError("this env was made without a render_mode; make it with render_mode='rgb_array'.")
        return tuple(self.env.render()[self.env.cameras[0]].cpu().numpy())

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()


def make_single(
    env_id: str, render_mode: str | None = None, device: torch.device | str = "cpu", **cfg: Any
) -> SingleEnv:
    """What `gymnasium.make` calls: one env of a registered id; `cfg` are the env's own keys."""
    return SingleEnv(build_env(env_id, _sized(env_id, 1, cfg), device), render_mode)


def make_vector(
    num_envs: int, env_id: str, render_mode: str | None = None, device: torch.device | str = "cpu", **cfg: Any
) -> VectorView:
    """What `gymnasium.make_vec` calls: a batch of a registered id; `cfg` are the env's own keys."""
    env = build_env(env_id, _sized(env_id, num_envs, cfg), device)
    if env.num_envs != num_envs:
        raise EnvError(f"env '{env_id}' always has {env.num_envs} envs, so it cannot have {num_envs}.")
    return VectorView(env, render_mode)


def _sized(env_id: str, num_envs: int, cfg: dict[str, Any]) -> dict[str, Any]:
    """`cfg` with the number of envs, for configs that have it."""
    config_type = env_config_type(env_id)
    if config_type is not None and "num_envs" not in {field.name for field in dataclasses.fields(config_type)}:
        return cfg
    return {**cfg, "num_envs": num_envs}


def _checked_render_mode(env: VecEnv, render_mode: str | None) -> str | None:
    if render_mode is not None and (render_mode != "rgb_array" or not env.cameras):
        allowed = "'rgb_array' or None" if env.cameras else "None, for it has no cameras"
        raise EnvError(f"{type(env).__name__} cannot render in mode '{render_mode}'; it takes {allowed}.")
    return render_mode


def _plain_space(space: gymnasium.spaces.Dict) -> gymnasium.Space[Any]:
    """The space itself, or its only part where it has one."""
    parts = list(space.spaces.values())
    return parts[0] if len(parts) == 1 else space


def _row(obs: Obs, index: int | None = None) -> Any:
    """Numpy observations of one env, of all without an index; a plain array where there is one key."""
    arrays = {name: (value if index is None else value[index]).cpu().numpy() for name, value in obs.items()}
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _masked(step: Step, mask: Array) -> dict[str, Any]:
    """What a step tells of the envs in `mask`, bool (num_envs,), with Gymnasium's `_key` masks."""
    if not mask.any():
        return {}
    infos: dict[str, Any] = {}
    if step.success is not None:
        infos |= {"success": step.success.cpu().numpy() & mask, "_success": mask}
    for name, group in (("rewards", step.rewards), ("metrics", step.metrics)):
        if group:
            parts = {key: np.where(mask, value.cpu().numpy(), 0) for key, value in group.items()}
            infos[name] = parts | {f"_{key}": mask for key in group}
            infos[f"_{name}"] = mask
    return infos
