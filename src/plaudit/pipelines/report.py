"""Write the report of a run, of a training, or of a fit."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.config.loader import read_file
from plaudit.errors import CheckpointError, OutputError, PlauditError
from plaudit.pipelines.builders import run_folder
from plaudit.pipelines.fit_results import TOLD, cells
from plaudit.pipelines.stage_record import FOLDERS, Record
from plaudit.pipelines.train import RESULT
from plaudit.reporting.learning_curves import Curve, read_curves
from plaudit.reporting.plots import Colour, Series, line_chart
from plaudit.reporting.progress import compact, duration
from plaudit.reporting.report import Picture, Rate, Report, Section, Table, timing, write_report

if TYPE_CHECKING:
    from plaudit.reward_models.artifact import Document

logger = logging.getLogger("plaudit")

AUDIT = "audit.json"
"""What an audit leaves in the folder of a training run: `mood` (good, look, bad), `summary`, `head` and `rows` of a
table, `refreshes` of the model, and `pictures`, each with its `file` in that folder, its `caption`, and `full` for one
as wide as the page."""

FIGURES = {
    "reliability": "Reliability: of the frames that the model gives a probability, so many are successes.",
    "roc": "True against false positives of single frames, at every threshold.",
    "precision_recall": "Precision and recall of single frames, at every threshold.",
    "timelines": "What the model says in the course of episodes, the worst ones first. Shaded: success, by the labels.",
    "false_positives": "Failures that the model is surest to be successes.",
    "false_negatives": "Successes that the model is surest to be failures.",
}
"""The figures of a fit, in the order of the page."""

FULL = ("timelines", "false_positives", "false_negatives")


@dataclass(frozen=True)
class TrainRun:
    """The folder of a training run."""

    folder: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its resolved config."""
        return read_file(self.folder / "config.yaml")

    @cached_property
    def result(self) -> dict[str, Any]:
        """What it ended with; nothing while it has not."""
        return read_json(self.folder / RESULT)

    @property
    def prolonged(self) -> int:
        """Steps beyond those that were asked for, because its reward model was refreshed."""
        done = self.result
        return done["steps"] // done["iterations"] * done["prolonged"] if done.get("prolonged") else 0

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """What it has logged."""
        return _curves(self.folder)

    @property
    def env(self) -> str:
        """Id of its env."""
        return str(self.config["env"]["id"])

    @property
    def learned(self) -> bool:
        """Whether it learns on a reward model."""
        return bool(self.config.get("reward", {}).get("use_reward_model"))

    @property
    def cloned(self) -> bool:
        """Whether it only does as was shown: it learns on no reward, and its steps are gradient steps."""
        return bool(self.config["algorithm"]["name"] == "bc")

    @property
    def teacher(self) -> str:
        """What it learns from."""
        return "demonstrations alone" if self.cloned else "a reward model" if self.learned else "the env's own reward"

    @property
    def counted(self) -> str:
        """What its steps are."""
        return "gradient steps" if self.cloned else "env steps"

    @property
    def alone(self) -> bool:
        """Whether it learns on a reward model and nothing else."""
        return self.learned and self.config["reward"].get("combine_mode") == "replace"

    @property
    def headline(self) -> str:
        """The metric of true success that says most."""
        name = str(self.result.get("best_metric") or "").removeprefix("model_")
        return name if name.startswith("success") else "success_once"

    @property
    def colour(self) -> Colour:
        """The same in every chart."""
        return "one" if self.learned else "three"

    def series(self, name: str, label: str, colour: Colour) -> list[Series]:
        """A metric while training, thin and behind, and by evaluations."""
        behind, front = self.curves.get(f"rollout/{name}"), self.curves.get(f"eval/{name}")
        lines = [] if behind is None else [Series(f"{label}, while exploring", *behind, colour, thin=True)]
        return lines if front is None else [*lines, Series(label, *front, colour)]


def _curves(folder: Path) -> dict[str, Curve]:
    """What a run has logged, as far as it can be read."""
    try:
        return read_curves(folder / "logs" / "metrics.jsonl")
    except (OSError, OutputError) as error:
        logger.info("no curves of %s: %s", folder, error)
        return {}


