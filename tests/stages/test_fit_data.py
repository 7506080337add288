"""Copies of data sets in other layouts: made once, found again, and not kept for ever."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from fit_samples import square

from plaudit.config.loader import load_fit_config
from plaudit.data.formats import open_writer
from plaudit.pipelines import fit_components as fit_data


def copy_of(here: Path, name: str) -> Path:
    """The copy that a fit to the data set `name` reads."""
    if not (here / name).exists():
        open_writer(here / name, "npy").add([square(number) for number in range(12)])
    splits = fit_data.open_splits(load_fit_config(None, data=str(here / name)), here / "cache", quiet=True)
    return splits["train"].source.path


def age(copy: Path) -> None:
    """As if the copy had last been used two days ago."""
    then = time.time() - 2 * fit_data.IN_USE
    os.utime(copy / "complete", (then, then))


def test_copies_that_were_used_longest_ago_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = copy_of(tmp_path, "first"), copy_of(tmp_path, "second")
    size = sum(file.stat().st_size for file in first.rglob("*"))
    theirs = tmp_path / "cache" / "episodes" / "thesis"
    theirs.mkdir()
    for copy in (first, second, theirs):
        (copy / "complete").touch()
        age(copy)
    assert copy_of(tmp_path, "second") == second  # It is used again.
    monkeypatch.setattr(fit_data, "MOST_COPIED", size * 5 // 2)
    with caplog.at_level(logging.INFO, "plaudit"):
        third = copy_of(tmp_path, "third")
    assert [copy.exists() for copy in (first, second, third, theirs)] == [False, True, True, True]
    assert f"the copy {first} was not used for long" in caplog.text
    monkeypatch.setattr(fit_data, "MOST_COPIED", 0)
    assert copy_of(tmp_path, "first") == first and first.exists()
    assert second.exists() and third.exists()  # Other fits may be reading them.
