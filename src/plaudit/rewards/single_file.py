"""A fitted model as one `.pt` file with seed 001's keys, and what else scoring needs beside them.

A fit's own checkpoints are such files too, of a model that is not calibrated yet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plaudit.config.convert import fill, to_dict
from plaudit.errors import CheckpointError, PlauditError
from plaudit.rewards.artifact_files import ThresholdEntry
from plaudit.rewards.calibration import Calibration
from plaudit.rewards.checkpoints import write_whole
from plaudit.rewards.model import model_config
from plaudit.rewards.threshold import Choice
from plaudit.vision.pretrained import read_checkpoint, weights_of

logger = logging.getLogger("plaudit")

MARK = "reward_model"
"""The key under which the model's config is, which nobody else's files have."""


def save_single(path: Path, state: Mapping[str, Any], calibration: Calibration, choice: Choice) -> None:
    """Writes the file.

    Args:
        path: Where to.
        state: Seed 001's keys, and the model's config under `MARK`.
        calibration: The model's.
        choice: Its threshold.
    """
    more = {"calibration": to_dict(calibration), "threshold": to_dict(ThresholdEntry.of(choice))}
    write_whole(path, {**state, **more})


def load_single(path: Path) -> dict[str, Any] | None:
    """`config`, `weights`, `calibration` and `choice` from a file of ours; `None` where it is of another system.

    That a fit was not over when it wrote the file is worth a warning.
    """
    content = read_checkpoint(path)
    if not isinstance(content, dict) or not isinstance(content.get(MARK), dict):
        return None
    try:
        threshold = content.get("threshold")
        own = {
            "config": model_config(content[MARK], MARK),
            "weights": weights_of(content, path, bare=False),
            "calibration": fill(Calibration, content.get("calibration", {}), "calibration"),
            "choice": None if threshold is None else fill(ThresholdEntry, threshold, "threshold").choice(),
        }
    except CheckpointError:
        raise
    except PlauditError as error:
        raise CheckpointError(f"the checkpoint '{path}': {error}") from None
    if threshold is None:
        logger.warning(
            "'%s' was written before its fit was over: it has no calibration, and its threshold is 0.5 unless "
            "reward_threshold is given. Take the fit's best_model, or go on with: plaudit fit --resume %s",
            path,
            path.parent.parent,
        )
    return own
