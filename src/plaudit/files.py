"""Files that are either whole or not there."""

from __future__ import annotations

import os
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


def _sync(path: Path, flags: int) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
