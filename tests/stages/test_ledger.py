"""What a stage's folder says of it, and what becomes of the folder when the stage begins again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plaudit.errors import DataError
from plaudit.pipelines.stage_record import NAME, Record, begin, key_of


def test_a_key_is_equal_only_where_config_and_inputs_are() -> None:
    key = key_of({"a": 1, "b": [2]}, {"data": "x"})
    assert key == key_of({"b": [2], "a": 1}, {"data": "x"})
    assert len({key, key_of({"a": 1, "b": [3]}, {"data": "x"}), key_of({"a": 1, "b": [2]}, {"data": "y"})}) == 3


def test_the_same_work_is_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "2_fit"
    first = begin(folder, "key", can_go_on=False)
    assert (first.tries, first.finished) == (1, False) and Record.read(folder) == first
    (folder / "checkpoint").touch()
    again = begin(folder, "key", can_go_on=True)
    assert again == replace(first, tries=2) and (folder / "checkpoint").exists()


@pytest.mark.parametrize(("key", "tries"), [("other", 1), ("key", 2)])
def test_what_cannot_be_gone_on_with_is_removed(tmp_path: Path, key: str, tries: int) -> None:
    folder = tmp_path / "2_fit"
    begin(folder, "key", can_go_on=False)
    (folder / "log").touch()
    assert begin(folder, key, can_go_on=False).tries == tries
    assert [path.name for path in folder.iterdir()] == [NAME] and list(tmp_path.iterdir()) == [folder]


def test_a_checkpoint_of_other_work_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "2_fit"
    begin(folder, "key", can_go_on=False)
    (folder / "checkpoint").touch()
    begin(folder, "other", can_go_on=True)
    assert (tmp_path / "2_fit.old1" / "checkpoint").exists() and not (folder / "checkpoint").exists()


def test_what_was_finished_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "2_fit"
    for number in (1, 2):
        done = replace(begin(folder, "key", can_go_on=False), finished=True, result={"number": number})
        done.write(folder)
    begin(folder, "key", can_go_on=True)
    kept = [Record.read(tmp_path / f"2_fit.old{number}") for number in (1, 2)]
    assert [record.result for record in kept if record is not None] == [{"number": 1}, {"number": 2}]


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(DataError, match=r"stage\.json' is damaged"):
        Record.read(tmp_path)
    assert Record.read(tmp_path / "nothing") is None
