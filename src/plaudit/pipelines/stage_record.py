"""What each stage of a run has done, from what, and whether that still holds: `stage.json` in the stage's folder."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plaudit.errors import DataError
from plaudit.utils.atomic_io import whole_file

logger = logging.getLogger("plaudit")

NAME = "stage.json"

FOLDERS = {"collect": "1_collect", "fit": "2_fit", "train": "3_train", "compare": "4_compare"}
"""The stages in their order, and where each works in the run's folder."""


@dataclass(frozen=True)
class Record:
    """What is known of a stage.

    Attributes:
        key: Names its config and its inputs, by their content.
        finished: Whether it has ended well.
        started: When it first began, in local time.
        seconds: How long the last try took, once it has ended.
        tries: How often it was begun: more than once where it was stopped or killed.
        result: What it ended with.
    """

    key: str
    finished: bool = False
    started: str = ""
    seconds: float = 0.0
    tries: int = 1
    result: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """The record in a stage's folder; `None` where there is none."""
        path = folder / NAME
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"'{path}' is damaged ({error}). Delete it, and the stage is done anew.") from error

    def write(self, folder: Path) -> None:
        """Puts the record into a stage's folder, whole."""
        with whole_file(folder / NAME) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2, default=str) + "\n", encoding="utf-8")


def key_of(config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """A name for what a stage does, equal only where it does the same to the same.

    Args:
        config: Plain values.
        inputs: What it works on to a name for its content.
    """
    whole = json.dumps({"config": config, "inputs": inputs}, sort_keys=True, default=str)
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()


def begin(folder: Path, key: str, can_go_on: bool) -> Record:
    """Notes that a stage begins. What is there is gone on with if it is the same work; else it is out of the way.

    Args:
        folder: The stage's.
        key: What it does now.
        can_go_on: Whether there is a checkpoint to go on from.
    """
    old = Record.read(folder)
    same = old is not None and old.key == key and not old.finished
    if old is not None and same and can_go_on:
        record = Record(key, started=old.started, tries=old.tries + 1)
    else:
        _clear(folder, keep=can_go_on or (old is not None and old.finished))
        tries = old.tries + 1 if old is not None and same else 1
        record = Record(key, started=f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}", tries=tries)
    record.write(folder)
    return record


def _clear(folder: Path, keep: bool) -> None:
    """Removes a folder, or where something was learned in it gives it another name: it may have cost hours."""
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    folder.rename(aside)
    logger.info("what this stage made before is kept in %s.", aside)
