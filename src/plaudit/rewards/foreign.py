"""Reward models that other systems trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plaudit.errors import CheckpointError
from plaudit.rewards.layouts import STRIDE, Found, read_layout
from plaudit.rewards.model import RewardModel, build_reward_model
from plaudit.vision.pretrained import load_weights, read_checkpoint, weights_of

logger = logging.getLogger("plaudit")

FILES = (
    "full_weights.pt",
    "model_state_dict/full_weights.pt",
    "actor/model_state_dict/full_weights.pt",
    "checkpoint.pt",
    "best_model.pt",
    "reward_model_best.pt",
)
"""Where a checkpoint is in its folder."""

BUFFERS = ("mean", "std", "_mean", "_std")
"""The normalisation of colours, which some versions saved."""

OVERRULED = ("use_pretrain", "pooling")
"""Keys in which the checkpoint is right where it and the config differ, as seed 001 has it."""


def load_foreign(path: str | Path, given: Mapping[str, Any] | None = None) -> tuple[RewardModel, list[str]]:
    """Loads a reward model that another system trained.

    Args:
        path: The file, or the folder that it is in.
        given: Keys of `reward.model` that the user wrote. What the weights tell must agree with them, except
            `use_pretrain`, in which the weights win with a warning; what the weights do not tell is taken from here.

    Returns:
        The model, in evaluation mode, and what its user should know of it.
    """
    path = find_checkpoint(Path(path))
    weights = weights_of(read_checkpoint(path), path)
    found = read_layout({name: value for name, value in weights.items() if name not in BUFFERS}, path)
    config, notes = reconcile(found, dict(given or {}), path)
    model = build_reward_model(config, pretrained=False)
    load_weights(model, found.weights, path)
    return model.eval(), notes


def find_checkpoint(path: Path) -> Path:
    """The file itself, the known one in a folder, or that of the folder's last step."""
    if not path.is_dir():
        return path
    steps = [file for file in path.glob("step_*/checkpoint.pt") if file.parent.name.removeprefix("step_").isdigit()]
    steps.sort(key=lambda file: int(file.parent.name.removeprefix("step_")), reverse=True)
    found = [path / name for name in FILES if (path / name).is_file()] + steps
    if not found:
        raise CheckpointError(
            f"there is no checkpoint in the folder '{path}': looked for {', '.join(FILES)} and step_N/checkpoint.pt."
        )
    return found[0]


def reconcile(found: Found, given: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """One config from what the weights tell and what the user gave, and notes on what neither did."""
    notes = ["It has no calibration: its threshold is 0.5 unless reward_threshold is given."]
    for key, value in found.told.items():
        wanted = given.get(key, value)
        if _plain(wanted) == _plain(value):
            continue
        if key not in OVERRULED:
            raise CheckpointError(
                f"{key} is {_plain(wanted)} in the config, but {_plain(value)} in the checkpoint '{path}'. Set it to "
                "that, or leave it out."
            )
        notes.append(f"{key} is {value}, as the shape of its pooling kernel shows, and not {wanted} as in the config.")
        logger.warning("%s: %s", path, notes[-1])
    _check_cameras(found, given, path)
    guesses = {key: value for key, value in found.guessed.items() if key not in given}
    notes += [f"{key} is taken to be {_plain(value)}: its weights do not tell." for key, value in guesses.items()]
    return {**guesses, **given, **found.told}, notes


def _check_cameras(found: Found, given: dict[str, Any], path: Path) -> None:
    """Whether as many cameras, and as many pixels, are asked for as the weights are for."""
    cameras = given.get("image_keys", ())
    if "image_keys" not in found.told and len(cameras) > 1:
        raise CheckpointError(f"image_keys has {len(cameras)} cameras, but the checkpoint '{path}' is for one.")
    size = given.get("image_size")
    if size is None or found.map_size is None:
        return
    if tuple(-(-pixels // STRIDE) for pixels in size[1:]) != found.map_size:
        fitting = [3, *(places * STRIDE for places in found.map_size)]
        raise CheckpointError(
            f"image_size is {_plain(size)} in the config, but the checkpoint '{path}' is for {fitting}, or up to "
            f"{STRIDE - 1} pixels less each way."
        )


def _plain(value: Any) -> Any:
    """Tuples as lists, so that values from files and ours compare."""
    return list(value) if isinstance(value, tuple) else value
