"""Files, and folders of them, that are either whole or not there."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plaudit.errors import OutputError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Gives a temporary name beside `path` to write to; it takes the place of `path` only if nothing went wrong.

    At any instant, also after a crash of the machine, `path` is the old file or the new one. Folders are made as
    needed. An `OSError` (no room, no permission) becomes an `OutputError` that names the file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        with suppress(OSError):  # Not every file system can sync a folder; the file itself is whole either way.
            _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # Usually it is gone already; where it cannot be, the first error says why.
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Gives a temporary folder beside `path` to fill; it takes the place of `path` only if nothing went wrong.

    What was in a folder at `path` before goes with it: old and new files are never mixed. Where the system can swap two
    names (Linux), `path` is the old folder or the new one at any instant; elsewhere there is a moment with neither.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # Left by a process that was killed, and had this number.
        temporary.mkdir()
        yield temporary
        for part in (*temporary.rglob("*"), temporary):
            if part.is_file():
                _sync(part, os.O_RDWR)
            else:
                with suppress(OSError):  # As for files: not every file system can sync a folder.
                    _sync(part, os.O_RDONLY)
        _take_place(temporary, path)
        with suppress(OSError):
            _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # By now it is the old folder, or what could not be finished.


def _take_place(new: Path, path: Path) -> None:
    """Moves the folder `new` to `path`; what was there is at `new` afterwards."""
    if not path.exists():
        new.rename(path)
    elif not _swap(new, path):
        aside = new.with_name(f"{new.name}.old")
        path.rename(aside)
        new.rename(path)
        aside.rename(new)


def _swap(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step; false where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux.
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _sync(path: Path, flags: int) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
