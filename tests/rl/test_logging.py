import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from plaudit.config.schema import RuntimeConfig
from plaudit.errors import MissingDependencyError, OutputError
from plaudit.rl import RunFolder
from plaudit.rl.loggers import DELAY, Aside, Callback, JsonlLogger, TensorBoardLogger, WandbLogger, default_listeners


def test_jsonl_lines_and_numbers_that_json_has_not(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.on_metrics(10, {"train/loss": 0.5, "train/explained_variance": math.nan})
    logger.on_eval(10, {"eval/return": 1.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"step": 10, "train/loss": 0.5, "train/explained_variance": None},
        {"step": 10, "eval/return": 1.0},
    ]


def test_jsonl_forgets_what_was_logged_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.on_resume(5)
    for step in (10, 20, 30):
        logger.on_metrics(step, {"x": float(step)})
    path.write_text(path.read_text() + '{"step": 20, "x"')  # Cut short by a kill.
    logger.on_resume(20)
    logger.on_metrics(30, {"x": 3.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30]


def test_tensorboard_shows_a_resumed_run_once(tmp_path: Path) -> None:
    first = TensorBoardLogger(tmp_path)
    for step in (10, 20, 30):
        first.on_metrics(step, {"x": 1.0})
    first.close()
    second = TensorBoardLogger(tmp_path)
    second.on_resume(20)
    second.on_metrics(30, {"x": 2.0})
    second.on_eval(30, {"eval/return": 4.0})
    second.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["x", "eval/return"]
    assert 2.0 in [event.value for event in events.Scalars("x") if event.step == 30]


def test_wandb_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match="pip install wandb"):
        WandbLogger("project", RunFolder(tmp_path))


def test_default_listeners(tmp_path: Path) -> None:
    listeners = default_listeners(RunFolder.create(tmp_path, "exp"), RuntimeConfig())
    assert [type(listener) for listener in listeners] == [JsonlLogger, TensorBoardLogger]


def test_who_is_told_aside_is_told_all_in_order_by_another_thread() -> None:
    heard: list[Any] = []

    class Slow(Callback):
        def on_resume(self, step: int) -> None:
            heard.append(("resume", step))

        def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            time.sleep(0.02)
            heard.append((step, dict(metrics), threading.current_thread() is threading.main_thread()))

        def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
            heard.append(("eval", step))

        def close(self) -> None:
            heard.append("closed")

    aside = Aside([Slow()])
    aside.on_resume(1)
    for step in (2, 3):
        aside.on_metrics(step, {"loss": step / 10})
    aside.on_eval(3, {})
    aside.close()
    assert heard == [("resume", 1), (2, {"loss": 0.2}, False), (3, {"loss": 0.3}, False), ("eval", 3), "closed"]


def test_others_are_told_a_moment_later_and_do_not_fall_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now, all_told = [0.0], threading.Event()
    happened: list[tuple[str, float]] = []

    def sleep(seconds: float) -> None:
        all_told.wait(10)
        happened.append(("slept", seconds))
        now[0] += seconds

    class Ear(Callback):
        def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            happened.append(("told", step))

    monkeypatch.setattr("plaudit.rl.loggers.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    aside = Aside([Ear()])
    for step in (1, 2):
        aside.on_metrics(step, {})
    all_told.set()
    aside.close()
    assert happened == [("slept", DELAY), ("told", 1), ("slept", 0.0), ("told", 2)]


def test_what_goes_wrong_aside_is_raised(tmp_path: Path) -> None:
    aside = Aside([JsonlLogger(tmp_path / "nowhere" / "metrics.jsonl")])
    aside.on_metrics(1, {})
    with pytest.raises(OutputError, match="cannot write"):
        aside.close()
