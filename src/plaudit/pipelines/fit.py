"""Fit reward models."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.config.loader import is_saved_config, save_config
from plaudit.config.schema import FitConfig
from plaudit.config.structured import to_dict
from plaudit.data.split import TRAIN, VAL
from plaudit.errors import CheckpointError, ConfigError, OutputError
from plaudit.pipelines.builders import StageDir, load_fit, run_folder, versions
from plaudit.pipelines.fit_components import Parts, build_feeds, build_parts
from plaudit.pipelines.fit_results import finish, visualise
from plaudit.utils.atomic_io import whole_folder
from plaudit.utils.threads import claim_threads, fit_threads

if TYPE_CHECKING:
    from plaudit.reward_models.training.batches import Feed
    from plaudit.reward_models.training.distributed import Ranks, Seat
    from plaudit.reward_models.training.trainer import Fit, FitCallback
    from plaudit.rl.run_dir import RunFolder

logger = logging.getLogger("plaudit")

FOLDERS = ("logs",)
"""What the folder of a fit holds from the start; `step_<N>/` and `best_model/` join it."""


@dataclass(frozen=True)
class FitJob:
    """What a fit has to do, in however many processes.

    Attributes:
        config: Its config.
        quiet: No progress display.
        folder: Where to; `None` for a new one, or the one that the config names.
        checkpoint: What to go on from.
        command: What goes on with it once it was stopped; `None` for what a fit alone takes.
    """

    config: FitConfig
    quiet: bool
    folder: Path | None = None
    checkpoint: Path | None = None
    command: str | None = None


def fit(config: FitConfig, *, quiet: bool = False, place: StageDir | None = None) -> dict[str, Any]:
    """Fits a reward model in a new run folder, in the one that the config names, or in a `place` where something may
    have been begun.
    """
    from plaudit.reward_models.training.trainer import saved_checkpoints

    if place is None:
        return _start(FitJob(config, quiet))
    found = saved_checkpoints(place.folder)
    return _start(FitJob(config, quiet, place.folder, found[-1] if found else None, place.command))


def resume_fit(path: Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> dict[str, Any]:
    """Goes on with a fit where its latest checkpoint left it, or where the checkpoint given did."""
    from plaudit.reward_models.training.trainer import saved_checkpoints

    home = run_folder(path)
    config = load_fit(home / "config.yaml", overrides)
    found = [path] if path.is_file() else saved_checkpoints(home)
    if not found:
        raise CheckpointError(f"'{home}' has no step_<N>/checkpoint.pt yet; start it again with plaudit fit.")
    return _start(FitJob(config, quiet, home, found[-1]))


def _start(job: FitJob) -> dict[str, Any]:
    """Does a job in this process, in processes that are started for it, or as one of those that torchrun started."""
    from plaudit.reward_models.training.distributed import Seat

    keys, seat = job.config.reward.training, Seat.from_environment()
    if keys.training_backend == "simple":
        if seat is not None and seat.size > 1:
            raise ConfigError(
                f"torchrun has started {seat.size} processes, but reward.training.training_backend is simple, which is "
                "one process. Set it to ddp or fsdp, or start plaudit without torchrun."
            )
        return carry_out(job)
    if seat is None:
        from plaudit.pipelines.fit_workers import run_workers

        return run_workers(job)
    if keys.training_processes not in (None, seat.size):
        raise ConfigError(
            f"torchrun has started {seat.size} processes, but reward.training.training_processes is "
            f"{keys.training_processes}. Leave that key out."
        )
    return carry_out(job, seat)


def carry_out(job: FitJob, seat: Seat | None = None) -> dict[str, Any]:
    """Trains, judges, tests, and says where things are.

    Args:
        job: What to do.
        seat: The place of this process, where several do it together. All but the first return nothing.
    """
    started = time.perf_counter()
    with _ranks(job.config, seat) as ranks, _heard(ranks):
        quiet = job.quiet or not ranks.leads
        parts = build_parts(job.config, quiet, ranks)
        run = ranks.told(lambda: _begin(job, parts))
        with ranks.first("inputs"):
            if ranks.leads and job.config.reward.training.visualize_positive:
                visualise(parts)
            feeds = build_feeds(parts, quiet)
        work = _train(job, parts, run, feeds, ranks)
    return _conclude(job, parts, run, feeds, work, started) if ranks.leads else {}


def _ranks(config: FitConfig, seat: Seat | None) -> AbstractContextManager[Ranks]:
    """The processes of a fit, as long as they work together."""
    import torch

    from plaudit.reward_models.training.distributed import Alone, join

    backend = config.reward.training.training_backend
    if seat is None or backend == "simple":
        return nullcontext(Alone())
    cuda = config.runtime.cuda and torch.cuda.is_available()
    if cuda and seat.local_size > torch.cuda.device_count():
        raise ConfigError(
            f"{seat.local_size} processes need a GPU each, but there are {torch.cuda.device_count()}. Set "
            "reward.training.training_processes to that, or runtime.cuda to false."
        )
    return join(seat, backend, cuda=cuda)


@contextmanager
def _heard(ranks: Ranks) -> Iterator[None]:
    """Lets only the first of several processes log and print: all would say the same."""
    if ranks.leads:
        yield
        return
    logger.disabled = True
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.disabled = False


def _begin(job: FitJob, parts: Parts) -> RunFolder:
    """The run's folder, with its config."""
    from plaudit.rl.run_dir import RunFolder

    config = parts.config
    run = _new_folder(config) if job.folder is None else RunFolder.open(job.folder, FOLDERS)
    save_config(config, run.path / "config.yaml", "fit")
    logger.info("run folder: %s", run.path)
    if config.reward.training.max_seconds is not None:
        logger.info("max_seconds goes by the clock, so this fit cannot be repeated or resumed exactly.")
    return run


