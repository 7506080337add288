"""One command for all stages: learn on the env's reward and keep what happens, fit, learn on the fit alone, compare."""

from __future__ import annotations

import hashlib
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plaudit.config.loader import save_config
from plaudit.config.run_config import Plan, has_stages
from plaudit.config.schema import Config, FitConfig
from plaudit.config.structured import to_dict
from plaudit.errors import CheckpointError, ConfigError, PlauditError, nearest
from plaudit.pipelines.builders import StageDir, checkpoint_of, load_run, versions
from plaudit.pipelines.compare import WORDS, compare
from plaudit.pipelines.fit import fit
from plaudit.pipelines.report import report
from plaudit.pipelines.stage_record import FOLDERS, Record, begin, key_of
from plaudit.pipelines.train import train
from plaudit.reporting.progress import duration

logger = logging.getLogger("plaudit")

ELSEWHERE = ("output_dir", "exp_name", "use_wandb", "wandb_project_name", "headless")
"""Keys of `runtime` that change nothing in what a stage makes."""

OF_ACTORS = ("actors", "num_envs", "max_idle_episodes")
"""Keys of `reward.data_collection` that are for others than a policy in training."""

OF_FIT = ("model", "training", "reward_mode", "hold")
"""Keys of `reward` that a fit reads."""

NOT_OF_TRAIN = ("data_collection", "training", "collect_data", "checkpoint_path", "debug_save_dir", "debug_images")
"""Keys of `reward` that change nothing in what a policy learns."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Attributes:
        about: What it does, in words.
        folder: Where it works.
        config: What decides what it makes, beside its inputs.
        inputs: Gives what it works on, as names for their content.
        can_go_on: Says whether there is a checkpoint in its folder.
        work: Does it, and returns what came of it.
    """

    about: str
    folder: Path
    config: Mapping[str, Any]
    inputs: Callable[[], dict[str, str]]
    can_go_on: Callable[[], bool]
    work: Callable[[], dict[str, Any]]


def run(plan: Plan, *, quiet: bool = False) -> dict[str, Any]:
    """Runs all stages in a new folder."""
    from plaudit.rl.run_dir import RunFolder

    runtime = plan.collect.runtime
    folder = RunFolder.create(runtime.output_dir, runtime.exp_name, ()).path
    return _go_on(plan, folder, (), quiet)


def resume_run(
    path: Path, overrides: Sequence[str] = (), *, redo: Sequence[str] = (), quiet: bool = False
) -> dict[str, Any]:
    """Goes on with a run: what is finished is not repeated, unless its inputs have changed or `redo` names it."""
    if not (path / "config.yaml").is_file():
        raise CheckpointError(f"'{path}' is not the folder of a run: there is no config.yaml in it.")
    if not has_stages(path / "config.yaml"):
        raise CheckpointError(
            f"'{path}' is the folder of one stage only: go on with plaudit train --resume or plaudit fit --resume."
        )
    for name in redo:
        if name not in FOLDERS:
            raise ConfigError(f"--redo {name}: there is no such stage.{nearest(name, FOLDERS)}")
    return _go_on(load_run(path / "config.yaml", overrides), path, redo, quiet)


def _go_on(plan: Plan, folder: Path, redo: Sequence[str], quiet: bool) -> dict[str, Any]:
    """All stages in their order, each if it has to be; then the report."""
    again = f"plaudit run --resume {shlex.quote(str(folder))}"
    save_config(plan.to_dict(), folder / "config.yaml", "run")
    logger.info("run folder: %s", folder)
    started, records = time.perf_counter(), {}
    try:
        for name, stage in _stages(plan, folder, again, quiet).items():
            records[name] = _carry_out(name, stage, name in redo)
            if not records[name].finished:
                return {"run": str(folder), "stage": name, "interrupted": True}
        page = report(folder, quiet=True)["report"]
    except KeyboardInterrupt:
        logger.info("stopped; go on with: %s", again)
        return {"run": str(folder), "interrupted": True}
    except PlauditError:
        logger.info("what is done is kept; once the cause is gone, go on with: %s", again)
        raise
    result = {
        "run": str(folder),
        "report": page,
        **records["compare"].result,
        "artifact_id": records["fit"].result["artifact_id"],
        "seconds": time.perf_counter() - started,
        "stages": {name: {"seconds": record.seconds, "tries": record.tries} for name, record in records.items()},
        "interrupted": False,
        "versions": versions(),
    }
    _tell(result)
    return result


