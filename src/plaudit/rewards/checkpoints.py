"""Checkpoints of a fit: `step_<N>/checkpoint.pt`, with seed 001's keys and what it takes to go on exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from plaudit.errors import CheckpointError, OutputError
from plaudit.files import whole_file
from plaudit.vision.pretrained import read_checkpoint

logger = logging.getLogger("plaudit")

NAME = "checkpoint.pt"

KEPT: dict[str, type] = {
    "epoch": int,
    "model_state_dict": dict,
    "optimizer_state_dict": dict,
    "train_loss": float,
    "train_acc": float,
    "reward_model": dict,
    "step": int,
    "seconds": float,
    "window": list,
    "validated": int,
    "best": dict,
    "stale": int,
    "data": str,
    "val_data": str,
}
"""What a checkpoint holds at least: seed 001's keys first. Newer ones have `hard` too, the losses of frames."""


def save_checkpoint(folder: Path, step: int, content: Mapping[str, Any], keep: int) -> Path:
    """Writes `folder/step_<step>/checkpoint.pt` as a whole, and deletes all but the `keep` newest; 0 keeps all."""
    path = folder / f"step_{step}" / NAME
    write_whole(path, content)
    if keep:
        remove_checkpoints(old for old in saved_checkpoints(folder)[:-keep] if old != path)
    return path


def remove_checkpoints(paths: Iterable[Path]) -> None:
    """Deletes checkpoints, each with its folder unless something else is in there, which is somebody's own."""
    for path in paths:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def remove_later(folder: Path, step: int) -> None:
    """Removes checkpoints of later steps than the one gone on from: what comes next would be taken for older."""
    later = saved_checkpoints(folder, after=step)
    if later:
        logger.info("going on from step %s: %d later checkpoints are removed.", f"{step:,}", len(later))
        remove_checkpoints(later)


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a torch file that is there as a whole or not at all."""
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            torch.save(dict(content), file)
    except RuntimeError as error:  # This is how torch reports a full disk.
        raise OutputError(f"cannot write the checkpoint '{path}': {error} Is the disk full?") from error


def saved_checkpoints(folder: Path, after: int = -1) -> list[Path]:
    """All checkpoints in a folder, by their steps, or only those of steps `after` one."""
    found = {path: int(_step(path)) for path in folder.glob(f"step_*/{NAME}") if _step(path).isdigit()}
    return sorted((path for path, step in found.items() if step > after), key=found.__getitem__)


def load_checkpoint(path: Path, data: str, val_data: str) -> dict[str, Any]:
    """Reads a checkpoint that `save_checkpoint` wrote; one that lacks something is a `CheckpointError`.

    Args:
        path: Where it is.
        data: Names what is learned from; a checkpoint of other data is an error too.
        val_data: Names what picks the best weights; likewise.
    """
    content = read_checkpoint(path)
    for key, kind in KEPT.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise CheckpointError(f"'{path}' is not a checkpoint that a fit can go on from: it lacks '{key}'.")
    for split, key, own in (("training", "data", data), ("validation", "val_data", val_data)):
        if content[key] != own:
            raise CheckpointError(
                f"the checkpoint '{path}' was fitted to other data: episodes, frames or labels of the {split} split "
                "have changed since. Put them back, or start anew."
            )
    checked: dict[str, Any] = content
    return checked


def _step(path: Path) -> str:
    return path.parent.name.removeprefix("step_")
