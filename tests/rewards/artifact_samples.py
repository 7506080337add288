"""Small artifacts with known content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from score_samples import make_scores

from plaudit.data.episode import Frames
from plaudit.reward_models.artifact import RewardArtifact, Sample
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.threshold import pick_threshold
from plaudit.reward_models.model import RewardModel, build_reward_model

torch.set_num_threads(1)

SIZE = (16, 24)
MODEL: dict[str, Any] = {
    "width": 8,
    "stem": "3x3",
    "encoder_stages": 2,
    "image_size": [3, *SIZE],
    "hidden_dim": 8,
    "freeze_encoder": False,
}
CALIBRATION = Calibration(temperature=0.8, bias=-0.1)
VALIDATION = make_scores(([-2, -1, 1], [0, 0, 1]), ([-3, -2, -1.5], [0, 0, 0]), ([2, -1], [1, 0]))
TEST = make_scores(([-2, 1, 3], [0, 0, 1]), ([-3, -2], [0, 0]))


def make_model(seed: int = 0, **changes: Any) -> RewardModel:
    """A net of a few thousand weights, of which none is 0 or 1."""
    torch.manual_seed(seed)
    model = build_reward_model({**MODEL, **changes}, pretrained=False).eval()
    for value in model.state_dict().values():
        if value.dim() == 1:  # Of norms: ones and zeros would hide that they are left out.
            value.uniform_(0.5, 1.5)
    return model


def make_frames(count: int, seed: int = 0, size: tuple[int, int] = SIZE) -> Frames:
    """uint8 (count, H, W, 3): noise, of coarse grain so that pictures differ in more than detail."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, size[0] // 4, size[1] // 4, 3), np.uint8)
    return coarse.repeat(4, 1).repeat(4, 2)


def make_artifact(path: Path, model: RewardModel | None = None, **changes: Any) -> RewardArtifact:
    """An artifact with all that one can have."""
    model = model or make_model()
    frames = {camera: make_frames(12, number) for number, camera in enumerate(model.cameras)}
    about = {
        "calibration": CALIBRATION,
        "choice": pick_threshold(VALIDATION, CALIBRATION, 0.4),
        "validation": VALIDATION,
        "test": TEST,
        "sample": Sample(frames, (np.arange(12) % 2).astype(np.int8)),
        "label_sources": {"simulator": 8},
        "data": {"episodes": 5, "share": float("nan")},
        "training": {"steps": 100},
        **changes,
    }
    return RewardArtifact.create(path, model, **about)
