"""Curves: what is read from a run's log, and that a picture comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plaudit.errors import OutputError
from plaudit.reporting.learning_curves import plot_curves, read_curves


def write_log(path: Path, rows: list[dict[str, Any]], tail: str = "") -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + tail)
    return path


def test_reads_what_is_there(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "a": 0.5, "b": None},
        {"step": 2, "a": 0.7},
        {"step": 2, "eval/return": 3},
    ]
    log = write_log(tmp_path / "metrics.jsonl", rows, tail='{"step": 3, "a": 0.')
    assert read_curves(log) == {"a": ([1, 2], [0.5, 0.7]), "eval/return": ([2], [3])}


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(OutputError, match="line 2"):
        read_curves(log)


@pytest.mark.parametrize("parts", [("rollout/success_once", "rollout/return"), ("train/loss",), ("eval/return",)])
def test_draws_whatever_there_is(parts: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"step": step, **dict.fromkeys(parts, step / 10)} for step in range(10)]
    plot_curves(write_log(tmp_path / "metrics.jsonl", rows), tmp_path / "figures" / "curves.png")
    picture = np.asarray(Image.open(tmp_path / "figures" / "curves.png").convert("L"))
    assert picture.shape[1] == 1100 and (picture < 200).mean() > 0.002  # Something is drawn on it.


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nothing to draw"):
        plot_curves(write_log(tmp_path / "metrics.jsonl", [{"step": 1, "other": 2}]), tmp_path / "curves.png")
