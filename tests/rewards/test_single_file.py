"""One file with the weights: loads with the threshold it was given, and says what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fit_samples import small_model
from score_samples import make_scores
from torch import nn

from plaudit.config.structured import to_dict
from plaudit.errors import CheckpointError
from plaudit.reward_models.artifact import RewardArtifact, load_single, save_single
from plaudit.reward_models.config import RewardModelConfig
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.threshold import pick_threshold
from plaudit.reward_models.model import REWARD_MODELS, RewardModel, build_reward_model, register_reward_model

CALIBRATION = Calibration(1.5, -0.25)
CHOICE = pick_threshold(make_scores(([-2, 1, 3], [0, 0, 1]), ([-1, 0, 2], [0, 1, 1])), CALIBRATION, 0.1)


def state() -> dict[str, Any]:
    model = small_model()
    workflow_guide = {"epoch": 3, "optimizer_state_dict": {}, "train_loss": 0.1, "train_acc": 0.9}
    return {**workflow_guide, "model_state_dict": model.state_dict(), "reward_model": to_dict(model.config)}


def test_it_is_the_same_model_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "reward_model.pt"
    save_single(path, state(), CALIBRATION, CHOICE)
    artifact = RewardArtifact.load(path, {"width": 8})
    assert artifact.calibration == CALIBRATION and artifact.choice == CHOICE and artifact.path == path
    frames = torch.randint(0, 256, (2, 20, 20, 3), dtype=torch.uint8)
    assert torch.equal(artifact.model()(frames), small_model().eval()(frames))
    with pytest.raises(CheckpointError, match="width is 16 in the config, but 8"):
        RewardArtifact.load(path, {"width": 16})


def test_a_checkpoint_of_a_fit_has_no_threshold_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "step_7" / "checkpoint.pt"
    path.parent.mkdir()
    torch.save(state(), path)
    for place in (path, tmp_path):
        artifact = RewardArtifact.load(place)
        assert artifact.choice is None and artifact.decision.threshold == 0.5
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING and "before its fit was over" in warning.getMessage()
        assert warning.getMessage().endswith(f"plaudit fit --resume {tmp_path}")
        caplog.clear()


class Colour(RewardModel):
    """A user's own model, of which a part is named as trainers name the whole."""

    config: RewardModelConfig

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__(config, nn.AdaptiveAvgPool2d(1))
        self.model = nn.Linear(3, 1)

    def encode(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        pooled: torch.Tensor = self.encoder(images[self.cameras[0]])
        return pooled.flatten(1)

    def decide(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(features)
        return logits


def test_names_that_look_wrapped_are_the_model_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REWARD_MODELS, "_entries", dict(REWARD_MODELS._entries))
    register_reward_model("colour")(Colour)
    model = build_reward_model({"model_type": "colour"})
    save_single(
        tmp_path / "mine.pt",
        {"model_state_dict": model.state_dict(), "reward_model": to_dict(model.config)},
        CALIBRATION,
        CHOICE,
    )
    weights = RewardArtifact.load(tmp_path / "mine.pt").model().state_dict()
    assert list(weights) == ["model.weight", "model.bias"]
    assert torch.equal(weights["model.weight"], model.state_dict()["model.weight"])


def test_files_of_others_are_left_to_others(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {"encoders.x": torch.ones(1)}}, tmp_path / "theirs.pt")
    assert load_single(tmp_path / "theirs.pt") is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("reward_model", {"model_type": "none"}, "unknown reward model 'none'"),
        ("calibration", {"temperatur": 1.0}, "calibration.temperatur: unknown key"),
        ("threshold", {"value": 0.5}, "threshold.hold: missing"),
        ("model_state_dict", {"w": torch.tensor([float("nan")])}, "NaN"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, key: str, value: Any, message: str) -> None:
    path = tmp_path / "mine.pt"
    torch.save({**state(), key: value}, path)
    with pytest.raises(CheckpointError, match=message) as error:
        load_single(path)
    assert str(path) in str(error.value)
