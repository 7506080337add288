"""Exported graphs on the disk, so that an artifact is exported once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Callable
from pathlib import Path

from plaudit.errors import OutputError
from plaudit.reward_models.artifact import DOCUMENT, RewardArtifact, hash_of
from plaudit.utils.atomic_io import whole_file

logger = logging.getLogger("plaudit")

VERSION = 1
"""Of how graphs are made. A change there needs a new number here, or old graphs will be used."""

FOLDER = ".cache"
KEPT = 16
"""Graphs in a folder; beyond that, those that were written first are deleted."""


def cached_graph(artifact: RewardArtifact, kind: str, make: Callable[[], bytes]) -> bytes:
    """A graph of an artifact: the one on the disk if it is of this very model and these versions, or a new one.

    It is kept in the artifact's folder, or under `~/.cache/plaudit` where that cannot be written to. Its name says what
    it was made from and ends with a hash of its content, so that what is stale or damaged is never used.

    Args:
        artifact: Whose.
        kind: `onnx`, or another name for another graph of the same model.
        make: Makes a new one.
    """
    packages = ("torch", "onnx", "onnxscript", "onnxruntime")
    versions = {name: importlib.metadata.version(name) for name in packages}
    key = hash_of({"model": artifact.model_id, "version": VERSION, "versions": versions})
    folders = [*_own(artifact), user_cache() / "graphs"]
    for folder in folders:
        for file in sorted(folder.glob(f"{kind}-{key}.*.onnx")):
            content = _read(file)
            if content is not None:
                return content
    content = make()
    _keep(folders, f"{kind}-{key}.{_digest(content)}.onnx", content)
    return content


def user_cache() -> Path:
    """Where a user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plaudit"


def _own(artifact: RewardArtifact) -> list[Path]:
    """In the artifact's folder; a folder of another system stays as it is."""
    path = artifact.path
    return [path / FOLDER] if path is not None and (path / DOCUMENT).exists() else []


def _read(file: Path) -> bytes | None:
    try:
        content = file.read_bytes()
    except OSError as error:
        logger.warning("%s: cannot be read (%s); exporting the reward model again.", file, error.strerror)
        return None
    if _digest(content) == file.name.split(".")[-2]:
        return content
    logger.warning("%s: is damaged; exporting the reward model again.", file)
    return None


def _keep(folders: list[Path], name: str, content: bytes) -> None:
    """Writes to the first folder that takes it."""
    problems = []
    for folder in folders:
        try:
            with whole_file(folder / name) as temporary:
                temporary.write_bytes(content)
            for old in sorted(folder.glob("*.onnx"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
                old.unlink(missing_ok=True)
        except (OutputError, OSError) as error:
            problems.append(str(error))
        else:
            return
    logger.warning("the exported graph cannot be kept, and is made anew each time: %s", " ".join(problems))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
