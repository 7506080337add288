"""What a pickle begins with, found out without loading it."""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

_OPERATIONS, _WORDS = 2000, 40


def first_words(path: Path) -> tuple[str, list[str]]:
    """The outermost container of a pickle, "list" or "dict", and the first texts in it; "" where it is neither.

    Nothing is executed, and of a large file only the beginning is read. A file of torch is a zip with a pickle in it.
    """
    container: str = ""
    words: list[str] = []
    # Whatever is wrong with the file, reading it is the place to say so.
    with suppress(Exception), _open_pickle(path) as file:
        for opcode, argument, _ in islice(pickletools.genops(file), _OPERATIONS):
            if not container and opcode.name in ("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT"):
                container = opcode.name.removeprefix("EMPTY_").lower()
            if isinstance(argument, str) and "UNICODE" in opcode.name:
                words.append(argument)
                if len(words) == _WORDS:
                    break
    return container, words


@contextmanager
def _open_pickle(path: Path) -> Iterator[IO[bytes]]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as file:
                yield file


def is_pickle_of(path: Path, container: str, *words: str) -> bool:
    """Whether a file is a pickled list or dict in whose beginning these texts occur."""
    if path.suffix not in (".pkl", ".pickle") or not path.is_file():
        return False
    found, beginning = first_words(path)
    return found == container and set(words) <= set(beginning)