def read_json(path: Path) -> dict[str, Any]:
    """An object in a file; nothing where there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' is damaged: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{path}' is damaged: it holds no object.")
    return content


def curves_section(dense: TrainRun | None, learned: TrainRun | None) -> Section:
    """How success came about, and whether the model and the truth agree on it."""
    both = [run for run in (dense, learned) if run is not None]
    axis = both[0].counted
    truth = [line for run in both for line in run.series(run.headline, f"taught by {run.teacher}", run.colour)]
    charts = [] if dense is None else [line_chart("True success", truth, axis=axis, share=True)]
    lead = "Dots are evaluations by the policy's mean action; the thin lines are the episodes in which it explores."
    if learned is not None:
        charts.append(line_chart("Success by the model and in truth", _by_both(learned), axis=axis, share=True))
        lead += (
            " Where the model's word and the truth part, the policy has found out how to fool its teacher: a gap that"
            " grows is reward hacking."
        )
    for run in both:
        of = "learned" if run.learned else "env's own"
        lines = run.series("return", f"return of the {of} reward", run.colour)
        charts.append(line_chart(f"Return of the {of} reward, an episode", lines, axis=axis))
    return Section("learning", "Learning", lead, charts=charts)


def _by_both(run: TrainRun) -> list[Series]:
    model = run.series(f"model_{run.headline}", "the model says so", "two")
    truth = run.series(run.headline, "in truth", run.colour)
    return [*model, *truth] if model else []


def read_artifact(folder: Path) -> Document | None:
    """What an artifact says of itself; `None` where there is none, or it is damaged, which is said."""
    from plaudit.reward_models.artifact import read_document

    try:
        return read_document(folder) if folder.is_dir() else None
    except PlauditError as error:
        logger.warning("%s", error)
        return None


def model_section(fit: Path) -> Section:
    """How good the reward model of a fit is, from its artifact."""
    folder = fit / "best_model"
    document = read_artifact(folder)
    if document is None:
        return Section("model", "The reward model")
    counts = {name: split for name, split in document.data.items() if isinstance(split, dict) and "episodes" in split}
    rows = [
        [name, f"{split['episodes']:,}", f"{split['frames']:,}", f"{split['success_frames'] / split['frames']:.0%}"]
        for name, split in counts.items()
    ]
    numbers = {name: math.nan if value is None else value for name, value in document.metrics.items()}
    metrics = [[words, *cells(name, numbers)] for name, words in TOLD.items()]
    # An interval stays in one line: with signs that join, since a browser may break a line after a dash.
    metrics = [[cell.replace(" – ", "\u00a0–\u2060\u00a0") for cell in row] for row in metrics]
    choice = document.threshold
    size = "×".join(str(number) for number in document.model["image_size"][1:])
    lead = (
        f"It sees single frames of {', '.join(document.model['image_keys'])} ({size} pixels) and gives the probability "
        f"that they show success. The numbers are of {document.measured_on or 'no'} episodes, none of which it was "
        "fitted to."
    )
    if choice is not None:
        lead += (
            f" It calls a frame a success above {choice.value:.4g}, which was chosen on the validation split for false "
            f"positives in at most {100 * choice.target:.3g}% of episodes."
        )
    figures = folder / "figures"
    return Section(
        "model",
        "The reward model",
        lead,
        notes=[("look", choice.note)] if choice is not None and choice.note else [],
        charts=_fit_charts(_curves(fit)),
        tables=[
            Table([f"{document.measured_on} episodes", "value", "95% interval"], metrics),
            Table(["split", "episodes", "frames", "success"], rows),
        ],
        pictures=[
            Picture(figures / f"{name}.png", caption, full=name in FULL)
            for name, caption in FIGURES.items()
            if (figures / f"{name}.png").exists()
        ],
    )


def _fit_charts(curves: dict[str, Curve]) -> list[str]:
    """How the fit went."""

    def line(name: str, label: str, colour: Colour, thin: bool = False) -> list[Series]:
        return [Series(label, *curves[name], colour, thin)] if name in curves else []

    loss = [*line("train/loss", "training", "quiet", True), *line("val/log_loss", "validation", "two")]
    right = [
        *line("val/balanced_accuracy", "balanced accuracy", "two"),
        *line("val/recall", "successes that are recognised", "three"),
    ]
    return [
        line_chart("Loss on the validation split (thin: of what was drawn in training)", loss, axis="steps"),
        line_chart("Validation, at the threshold chosen there", right, axis="steps", share=True),
    ]


def audit_section(folder: Path) -> Section:
    """What the audit of a training run says, where there was one."""
    audit = read_json(folder / AUDIT)
    if not audit:
        return Section("audit", "Audit")
    return Section(
        "audit",
        "Audit",
        "The model's verdicts under optimisation, held against the truth, of which the policy gets nothing but what "
        "a refresh labels. Fooled: of the episodes that the model called a success, those that never were one. "
        "Missed: of those that were a success when it was asked, those that it never called one. Out of range: scores "
        "far from all that it gave in its fit.",
        notes=[(str(audit.get("mood", "look")), str(audit["summary"]))] if audit.get("summary") else [],
        tables=[
            *([Table(audit.get("head", []), audit["rows"])] if audit.get("rows") else []),
            *([_refreshes(audit["refreshes"])] if audit.get("refreshes") else []),
        ],
        pictures=[
            Picture(folder / one["file"], str(one.get("caption", "")), full=bool(one.get("full")))
            for one in audit.get("pictures", [])
            if (folder / one["file"]).exists()
        ],
    )


def _refreshes(refreshes: list[dict[str, Any]]) -> Table:
    """What each refresh cost, and what it was worth: failed episodes that the model calls a success."""

    def fooled(one: dict[str, Any]) -> str:
        return f"{one['fooled']} of {one['failures']}"

    names = ("before", "after", "held_back_before", "held_back_after")
    rows = [
        [f"v{one['version']}", f"{one['step']:,}", f"{one['episodes']}", *(fooled(one[name]) for name in names)]
        for one in refreshes
    ]
    about = ("fooled by, before", "after", "those held back, before", "after")
    return Table(["refreshed model", "at step", "episodes labelled", *about], rows)


def film_of(run: TrainRun, caption: str) -> Picture | None:
    """The film of its best policy."""
    path = run.folder / "videos" / "best.mp4"
    return Picture(path, caption, "pixels") if path.exists() else None


def strip_of(run: TrainRun, caption: str) -> list[Picture]:
    """The film strip of its best policy."""
    path = run.folder / "videos" / "best.png"
    return [Picture(path, caption, "pixels", full=True)] if path.exists() else []


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
    from plaudit.reward_models.evaluation.confidence_bounds import rate_bounds

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
