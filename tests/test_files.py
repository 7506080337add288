"""Files and folders are whole or not there, and as readable as any other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from plaudit.errors import OutputError
from plaudit.utils import atomic_io as files
from plaudit.utils.atomic_io import whole_file, whole_folder


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "a.txt"
    for text in ("first", "second"):
        with whole_file(path) as temporary:
            assert temporary.parent == path.parent and temporary.suffix == path.suffix
            temporary.write_text(text)
        assert path.read_text() == text and list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with whole_file(tmp_path / "ours") as temporary:
        temporary.touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_content_is_on_the_disk_before_the_name_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        events.append("folder" if os.path.samestat(os.fstat(handle), tmp_path.stat()) else "file")
        fsync(handle)

    def note_replace(*names: Any) -> None:
        events.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    with whole_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("x")
    assert events == ["file", "rename", "folder"]


def test_what_the_system_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*a\.txt: "), whole_file(tmp_path / "file" / "a.txt"):
        pass


@pytest.mark.parametrize("swaps", [True, False])
def test_a_new_folder_takes_the_place_of_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    if not swaps:
        monkeypatch.setattr(files, "_swap", lambda one, other: False)
    path = tmp_path / "new" / "folder"
    for name in ("first", "second"):
        with whole_folder(path) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / name).write_text(name)
        assert [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()] == [f"deep/{name}"]
        assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link_to_the_new_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_folder(tmp_path / "link") as temporary:
        (temporary / "a").touch()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "a").is_file()


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(RuntimeError), whole_folder(path) as temporary:
        (temporary / "half").touch()
        assert list(path.iterdir()) == [path / "old"]
        raise RuntimeError
    assert list(path.iterdir()) == [path / "old"] and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*file/a: "), whole_folder(tmp_path / "file" / "a"):
        pass
