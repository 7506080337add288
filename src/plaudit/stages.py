"""Train, evaluate, bench: the only place that reads the config tree and connects the parts."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plaudit import __version__
from plaudit.compute import claim_threads
from plaudit.config.checks import env_cfg
from plaudit.config.describe import describe
from plaudit.config.load import load_config, save_config
from plaudit.config.schema import Config
from plaudit.envs.registry import ENVS, build_env, env_config_type
from plaudit.errors import CheckpointError, ConfigError, PlauditError, nearest

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv
    from plaudit.rl import Policy, Trainer
    from plaudit.rl.logging import Listener
    from plaudit.rl.run import RunFolder

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


def train(config: Config, *, quiet: bool = False) -> dict[str, Any]:
    """Trains from scratch in a new run folder."""
    from plaudit.rl.run import RunFolder

    run = RunFolder.create(config.runtime.output_dir, config.runtime.exp_name)
    save_config(config, run.path / "config.yaml")
    return _train(config, run, None, quiet)


def resume(run_path: Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> dict[str, Any]:
    """Goes on with a run where its latest checkpoint left it."""
    from plaudit.rl.run import RunFolder

    run = RunFolder.open(_run_folder(run_path))
    if not run.latest.exists():
        raise CheckpointError(f"'{run.path}' has no checkpoints/latest.pt yet; start it again with plaudit train.")
    config = load(run.path / "config.yaml", overrides)
    if overrides:
        save_config(config, run.path / "config.yaml")
    return _train(config, run, run.latest, quiet)


def _train(config: Config, run: RunFolder, checkpoint: Path | None, quiet: bool) -> dict[str, Any]:
    """Builds everything, trains, films, and says where things are."""
    from plaudit.rl import Trainer
    from plaudit.rl.logging import default_listeners

    device = _set_up(config)
    env = _build_env(config, "train", device)
    eval_env = _build_env(config, "eval", device)
    try:
        policy, algorithm = _build_learner(config, env, device)
        listeners = [*_display(env, quiet), *default_listeners(run, config.runtime, _flat_config(config))]
        trainer = Trainer(
            policy, env, algorithm, settings=config.runtime, run=run, eval_env=eval_env, listeners=listeners
        )
        if checkpoint is not None:
            trainer.load(checkpoint)
        logger.info("run folder: %s", run.path)
        return _finish(config, run, trainer, trainer.train())
    finally:
        env.close()
        eval_env.close()


def _set_up(config: Config) -> torch.device:
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


def _build_env(config: Config, use: Literal["train", "eval"], device: torch.device) -> VecEnv:
    env = build_env(config.env.id, env_cfg(config, use), device, threads=config.runtime.threads)
    if use == "train" and not config.runtime.headless:
        env.open_viewer()
    return env


def _build_learner(config: Config, env: VecEnv, device: torch.device) -> tuple[Policy, Any]:
    from plaudit.rl import build_algo, build_policy

    policy = build_policy(config.policy, env.observation_space, env.action_space, device)
    return policy, build_algo(config.algorithm.name, config.algorithm.cfg, policy, device)


def _display(env: VecEnv, quiet: bool) -> list[Listener]:
    if quiet:
        return []
    from plaudit.report.display import ProgressDisplay
    from plaudit.rl.logging import Listener

    class Display(ProgressDisplay, Listener):
        """The display, as the trainer's listener."""

    return [Display(env.headline)]


def _flat_config(config: Config) -> dict[str, Any]:
    from plaudit.config.convert import to_dict

    return dict(to_dict(config))


def _finish(config: Config, run: RunFolder, trainer: Trainer, summary: dict[str, Any]) -> dict[str, Any]:
    """Curves and a film of the best policy, a line for the reader, and the result for scripts."""
    from plaudit.report.curves import plot_curves

    result: dict[str, Any] = {"run": str(run.path), **summary, "versions": _versions()}
    metrics = run.logs / "metrics.jsonl"
    if metrics.exists():
        result["curves"] = str(run.path / "curves.png")
        plot_curves(metrics, run.path / "curves.png", trainer.env.headline, config.runtime.exp_name)
    if summary["interrupted"]:
        logger.info("stopped and saved; go on with: plaudit train --resume %s", run.path)
        return result
    if config.runtime.video_episodes and trainer.eval_env is not None and run.best.exists():
        _load_policy(trainer.policy, run.best)
        result |= _film(config, trainer.policy, trainer.eval_env, run)
    if summary["best"] is not None:
        _tell(summary, result, config.runtime.eval_episodes)
    return result


