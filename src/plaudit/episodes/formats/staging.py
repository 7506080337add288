"""Files and folders in the making, under names that say who makes them.

`plaudit.files.whole_file` names only the process. Folders of episodes are shared between machines and containers, which
have the same numbers for different processes: without the machine's name one would sweep away what another is writing.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from plaudit.errors import OutputError

HERE = re.sub("[^A-Za-z0-9]+", "-", socket.gethostname())
"""This machine, as a part of a file's name."""

_UNFINISHED = re.compile(r"\..+\.([A-Za-z0-9-]*)\.(\d+)\.part")


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside `path` for a file or a folder; it becomes `path` only if nothing went wrong.

    All of it is on the disk when this returns. A file takes the place of an older one, a folder only a free one.
    """
    temporary = path.with_name(f".{path.name}.{HERE}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for part in (*temporary.rglob("*"), temporary):
            _sync(part)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:  # Gone already, unless something went wrong; where it cannot be removed, the first error says why.
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_left_over(name: str) -> bool:
    """Whether a name is one of `staged`, of a process of this machine that is no more."""
    found = _UNFINISHED.fullmatch(name)
    return found is not None and found[1] == HERE and not Path(f"/proc/{found[2]}").exists()


def _sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        with suppress(OSError) if is_folder else nullcontext():  # Not every file system can sync a folder.
            os.fsync(handle)
    finally:
        os.close(handle)
