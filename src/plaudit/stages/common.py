"""What every stage needs: a checked config, seeds and threads, envs and learners built from it."""

from __future__ import annotations

import importlib
import logging
import platform
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit import __version__
from plaudit.compute import claim_threads
from plaudit.config.checks import env_cfg
from plaudit.config.load import load_config
from plaudit.config.schema import Config
from plaudit.envs.registry import build_env, env_config_type
from plaudit.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv
    from plaudit.rl import Policy

logger = logging.getLogger("plaudit")


def load(recipe: str | Path | None, overrides: Sequence[str] = (), config_file: Path | None = None) -> Config:
    """A recipe, a file and overrides as a config of which every key has been checked."""

    def policy_type(name: str) -> type | None:
        from plaudit.rl.policy import POLICIES

        return POLICIES.config_type(name)

    def algorithm_type(name: str) -> type | None:
        from plaudit.rl.algorithms import ALGORITHMS

        return ALGORITHMS.config_type(name)

    registries = {"env": env_config_type, "policy": policy_type, "algorithm": algorithm_type}
    return load_config(recipe, overrides, config_file=config_file, registries=registries, prepare=_import_users_modules)


def _import_users_modules(config: Config) -> None:
    """Imports what `runtime.imports` names, so that the user's own envs, policies and algorithms are registered."""
    for module in config.runtime.imports:
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"runtime.imports: cannot import '{module}': {error}.") from error


def set_up(config: Config) -> torch.device:
    """Threads, seeds and the device, which `runtime.cuda` alone decides."""
    claim_threads()
    import numpy as np
    import torch

    random.seed(config.runtime.seed)
    np.random.seed(config.runtime.seed)
    torch.manual_seed(config.runtime.seed)
    if config.runtime.cuda and not torch.cuda.is_available():
        logger.info("runtime.cuda is true, but there is no GPU: using the CPU.")
    return torch.device("cuda" if config.runtime.cuda and torch.cuda.is_available() else "cpu")


def build_envs_for(config: Config, use: str, device: torch.device, stack: ExitStack) -> VecEnv:
    """The envs for `train` or `eval`, closed when `stack` is."""
    keys = env_cfg(config, "train" if use == "train" else "eval")
    env = build_env(config.env.id, keys, device, threads=config.runtime.threads)
    stack.callback(env.close)
    if use == "train" and not config.runtime.headless:
        env.open_viewer()
    return env


def build_learner(config: Config, env: VecEnv, device: torch.device) -> tuple[Policy, Any]:
    """The policy and the algorithm that a config describes, for the spaces of `env`."""
    from plaudit.rl import build_algo, build_policy

    policy = build_policy(config.policy, env.observation_space, env.action_space, device)
    return policy, build_algo(config.algorithm.name, config.algorithm.cfg, policy, device)


def load_policy(policy: Policy, path: Path) -> None:
    """Puts the weights of a checkpoint into `policy`."""
    from plaudit.rl import checkpoint

    checkpoint.load_policy(policy, checkpoint.load(path)["policy"], path)


def run_folder(path: Path) -> Path:
    """The run that a path belongs to: its folder, its checkpoints' folder, or one of its checkpoints."""
    if not path.exists():
        there = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no run or checkpoint at '{path}'.{nearest(str(path), there) if there else ''}")
    whole = path.resolve()
    for folder in (whole, *whole.parents[:2]):
        if (folder / "config.yaml").is_file():
            return folder
    raise CheckpointError(f"'{path}' is not a run: there is no config.yaml in it. Runs are made by plaudit train.")


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    import numpy
    import torch

    return {
        "plaudit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