def _tell(summary: dict[str, Any], result: dict[str, Any], episodes: int) -> None:
    """The outcome in words."""
    name, best = summary["best_metric"], summary["best"]
    score = f"{best:.1%}" if name.startswith("success") else f"{best:.1f}"
    logger.info(
        "%s %s over %d evaluation episodes at step %s; %s steps in %.0f s of training (%.0f steps/s).",
        name,
        score,
        episodes,
        f"{summary['best_step']:,}",
        f"{summary['steps']:,}",
        summary["seconds"],
        summary["steps_per_second"],
    )
    for what in ("video", "film_strip", "curves", "run"):
        if what in result:
            logger.info("%s: %s", what.replace("_", " "), result[what])


def evaluate(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    episodes: int | None = None,
    video: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Evaluates the best checkpoint of a run, or the checkpoint given, on seeds that training never saw."""
    from plaudit.rl.evaluate import evaluate as play
    from plaudit.rl.run import RunFolder
    from plaudit.rl.trainer import EVAL_SEED

    run = RunFolder(_run_folder(path))
    checkpoint = path if path.is_file() else (run.best if run.best.exists() else run.latest)
    config = load(run.path / "config.yaml", overrides)
    device = _set_up(config)
    env = _build_env(config, "eval", device)
    try:
        policy, _ = _build_learner(config, env, device)
        _load_policy(policy, checkpoint)
        count = episodes or config.runtime.eval_episodes
        metrics = play(policy, env, count, config.runtime.seed + EVAL_SEED).metrics
        result: dict[str, Any] = {
            "run": str(run.path),
            "checkpoint": str(checkpoint),
            "episodes": count,
            "eval": metrics,
        }
        if video:
            result |= _film(config, policy, env, RunFolder.open(run.path))
    finally:
        env.close()
    if not quiet:
        print("  ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
        for what in ("video", "film_strip"):
            if what in result:
                print(f"{what.replace('_', ' ')}: {result[what]}")
    return result


def _run_folder(path: Path) -> Path:
    """The run that a path belongs to: its folder, its checkpoints' folder, or one of its checkpoints."""
    if not path.exists():
        there = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        raise CheckpointError(f"no run or checkpoint at '{path}'.{nearest(str(path), there) if there else ''}")
    for folder in (path, *path.parents[:2]):
        if (folder / "config.yaml").is_file():
            return folder
    raise CheckpointError(f"'{path}' is not a run: there is no config.yaml in it. Runs are made by plaudit train.")


def _load_policy(policy: Policy, path: Path) -> None:
    from plaudit.rl import checkpoint

    checkpoint.load_policy(policy, checkpoint.load(path)["policy"], path)


def _film(config: Config, policy: Policy, env: VecEnv, run: RunFolder) -> dict[str, str]:
    """Films some episodes into the run's `videos/`; says so and goes on where the env has no pictures."""
    from plaudit.report.video import film_strip, tile, write_video
    from plaudit.rl.film import film

    try:
        reel = film(policy, env, config.runtime.video_episodes, config.runtime.seed)
    except PlauditError as error:
        logger.info("no video: %s", error)
        return {}
    video, strip = run.videos / "best.mp4", run.videos / "best.png"
    write_video(video, tile(reel.frames, reel.success), reel.fps)
    film_strip(strip, reel.frames[: reel.lengths[0], 0])
    return {"video": str(video), "film_strip": str(strip)}


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "plaudit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def envs() -> list[dict[str, Any]]:
    """The registered envs, a line each."""
    rows = [{"id": name, "description": ENVS.entry(name).options["about"]} for name in ENVS.names()]
    return [*rows, {"id": "gym:<id>", "description": "Any Gymnasium env with a continuous action space."}]


def env_keys(name: str) -> list[dict[str, Any]]:
    """The keys of an env's `env.cfg`."""
    config_type = env_config_type(name)
    if config_type is None:
        return []
    return [
        {"key": row.key, "type": row.type, "default": "(required)" if row.required else row.default, "about": row.doc}
        for row in describe(config_type)
    ]


def bench(names: Sequence[str] = (), *, quick: bool = False) -> dict[str, Any]:
    """Runs the benchmarks of a source checkout."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    if not (folder / "suite.py").is_file():
        raise ConfigError("the benchmarks come with the source code, not with the package: run this in a checkout.")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.path.insert(0, str(folder))
    suite = importlib.import_module("suite")
    return dict(suite.run(list(names), quick=quick))


def with_seed(config: Config, seed: int) -> Config:
    """The same experiment with another seed."""
    return replace(config, runtime=replace(config.runtime, seed=seed))
