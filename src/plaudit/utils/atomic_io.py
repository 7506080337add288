"""Write files and folders atomically: each is either complete or absent."""

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
    """Yield a temporary file name that replaces `path` if the block succeeds.

    The temporary file is in the same folder as `path`. At any instant, also after a crash of the machine, `path` is the
    old file or the new one. Parent folders are created as needed. An `OSError` (disk full, no permission) becomes an
    `OutputError` that names the file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary

        # The content must be on the disk before the rename, or a crash could leave an empty file at `path`.
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        with suppress(OSError):  # Not every file system can sync a folder; the file itself is complete either way.
            _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # Usually it is gone already; if it cannot be deleted, the first error says why.
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` if the block succeeds.

    The temporary folder is beside `path`. An existing folder at `path` is replaced with all its content: old and new
    files are never mixed. If the system can swap two names (Linux), `path` is the old folder or the new one at any
    instant; on other systems there is a moment with neither.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # Left by a killed process that had the same process id.
        temporary.mkdir()
        yield temporary

        # All content must be on the disk before the rename, or a crash could leave incomplete files at `path`.
        for part in (*temporary.rglob("*"), temporary):
            if part.is_file():
                _sync(part, os.O_RDWR)
            else:
                with suppress(OSError):  # As for files: not every file system can sync a folder.
                    _sync(part, os.O_RDONLY)

        _replace_folder(temporary, path)
        with suppress(OSError):
            _sync(path.parent, os.O_RDONLY)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # It now holds the old folder, or an unfinished new one.


def _replace_folder(new: Path, path: Path) -> None:
    """Move the folder `new` to `path`; a previous folder at `path` ends up at `new`."""
    if not path.exists():
        new.rename(path)
    elif not _swap(new, path):
        aside = new.with_name(f"{new.name}.old")
        path.rename(aside)
        new.rename(path)
        aside.rename(new)


def _swap(first: Path, second: Path) -> bool:
    """Exchange the names of two folders atomically; return false if unsupported."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    at_fdcwd = -100  # Linux: paths are relative to the working directory.
    rename_exchange = 2  # Linux: swap the two names.
    return (
        rename is not None and rename(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange) == 0
    )


def _sync(path: Path, flags: int) -> None:
    """Wait until a file, or a folder's directory entries, are on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
