"""Write the report of a run, of a training, or of a fit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from plaudit.errors import CheckpointError
from plaudit.report.display import compact, duration
from plaudit.report.plots import Colour
from plaudit.report.report import Picture, Rate, Report, Section, timing, write_report
from plaudit.stages.common import run_folder
from plaudit.stages.ledger import FOLDERS, Record
from plaudit.stages.report_parts import (
    AUDIT,
    TrainRun,
    audit_section,
    curves_section,
    film_of,
    model_section,
    read_artifact,
    read_json,
    strip_of,
)

logger = logging.getLogger("plaudit")

TAUGHT: dict[str, tuple[str, str, Colour]] = {
    "learned_reward": ("Learned reward", "taught by the reward model", "one"),
    "dense_reward": ("Env's own reward", "the same algorithm, taught by the simulator", "three"),
    "random": ("Random actions", "what chance alone does", "quiet"),
}
"""The policies that a run compares, best story first."""

CLONED: tuple[str, str, Colour] = ("Demonstrations", "cloned, without any reward", "three")
"""The same of a policy that was taught by nobody else."""


def report(path: Path, out: Path | None = None, *, quiet: bool = False) -> dict[str, Any]:
    """Writes one web page of what a folder holds: of a whole run, or only of a training or a fit."""
    folder = run_folder(path)
    target = folder / "report.html" if out is None else out
    write_report(target, _read(folder))
    if not quiet:
        logger.info("report: %s", target)
    return {"run": str(folder), "report": str(target)}


def _read(folder: Path) -> Report:
    if any((folder / name).is_dir() for name in FOLDERS.values()):
        return _of_run(folder)
    if (folder / "checkpoints").is_dir():
        return _of_training(folder)
    if (folder / "best_model").is_dir():
        return _of_fit(folder)
    raise CheckpointError(f"'{folder}' has nothing to report yet: no stage, no checkpoint and no best_model in it.")


def _of_run(folder: Path) -> Report:
    """Of all stages that have begun."""
    records = {name: record for name, place in FOLDERS.items() if (record := Record.read(folder / place))}
    dense, learned = (_training(folder / FOLDERS[name]) for name in ("collect", "train"))
    compared = records["compare"].result if "compare" in records and records["compare"].finished else {}
    env = next((run.env for run in (learned, dense) if run is not None), "A run")
    seconds = sum(record.seconds for record in records.values())
    return Report(
        title=f"{env}, taught by pictures",
        about=f"{folder.name} · {_when(records)} · {duration(seconds)} in all",
        summary=_summary(folder, env, compared, learned),
        rates=[_rate(name, compared) for name in TAUGHT if name in compared.get("true_success", {})],
        film=None
        if learned is None
        else film_of(learned, "The policy that the learned reward has taught, on test episodes. Green: success."),
        sections=[
            curves_section(dense, learned),
            model_section(folder / FOLDERS["fit"]),
            audit_section(folder / FOLDERS["train"]),
            _data_section(folder / FOLDERS["collect"] / "data", records.get("collect")),
            _films_section(dense, learned),
            _stages_section(folder, records),
        ],
        made_by=_versions(records),
    )


def _training(folder: Path) -> TrainRun | None:
    return TrainRun(folder) if (folder / "config.yaml").exists() else None


def _rate(name: str, compared: dict[str, Any]) -> Rate:
    words, about, colour = TAUGHT[name]
    low, high = compared["bounds"][name]
    return Rate(words, about, compared["true_success"][name], low, high, compared["episodes"], colour)


def _summary(folder: Path, env: str, compared: dict[str, Any], learned: TrainRun | None) -> str:
    """What was learned, in a paragraph."""
    if not compared:
        left = [name for name, place in FOLDERS.items() if not _finished(folder / place)]
        return f"This run is not over: {', '.join(left)} still {'has' if len(left) == 1 else 'have'} to be done."
    success, episodes = compared["true_success"], compared["episodes"]
    low, high = compared["bounds"]["learned_reward"]
    audit = read_json(folder / FOLDERS["train"] / AUDIT)
    refreshed = len(audit.get("refreshes", ()))
    alone = (learned is None or learned.alone) and not refreshed
    who = "A policy that never saw the env's reward" if alone else "The policy"
    words = [
        f"{who} succeeds in {success['learned_reward']:.1%} of {episodes} fresh episodes of {env} (95% interval "
        f"{low:.1%} to {high:.1%})."
    ]
    document = read_artifact(folder / FOLDERS["fit"] / "best_model")
    if document is not None and "train" in document.data:
        right = document.metrics.get("balanced_accuracy")
        words.append(
            f"Its teacher was a model of camera pictures, fitted to {document.data['train']['episodes']:,} labelled "
            f"episodes" + (f" and right about {right:.1%} of the frames of others (balanced)." if right else ".")
        )
    if refreshed:
        more = 0 if learned is None else learned.prolonged
        words.append(
            f"It was fooled on the way, and fitted further {refreshed} time{'s' if refreshed > 1 else ''}, with the "
            f"truth about {audit['labels']['spent']} episodes"
            + (f"; training went on for {more:,} steps more." if more else ".")
        )
    gap = 100 * (success["learned_reward"] - success["dense_reward"])
    words.append(
        f"The same algorithm on the env's own reward reaches {success['dense_reward']:.1%}, {abs(gap):.1f} points "
        f"{'less' if gap > 0 else 'more'}; random actions reach {success['random']:.1%}."
    )
    return " ".join(words)


def _finished(folder: Path) -> bool:
    record = Record.read(folder)
    return record is not None and record.finished


def _when(records: dict[str, Record]) -> str:
    return next((record.started for record in records.values()), "not begun")


def _data_section(folder: Path, record: Record | None) -> Section:
    """What was collected."""
    counts = {} if record is None else record.result.get("data", {})
    sheet = folder / "contact_sheet.png"
    lead = "Kept while the first policy learned, so that what it does early and what it does late are both in it."
    if counts.get("frames"):
        share = counts["success_frames"] / counts["frames"]
        lead += (
            f" {counts['positive']:,} episodes with success and {counts['negative']:,} without; {counts['frames']:,} "
            f"frames, {share:.0%} of them of success."
        )
    caption = "Some of them. Green: the frame shows success, red: it does not, grey: nobody can tell."
    pictures = [Picture(sheet, caption, full=True)] if sheet.exists() else []
    return Section("data", "The data", lead, pictures=pictures)


def _films_section(dense: TrainRun | None, learned: TrainRun | None) -> Section:
    """Both policies at work."""
    names = {"on the learned reward": learned, "on the env's own reward": dense}
    films = [film_of(run, f"The policy {words}") for words, run in names.items() if run is not None]
    strips = [
        strip for words, run in names.items() if run is not None for strip in strip_of(run, f"One episode, {words}")
    ]
    lead = "The best checkpoint of each on test episodes. The border is green while the simulator says success."
    return Section("films", "The policies at work", lead, pictures=[*strips, *(film for film in films if film)])


def _stages_section(folder: Path, records: dict[str, Record]) -> Section:
    """When, how long, and all settings."""
    rows = [(name, record.started, record.seconds, record.tries) for name, record in records.items() if record.finished]
    texts = [
        (f"Config of {name}", path.read_text(encoding="utf-8"))
        for name, place in FOLDERS.items()
        if (path := folder / place / "config.yaml").exists()
    ]
    again = f"All of it is repeated by: plaudit run {folder.name}/config.yaml"
    return Section("stages", "Stages and settings", again, tables=[timing(rows)] if rows else [], texts=texts)


def _versions(records: dict[str, Record]) -> str:
    """Of the programs that made it, as the newest stage says."""
    known = [record.result["versions"] for record in records.values() if "versions" in record.result]
    return "Made by " + ", ".join(f"{name} {version}" for name, version in known[-1].items()) if known else ""


def _of_training(folder: Path) -> Report:
    """Of one training run."""
    run = TrainRun(folder)
    versions = run.result.get("versions", {})
    steps = run.result.get("steps")
    success = run.result.get("test", {}).get(run.headline)
    episodes = run.config["runtime"]["eval_episodes"]
    rates = [] if success is None else [_tested(run, success, episodes)]
    if success is not None:
        where = f"{episodes} fresh episodes of {run.env}"
        summary = f"A policy that was taught by {run.teacher} succeeds in {success:.1%} of {where}."
    else:
        state = f"ended after {compact(steps)} {run.counted}" if steps else "is not over"
        summary = f"A policy for {run.env}, taught by {run.teacher}; its training {state}."
    return Report(
        title=f"{run.env}, taught by {run.teacher}",
        about=f"{folder.name} · {duration(run.result.get('seconds', 0.0))} of training",
        summary=summary,
        rates=rates,
        film=film_of(run, "The best checkpoint. The border is green while the simulator says success."),
        sections=[
            curves_section(None if run.learned else run, run if run.learned else None),
            audit_section(folder),
            Section("films", "The policy at work", pictures=strip_of(run, "One test episode")),
            _settings(folder),
        ],
        made_by="Made by " + ", ".join(f"{name} {version}" for name, version in versions.items()) if versions else "",
    )


def _tested(run: TrainRun, success: float, episodes: int) -> Rate:
    from plaudit.rewards.bounds import rate_bounds

    words, about, colour = CLONED if run.cloned else TAUGHT["learned_reward" if run.learned else "dense_reward"]
    return Rate(words, about, success, *rate_bounds(round(success * episodes), episodes), episodes, colour)


def _of_fit(folder: Path) -> Report:
    """Of one fit."""
    section = model_section(folder)
    document = read_artifact(folder / "best_model")
    right = None if document is None else document.metrics.get("balanced_accuracy")
    summary = "A reward model" + (
        f", right about {right:.1%} of the frames of episodes that it has not seen (balanced)." if right else "."
    )
    made = "" if document is None else ", ".join(f"{name} {version}" for name, version in document.versions.items())
    seconds = 0.0 if document is None else document.training.get("seconds", 0.0)
    return Report(
        title="What success looks like",
        about=f"{folder.name} · {duration(seconds)} of training",
        summary=summary,
        sections=[section, _settings(folder)],
        made_by=f"Made by {made}" if made else "",
    )


def _settings(folder: Path) -> Section:
    return Section("settings", "Settings", texts=[("Config", (folder / "config.yaml").read_text(encoding="utf-8"))])
