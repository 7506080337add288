"""Fit reward models."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.compute import claim_threads, fit_threads
from plaudit.config.convert import to_dict
from plaudit.config.load import save_config
from plaudit.config.schema import FitConfig
from plaudit.episodes.split import TRAIN, VAL
from plaudit.errors import CheckpointError
from plaudit.stages.common import load_fit, run_folder, versions
from plaudit.stages.fit_parts import Parts, build_feeds, build_parts
from plaudit.stages.fit_results import finish, visualise

if TYPE_CHECKING:
    from plaudit.rewards.feeds import Feed
    from plaudit.rewards.fit import Fit
    from plaudit.rewards.listener import Listener
    from plaudit.rl.run import RunFolder

logger = logging.getLogger("plaudit")

FOLDERS = ("logs",)
"""What the folder of a fit holds from the start; `step_<N>/` and `best_model/` join it."""


def fit(config: FitConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Fits a reward model in a new run folder, or in the one that the config names."""
    parts = build_parts(config, quiet)
    return _fit(parts, _new_folder(parts.config), None, quiet)


def resume_fit(path: Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> dict[str, Any]:
    """Goes on with a fit where its latest checkpoint left it, or where the checkpoint given did."""
    from plaudit.rewards.checkpoints import saved_checkpoints
    from plaudit.rl.run import RunFolder

    home = run_folder(path)
    config = load_fit(home / "config.yaml", overrides)
    found = [path] if path.is_file() else saved_checkpoints(home)
    if not found:
        raise CheckpointError(f"'{home}' has no step_<N>/checkpoint.pt yet; start it again with plaudit fit.")
    return _fit(build_parts(config, quiet), RunFolder.open(home, FOLDERS), found[-1], quiet)


def _new_folder(config: FitConfig) -> RunFolder:
    """The run's folder. In the one that `save_dir` names, what an earlier fit left to go on from is removed."""
    from plaudit.rewards.checkpoints import saved_checkpoints
    from plaudit.rl.run import RunFolder

    given = config.reward.training.save_dir
    if given is None:
        return RunFolder.create(config.runtime.output_dir, config.runtime.exp_name, FOLDERS)
    run = RunFolder.open(given, FOLDERS)
    old = saved_checkpoints(run.path)
    if old:
        logger.info("the checkpoints of an earlier fit in %s are replaced.", run.path)
    for path in old:
        shutil.rmtree(path.parent)
    (run.logs / "metrics.jsonl").unlink(missing_ok=True)
    return run


def _fit(parts: Parts, run: RunFolder, checkpoint: Path | None, quiet: bool) -> dict[str, Any]:
    """Trains, judges, tests, and says where things are."""
    config, started = parts.config, time.perf_counter()
    save_config(config, run.path / "config.yaml", "fit")
    logger.info("run folder: %s", run.path)
    if config.reward.training.max_seconds is not None:
        logger.info("max_seconds goes by the clock, so this fit cannot be repeated or resumed exactly.")
    if config.reward.training.visualize_positive:
        visualise(parts)
    feeds = build_feeds(parts, quiet)
    work = _train(parts, run, checkpoint, feeds, quiet)
    result = {
        "run": str(run.path),
        "steps": work.step,
        "epochs": work.epoch,
        "train_seconds": work.seconds,
        "best_step": None if work.best is None else work.best.step,
        "interrupted": work.interrupted,
    }
    if work.interrupted:
        logger.info("stopped and saved; go on with: plaudit fit --resume %s", run.path)
    else:
        result |= finish(parts, work, feeds, run.path)
    return {**result, "seconds": time.perf_counter() - started, "versions": versions()}


def _train(parts: Parts, run: RunFolder, checkpoint: Path | None, feeds: dict[str, Feed], quiet: bool) -> Fit:
    """The fit itself, from the start or from a checkpoint; the first Ctrl-C ends it in good order."""
    from plaudit.rewards.feeds import FeatureFeed
    from plaudit.rewards.fingerprints import of_members
    from plaudit.rewards.fit import Fit
    from plaudit.rl.guard import Interrupt

    config = parts.config
    with Interrupt() as interrupt, _threads(config, head_only=isinstance(feeds[TRAIN], FeatureFeed)):
        work = Fit(
            parts.model,
            feeds[TRAIN],
            feeds[VAL],
            config.reward.training,
            aim=parts.aim,
            seed=config.runtime.seed,
            folder=run.path,
            data=of_members(parts.data[TRAIN]),
            listeners=_listeners(config, run, quiet),
            stop=lambda: interrupt.asked,
        )
        if checkpoint is not None:
            _load(work, checkpoint, run.path)
        work.run()
    return work


def _load(work: Fit, checkpoint: Path, folder: Path) -> None:
    """Takes up a checkpoint; where it cannot be, the error names the one before it."""
    from plaudit.rewards.checkpoints import saved_checkpoints

    try:
        work.load(checkpoint)
    except CheckpointError as error:
        others = [path for path in saved_checkpoints(folder) if path.resolve() != checkpoint.resolve()]
        hint = f" There is an earlier one: plaudit fit --resume {others[-1]}" if others else ""
        raise CheckpointError(f"{error}{hint}") from error


@contextmanager
def _threads(config: FitConfig, head_only: bool) -> Iterator[None]:
    """Torch's share of the cores while a fit trains, and all of them again afterwards."""
    claim_threads(fit_threads(config.runtime.threads, head_only=head_only))
    try:
        yield
    finally:
        claim_threads(fit_threads(config.runtime.threads))


def _listeners(config: FitConfig, run: RunFolder, quiet: bool) -> list[Listener]:
    from plaudit.report.fitting import FitDisplay
    from plaudit.rl.logging import default_listeners

    loggers = default_listeners(run, config.runtime, dict(to_dict(config)))
    return [*loggers] if quiet else [FitDisplay(), *loggers]
