"""From a Gymnasium spec to a vector env; what can go wrong with it is said in our words."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from plaudit.envs.config import GymConfig
from plaudit.envs.gym.subprocess_vec import Workers
from plaudit.errors import ConfigError, EnvError, MissingDependencyError, PlauditError, listed

Vector: TypeAlias = VectorEnv[Any, Any, Any]
One: TypeAlias = gymnasium.Env[Any, Any]

NO_OPENGL = "If that is for want of OpenGL, on Debian or Ubuntu: sudo apt-get install libegl1 libgl1-mesa-dri"


class Copy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One of several copies of an env. Its errors have its traceback in them, wherever it runs.

    Args:
        env: The env.
        env_id: What messages call it.
        index: Which of the copies it is.
    """

    def __init__(self, env: One, env_id: str, index: int) -> None:
        super().__init__(env)
        self.env_id, self.index = env_id, index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._told("reset"):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._told("step"):
            return self.env.step(action)

    def draw(self, wanted: Sequence[int]) -> list[Any] | None:
        """Its pictures, several where it has several cameras, if its index is among those that are wanted."""
        if self.index not in wanted:
            return None
        try:
            return pictures(self.env.render(), self.env_id)
        except PlauditError:
            raise
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingDependencyError(f"gym:{self.env_id} cannot be drawn: {error}.") from error
        except Exception as error:
            raise MissingDependencyError(
                f"gym:{self.env_id} cannot be drawn ({type(error).__name__}: {error}). {NO_OPENGL}"
            ) from error

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except PlauditError:
            raise
        except Exception as error:
            lines = "".join(traceback.format_exception(error)).rstrip()
            raise EnvError(f"gym:{self.env_id}: env {self.index} failed in {what}.\n{lines}") from error


def pictures(rendered: Any, env_id: str) -> list[Any]:
    """What one `render()` gave: one picture, or one for each of several cameras; uint8 (H, W, 3) each."""
    found = list(rendered) if isinstance(rendered, (list, tuple)) else [rendered]
    for picture in found:
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            got = picture.shape if isinstance(picture, np.ndarray) else type(picture).__name__
            raise EnvError(f"gym:{env_id}: render() must give uint8 (H, W, 3), or a list of such; it gave {got}.")
    return found


def make_copies(spec: EnvSpec, cfg: GymConfig) -> Vector:
    """Copies of one env, which do not reset themselves: whoever steps them sees their last state, and its picture."""
    render_mode = cfg.kwargs.get("render_mode") or _render_mode(spec, cfg)
    makers = [partial(_make_one, spec, cfg, render_mode, index) for index in range(cfg.num_envs)]
    if cfg.vectorization == "async":
        return Workers(spec.id, makers, cfg.worker_timeout)
    return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)


def make_ready(spec: EnvSpec, cfg: GymConfig) -> Vector:
    """The env's own vector env."""
    if spec.vector_entry_point is None:
        raise ConfigError(f"env.cfg.vectorization: gym:{spec.id} has no vector_entry_point; use sync or async.")
    limit: dict[str, Any] = {} if cfg.max_episode_steps is None else {"max_episode_steps": cfg.max_episode_steps}
    with _making(spec, kwargs=cfg.kwargs, **limit):
        made = gymnasium.make_vec(spec, cfg.num_envs, vectorization_mode="vector_entry_point", **cfg.kwargs, **limit)
    if made.num_envs != cfg.num_envs:
        made.close()
        raise ConfigError(f"gym:{spec.id} is {made.num_envs} envs, whatever is asked: env.cfg.num_envs={made.num_envs}")
    return made


def _make_one(spec: EnvSpec, cfg: GymConfig, render_mode: str | None, index: int) -> One:
    kwargs = dict(cfg.kwargs) if render_mode is None else {**cfg.kwargs, "render_mode": render_mode}
    with _making(spec, kwargs=cfg.kwargs):
        env = gymnasium.make(spec, max_episode_steps=cfg.max_episode_steps, **kwargs)
    model: Any = getattr(env.unwrapped, "model", None)
    if "camera_name" in kwargs and hasattr(model, "ncam"):
        # MuJoCo's envs take a wrong name for no name, and draw something else.
        names = [model.camera(camera).name for camera in range(model.ncam)]
        if kwargs["camera_name"] not in (None, *names):
            wanted = str(kwargs["camera_name"])
            raise ConfigError(
                f"env.cfg.kwargs.camera_name: gym:{spec.id} has no camera '{wanted}'; it has {listed(wanted, names)}"
            )
    if cfg.draft:
        if not hasattr(model, "light_castshadow"):
            raise ConfigError(f"env.cfg.draft: gym:{spec.id} has no MuJoCo model that could be drawn in less detail.")
        model.light_castshadow[:] = 0
        model.vis.quality.offsamples = 0  # Read when an env first draws; some do as soon as they are made.
    return Copy(env, spec.id, index)


@contextlib.contextmanager
def _making(spec: EnvSpec, **given: Any) -> Iterator[None]:
    """Says what goes wrong while an env is made, with which keys of `env.cfg`."""
    keys = " and ".join(f"env.cfg.{key} {value}" for key, value in given.items())
    try:
        yield
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        hint = " Install the package that has it." if isinstance(error, ModuleNotFoundError) else ""
        raise MissingDependencyError(f"gym:{spec.id} needs more than is installed: {error}.{hint}") from error
    except TypeError as error:
        raise ConfigError(f"gym:{spec.id} cannot be made with {keys}: {error}.") from error
    except PlauditError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        hint = f" {NO_OPENGL}" if "GL" in why else ""  # Some envs draw as soon as they are made.
        raise EnvError(f"gym:{spec.id} cannot be made with {keys} ({why}).{hint}") from error


def _render_mode(spec: EnvSpec, cfg: GymConfig) -> str | None:
    """`rgb_array` if the env says that it can draw so. Nothing is drawn until frames are asked for."""
    entry = spec.entry_point
    with _making(spec, kwargs=cfg.kwargs):
        creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(creator, "metadata", {}).get("render_modes")
    if not modes:  # A function, or a class whose envs alone can tell.
        mode = inspect.signature(creator).parameters.get("render_mode")
        if mode is not None:
            return None if mode.default == "rgb_array" else "rgb_array"
        one = _make_one(spec, cfg, None, 0)
        modes = one.metadata.get("render_modes", [])
        one.close()
    return "rgb_array" if "rgb_array" in modes else None