def _new_folder(config: FitConfig) -> RunFolder:
    """The run's folder. In the one that `save_dir` names, what an earlier fit left is removed, and nothing else is."""
    from plaudit.rl.run_dir import RunFolder

    given = config.reward.training.save_dir
    if given is None:
        return RunFolder.create(config.runtime.output_dir, config.runtime.exp_name, FOLDERS)
    replaces = is_saved_config(Path(given) / "config.yaml", "fit")
    if not replaces:
        _check_free(Path(given))
    run = RunFolder.open(given, FOLDERS)
    if replaces:
        _clear(run)
    return run


def _check_free(folder: Path) -> None:
    """Refuses a folder that is no fit's, where a fit would overwrite something."""
    from plaudit.reward_models.artifact import BEST
    from plaudit.reward_models.training.trainer import saved_checkpoints

    ours = [folder / name for name in ("config.yaml", "logs/metrics.jsonl", BEST)]
    for path in (*ours, *saved_checkpoints(folder)):
        if path.exists():
            raise OutputError(
                f"'{folder}' is not the folder of a fit, but has a {path.relative_to(folder)}, which a fit would "
                "overwrite. Choose another folder with reward.training.save_dir, or move that away."
            )


def _clear(run: RunFolder) -> None:
    """Removes what an earlier fit has left, which would pass for this one's until it is finished."""
    from plaudit.reward_models.artifact import BEST, DOCUMENT
    from plaudit.reward_models.training.trainer import remove_checkpoints, saved_checkpoints

    logger.info("what an earlier fit has left in %s is replaced.", run.path)
    remove_checkpoints(saved_checkpoints(run.path))
    best = run.path / BEST
    if (best / DOCUMENT).exists():
        with whole_folder(best):  # An empty one in its place: never half of an artifact, whenever this is killed.
            pass
        best.resolve().rmdir()
    for log in (run.logs / "metrics.jsonl", *run.logs.glob("events.out.tfevents.*")):
        log.unlink(missing_ok=True)


def _train(job: FitJob, parts: Parts, run: RunFolder, feeds: dict[str, Feed], ranks: Ranks) -> Fit:
    """The fit itself, from the start or from a checkpoint; the first Ctrl-C ends it in good order."""
    from plaudit.reward_models.hashing import of_members
    from plaudit.reward_models.training.batches import FeatureFeed
    from plaudit.reward_models.training.trainer import Fit
    from plaudit.utils.interrupts import GracefulInterrupt

    config, head_only = parts.config, isinstance(feeds[TRAIN], FeatureFeed)
    with GracefulInterrupt() as interrupt, _threads(config, head_only=head_only, processes=ranks.local_size):
        work = Fit(
            parts.model,
            feeds[TRAIN],
            feeds[VAL],
            config.reward.training,
            aim=parts.aim,
            seed=config.runtime.seed,
            folder=run.path,
            data=of_members(parts.data[TRAIN]),
            val_data=of_members(parts.data[VAL]),
            listeners=_listeners(config, run, job.quiet) if ranks.leads else [],
            stop=lambda: interrupt.requested,
            ranks=ranks,
        )
        if job.checkpoint is not None:
            _load(work, job.checkpoint, run.path)
        work.run()
    return work


def _conclude(
    job: FitJob, parts: Parts, run: RunFolder, feeds: dict[str, Feed], work: Fit, started: float
) -> dict[str, Any]:
    """What comes after training, which one process does alone."""
    result = {
        "run": str(run.path),
        "steps": work.step,
        "epochs": work.epoch,
        "train_seconds": work.seconds,
        "best_step": None if work.best is None else work.best.step,
        "interrupted": work.interrupted,
    }
    if work.interrupted:
        logger.info("stopped and saved; go on with: %s", job.command or f"plaudit fit --resume {run.path}")
        _warn_of_earlier(run.path)
    else:
        result |= finish(parts, work, feeds, run.path)
    return {**result, "seconds": time.perf_counter() - started, "versions": versions()}


def _warn_of_earlier(folder: Path) -> None:
    """Says so where the artifact in a folder is not of the fit that was stopped there."""
    from plaudit.reward_models.artifact import BEST

    if (folder / BEST).exists():
        logger.warning("%s is from before, and not of what was learned now, until the fit is finished.", folder / BEST)


def _load(work: Fit, checkpoint: Path, folder: Path) -> None:
    """Takes up a checkpoint; where it cannot be, the error names the one before it."""
    from plaudit.reward_models.training.trainer import saved_checkpoints

    try:
        work.load(checkpoint)
    except CheckpointError as error:
        others = [path for path in saved_checkpoints(folder) if path.resolve() != checkpoint.resolve()]
        hint = f" There is an earlier one: plaudit fit --resume {others[-1]}" if others else ""
        raise CheckpointError(f"{error}{hint}") from error


@contextmanager
def _threads(config: FitConfig, head_only: bool, processes: int) -> Iterator[None]:
    """Torch's share of the cores while a fit trains, and all of them again afterwards."""
    claim_threads(fit_threads(config.runtime.threads, head_only=head_only, processes=processes))
    try:
        yield
    finally:
        claim_threads(fit_threads(config.runtime.threads))


def _listeners(config: FitConfig, run: RunFolder, quiet: bool) -> list[FitCallback]:
    from plaudit.reporting.progress import FitDisplay
    from plaudit.rl.loggers import default_listeners

    loggers = default_listeners(run, config.runtime, dict(to_dict(config)))
    return [*loggers] if quiet else [FitDisplay(), *loggers]