def _carry_out(name: str, stage: Stage, again: bool) -> Record:
    """Does one stage, unless it is done."""
    key = key_of(stage.config, stage.inputs())
    number, count = list(FOLDERS).index(name) + 1, len(FOLDERS)
    done = Record.read(stage.folder)
    if done is not None and done.finished and done.key == key and not again:
        logger.info("[%d/%d] %s: done before, in %s.", number, count, name, duration(done.seconds))
        return done
    rest = ", ".join([*list(FOLDERS)[number:], "report"])
    logger.info("[%d/%d] %s: %s (then: %s).", number, count, name, stage.about, rest)
    record = begin(stage.folder, key, stage.can_go_on())
    started = time.perf_counter()
    result = stage.work()
    if result.get("interrupted"):
        return replace(record, result=result)
    record = replace(record, finished=True, seconds=time.perf_counter() - started, result=result)
    record.write(stage.folder)
    return record


def _stages(plan: Plan, folder: Path, again: str, quiet: bool) -> dict[str, Stage]:
    """The stages, by their names."""
    collect, fitted, trained, compared = (folder / name for name in FOLDERS.values())
    data, artifact, seed = collect / "data", fitted / "best_model", plan.train.runtime.seed
    return {
        "collect": Stage(
            "a policy learns on the env's own reward, and labelled episodes are kept",
            collect,
            _collect_keys(plan.collect),
            dict,
            (collect / "checkpoints" / "latest.pt").exists,
            lambda: train(plan.collect, quiet=quiet, place=StageDir(collect, again)),
        ),
        "fit": Stage(
            "a reward model learns from these episodes what success looks like",
            fitted,
            _fit_keys(plan.fit),
            lambda: {"data": _name_of_data(data)},
            lambda: any(fitted.glob("step_*/checkpoint.pt")),
            lambda: fit(_with_data(plan.fit, data), quiet=quiet, place=StageDir(fitted, again)),
        ),
        "train": Stage(
            "a new policy learns from scratch on that model alone",
            trained,
            _train_keys(plan.train),
            lambda: {"reward_model": _name_of_artifact(artifact)},
            (trained / "checkpoints" / "latest.pt").exists,
            lambda: train(_with_artifact(plan, data, artifact), quiet=quiet, place=StageDir(trained, again)),
        ),
        "compare": Stage(
            f"true success of all policies, {plan.episodes} fresh episodes each",
            compared,
            {"episodes": plan.episodes, "envs": [to_dict(plan.collect.env), to_dict(plan.train.env)], "seed": seed},
            lambda: {run.name: _name_of_file(checkpoint_of(run)) for run in (collect, trained)},
            lambda: False,
            lambda: compare(plan, collect, trained),
        ),
    }


def _collect_keys(config: Config) -> dict[str, Any]:
    """What decides a policy's training on the env's own reward, and what is kept of it."""
    whole = to_dict(config)
    kept = _without(whole["reward"]["data_collection"], OF_ACTORS)
    return {**whole, "runtime": _without(whole["runtime"], ELSEWHERE), "reward": kept}


def _train_keys(config: Config) -> dict[str, Any]:
    """What decides a policy's training on a reward model."""
    whole = to_dict(config)
    runtime, reward = _without(whole["runtime"], ELSEWHERE), _without(whole["reward"], NOT_OF_TRAIN)
    return {**whole, "runtime": runtime, "reward": reward}


def _fit_keys(config: FitConfig) -> dict[str, Any]:
    """What decides a fit."""
    whole = to_dict(config)
    runtime = {key: whole["runtime"][key] for key in ("seed", "cuda", "threads")}
    return {"runtime": runtime, **{key: whole["reward"][key] for key in OF_FIT}}


def _without(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _with_data(config: FitConfig, data: Path) -> FitConfig:
    training = config.reward.training
    training = replace(training, data=replace(training.data, path=str(data)))
    return replace(config, reward=replace(config.reward, training=training))


def _with_artifact(plan: Plan, data: Path, artifact: Path) -> Config:
    """The training on a reward model, which may have to be fitted further, as it was fitted before."""
    training = _with_data(plan.fit, data).reward.training
    reward = replace(plan.train.reward, training=training, checkpoint_path=str(artifact))
    return replace(plan.train, reward=reward)


def _name_of_data(path: Path) -> str:
    """Of the episodes in a store and their labels."""
    from plaudit.data import EpisodeStore

    whole = hashlib.blake2b(digest_size=16)
    for summary in EpisodeStore(path).summaries():
        whole.update(f"{summary.id} {summary.labels.tolist()}\n".encode())
    return whole.hexdigest()


def _name_of_artifact(path: Path) -> str:
    from plaudit.reward_models.artifact import read_document

    return read_document(path).id


def _name_of_file(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _tell(result: dict[str, Any]) -> None:
    """A line for each policy, and where to look."""
    for name, words in WORDS.items():
        low, high = result["bounds"][name]
        logger.info(
            "true success with %s: %.1f %% (95 %% bounds %.1f to %.1f, %d episodes)",
            words,
            100 * result["true_success"][name],
            100 * low,
            100 * high,
            result["episodes"],
        )
    logger.info("all of it took %s.", duration(result["seconds"]))
    logger.info("report: %s", result["report"])
