"""What an audit leaves behind: `audit.json` in the run's folder, for the report and for scripts, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.config.reward_schema import AuditConfig
from plaudit.pipelines.report import AUDIT
from plaudit.reporting.contact_sheet import BAD, GOOD, UNSURE, Strip, Tile, write_sheet
from plaudit.rewards.audit.audit import Alarm, AuditCounts
from plaudit.rewards.audit.frame_recorder import Followed, Watched
from plaudit.utils.atomic_io import whole_file

HEAD = ("", "model", "called a success", "success in truth", "agreement", "fooled", "early", "missed", "out of range")
SHOWN = ("claimed", "true_success", "agreement", "fooled", "early", "missed", "out_of_range")
"""Shares in the table, in the order of its columns."""

MOST_ROWS = 20
"""Evaluations in the table, at most, spread over all."""

TILES = 16
"""Pictures of one kind in a sheet, at most."""


class AuditRecord:
    """What happened so far.

    Args:
        folder: The run's.
        settings: The audit's.

    Attributes:
        path: Of `audit.json`.
        sheet: Of the pictures of the present model's worst mistakes.
    """

    def __init__(self, folder: Path, settings: AuditConfig) -> None:
        self.folder, self.settings = folder, settings
        self.path, self.sheet = folder / AUDIT, folder / "audit" / "worst.png"
        self.evaluations: list[dict[str, Any]] = []
        self.alarms: list[dict[str, Any]] = []
        self.refreshes: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.test: dict[str, Any] = {}

    def evaluated(self, step: int, version: int, tally: AuditCounts) -> None:
        """An evaluation is over."""
        self.evaluations.append({"step": step, "version": version, **_numbers(tally)})

    def tested(self, version: int, tally: AuditCounts) -> None:
        """The test of the best policy is over."""
        self.test = {"version": version, **_numbers(tally)}

    def alarm(self, step: int, version: int, alarm: Alarm) -> None:
        """There was an alarm."""
        self.alarms.append({"step": step, "version": version, "reason": alarm.reason, "message": alarm.message})

    def refreshed(self, what: Mapping[str, Any]) -> None:
        """There is another model."""
        self.refreshes.append(dict(what))

    def failed(self, step: int, why: str) -> None:
        """There should be another model, and it was of no use."""
        self.failures.append({"step": step, "why": why})

    def pictures_of(self, version: int, fooled: Sequence[Watched]) -> None:
        """Keeps pictures of what fooled a model that is about to be replaced."""
        strips = [Strip(f"What version {version} called a success, and never was one", _tiles(fooled))]
        if fooled:
            write_sheet(self.folder / "audit" / f"fooled_v{version}.png", strips)

    def write(self, version: int, window: AuditCounts, followed: Followed, labels: int) -> None:
        """Writes `audit.json` and the pictures of the present model's worst mistakes."""
        missed = [one for one in followed.telling() if one.true and not one.claimed]
        strips = [
            Strip("Fooled: called a success, and never was one", _tiles(followed.worst())),
            Strip("Missed: a success that was never called one", _tiles(missed)),
        ]
        if any(strip.tiles for strip in strips):
            write_sheet(self.sheet, strips)
        mood, summary = self._words(window, labels)
        content = {
            "mood": mood,
            "summary": summary,
            "head": HEAD,
            "rows": self._rows(version, window),
            "pictures": self._pictures(),
            "window": {"version": version, **_numbers(window)},
            "evaluations": self.evaluations,
            "test": self.test,
            "alarms": self.alarms,
            "refreshes": self.refreshes,
            "failed_refreshes": self.failures,
            "labels": {"spent": labels, "budget": self.settings.max_labels},
        }
        with whole_file(self.path) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _rows(self, version: int, window: AuditCounts) -> list[list[str]]:
        """Of the table: evaluations, the training episodes that an alarm looks at, and the test."""
        some = np.unique(np.linspace(0, len(self.evaluations) - 1, MOST_ROWS).round().astype(int))
        chosen = [self.evaluations[number] for number in some] if self.evaluations else []
        rows = [_row(f"evaluation at {one['step']:,} steps", one) for one in chosen]
        if window.episodes:
            rows.append(_row(f"last {window.episodes} training episodes", {"version": version, **_numbers(window)}))
        return [*rows, _row("test of the best policy", self.test)] if self.test else rows

    def _pictures(self) -> list[dict[str, Any]]:
        """What there is to look at, newest last."""
        found = [
            (
                f"audit/fooled_v{one['version'] - 1}.png",
                f"What version {one['version'] - 1} of the model took for successes until step {one['step']:,}, the "
                "surest first; the truth labelled them, and version "
                f"{one['version']} was fitted to them too. Below each: the model's score, as a logit.",
            )
            for one in self.refreshes
        ]
        found.append(
            (
                str(self.sheet.relative_to(self.folder)),
                "The model's mistakes in training episodes, the surest first. Below each: its score, as a logit.",
            )
        )
        return [
            {"file": file, "caption": words, "full": True} for file, words in found if (self.folder / file).exists()
        ]

    def _words(self, window: AuditCounts, labels: int) -> tuple[str, str]:
        """How it went, in a word and in a few sentences."""
        last = self.test or (self.evaluations[-1] if self.evaluations else _numbers(window))
        told = last["counts"]["told"]
        if not last["counts"]["episodes"]:
            return "look", "No episode has ended yet."
        if not told:
            words = "There is no ground truth here to hold the model's word against."
            if (self.folder / "audit" / "to_label").exists():
                words += " Episodes that a person can label are in audit/to_label."
            return ("bad" if self.alarms else "look"), " ".join([words, *self._about_alarms(labels)])
        now = (
            f"{'In the test' if self.test else 'At last'} the model called {last['claimed']:.0%} of {told} "
            f"episodes a success, and {last['true_success']:.0%} were one."
        )
        if not self.alarms:
            many = last["counts"]["claims"] >= self.settings.min_claims
            return ("look" if many and last["fooled"] > self.settings.max_fooled else "good"), f"No alarm. {now}"
        # Whether the last word on the model was an alarm, or another model after it.
        mended = any(one["step"] >= self.alarms[-1]["step"] for one in self.refreshes)
        return ("look" if mended else "bad"), " ".join([*self._about_alarms(labels), now])

    def _about_alarms(self, labels: int) -> list[str]:
        said = []
        if self.alarms:
            first, more = self.alarms[0], len(self.alarms) - 1
            rest = "" if not more else " One more alarm followed." if more == 1 else f" {more} more alarms followed."
            said.append(f"Alarm at step {first['step']:,}: {first['message']}.{rest}")
        if self.refreshes:
            times = "once" if len(self.refreshes) == 1 else f"{len(self.refreshes)} times"
            said.append(
                f"The model was refreshed {times}, which took the truth about {labels} episodes, of "
                f"{self.settings.max_labels} that it may take."
            )
        return said

    def state_dict(self) -> dict[str, Any]:
        """What happened so far, as plain values."""
        names = ("evaluations", "alarms", "refreshes", "failures")
        return {name: json.dumps(getattr(self, name)) for name in names}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Puts back what `state_dict` gave."""
        for name, text in state.items():
            setattr(self, name, json.loads(text))


def _numbers(tally: AuditCounts) -> dict[str, Any]:
    """What is logged, and the `counts` that it comes from."""
    counts = {name: value for name, value in asdict(tally).items() if not math.isnan(value)}
    return {**{name.removeprefix("audit/"): value for name, value in tally.metrics.items()}, "counts": counts}


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    shares = [f"{one[key]:.1%}" if key in one else "" for key in SHOWN]
    return [name, f"v{one['version']}", *shares]


def _tiles(episodes: Sequence[Watched]) -> list[Tile]:
    """Of each episode the moment that the model was surest of; a green border is a success in truth, a red one none."""
    colours = {True: GOOD, False: BAD, None: UNSURE}
    return [
        Tile(
            np.concatenate(list(one.worst.frames.values()), axis=1),
            (f"{one.worst.logit:+.1f}, step {one.worst.instant}",),
            colours[one.true],
        )
        for one in episodes[:TILES]
    ]
