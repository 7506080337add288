"""Checkpoints of other systems, made by small models with their names, must score as those models do."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plaudit.errors import CheckpointError, ConfigError
from plaudit.rewards import BinaryRewardClassifier, ResNetRewardModel, load_foreign
from plaudit.vision.resnet import ResNet

HIDDEN, BLOCKS, WIDTH = 12, 3, 8


class TheirNet(ResNet):
    """A ResNet as torchvision makes it: with a last layer, which these systems do not use or replace."""

    def __init__(self, arch: str, norm: str, fc: nn.Module, width: int = 64) -> None:
        super().__init__(arch, width=width, norm=norm)  # type: ignore[arg-type]
        self.fc = fc


class TheirPooling(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(channels, height, width, BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[..., None] * self.kernel).sum((2, 3)).flatten(1)


class TheirEncoder(nn.Module):
    def __init__(self, use_pretrain: bool, places: tuple[int, int], vector: bool) -> None:
        super().__init__()
        self.use_pretrain = use_pretrain
        self.resnet_backbone = TheirNet("resnet10", "group", nn.Linear(8 * WIDTH, 10), WIDTH)
        self.pooling_layer = TheirPooling(8 * WIDTH, *(places if use_pretrain else (1, 1)))
        if vector:
            self.mlp = nn.Sequential(nn.Linear(8 * WIDTH * BLOCKS, HIDDEN), nn.LayerNorm(HIDDEN), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.resnet_backbone(x)
        x = self.pooling_layer(x if self.use_pretrain else x.mean((2, 3), keepdim=True))
        return self.mlp(x) if hasattr(self, "mlp") else x


class TheirClassifier(nn.Module):
    """`BinaryRewardClassifier` of RLinf's workflow guides."""

    def __init__(
        self,
        cameras: tuple[str, ...] = ("base_camera",),
        *,
        use_pretrain: bool = True,
        places: tuple[int, int] = (2, 2),
        vector: bool = True,
        dropout: bool = True,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({name: TheirEncoder(use_pretrain, places, vector) for name in cameras})
        inputs = len(cameras) * (HIDDEN if vector else 8 * WIDTH * BLOCKS)
        middle = [nn.Dropout(0.1), nn.LayerNorm(HIDDEN), nn.ReLU()] if dropout else [nn.LayerNorm(HIDDEN), nn.Tanh()]
        self.classifier = nn.Sequential(nn.Linear(inputs, HIDDEN), *middle, nn.Linear(HIDDEN, 1))
        for parameter in self.parameters():  # Norms too: ones and zeros would hide that they were mixed up.
            if parameter.dim() == 1:
                nn.init.normal_(parameter, 1.0, 0.3)

    def forward(self, images: dict[str, torch.Tensor]) -> torch.Tensor:
        vectors = [encoder(images[name]) for name, encoder in self.encoders.items()]
        return self.classifier(torch.cat(vectors, -1))  # type: ignore[no-any-return]


class TheirResNet(nn.Module):
    """`ResNetRewardModel`, of RLinf today (`fc` replaced) or of RLinf's ResNet guide (a classifier beside it)."""

    def __init__(self, arch: str, hidden: int | None, classifier: bool = False) -> None:
        super().__init__()
        channels = 2048 if arch == "resnet50" else 512
        layers = [nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden or 1, 1)]
        head = nn.Linear(channels, 1) if hidden is None else nn.Sequential(nn.Linear(channels, hidden), *layers)
        if classifier:
            self.classifier = nn.Sequential(nn.Flatten(), *head, nn.Sigmoid())  # type: ignore[misc]
        norm = "group" if arch == "resnet10" else "batch"
        self.backbone = TheirNet(arch, norm, nn.Linear(channels, 1000) if classifier else head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        x = self.backbone((x - mean.view(3, 1, 1)) / std.view(3, 1, 1)).mean((2, 3))
        head = self.classifier[:-1] if hasattr(self, "classifier") else self.backbone.fc
        return head(x)  # type: ignore[no-any-return]


def save(theirs: nn.Module, path: Path) -> Path:
    """RLinf's workflow guide's checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "epoch": 7,
        "model_state_dict": theirs.state_dict(),
        "optimizer_state_dict": torch.optim.Adam(theirs.parameters()).state_dict(),
        "train_loss": 0.25,
        "train_acc": np.float64(0.9),
    }
    torch.save(content, path)
    return path


def unit(size: int, *cameras: str) -> dict[str, torch.Tensor]:
    return {name: torch.rand(4, 3, size, size) for name in cameras}


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("use_pretrain", [True, False])
@pytest.mark.parametrize("cameras", [("base_camera",), ("base_camera", "wrist_camera")])
def test_classifiers_score_as_theirs(
    tmp_path: Path, cameras: tuple[str, ...], use_pretrain: bool, dropout: bool, vector: bool
) -> None:
    theirs = TheirClassifier(cameras, use_pretrain=use_pretrain, dropout=dropout, vector=vector).eval()
    model, notes = load_foreign(save(theirs, tmp_path / "reward_model.pt"))
    assert isinstance(model, BinaryRewardClassifier)
    assert not model.training
    config = model.config
    assert (config.image_keys, config.image_size) == (cameras, (3, 64, 64))
    assert (config.hidden_dim, config.num_spatial_blocks) == (HIDDEN, BLOCKS)
    assert config.use_pretrain is use_pretrain
    assert config.pooling == ("spatial" if use_pretrain else "avg")
    assert any("0.5" in note for note in notes)
    images = unit(64, *cameras)
    torch.testing.assert_close(model(images), theirs(images), atol=1e-5, rtol=1e-4)


def test_kernels_in_hil_serl_s_order(tmp_path: Path) -> None:
    theirs = TheirClassifier(places=(2, 3)).eval()
    name = "encoders.base_camera.pooling_layer.kernel"
    state = theirs.state_dict()
    torch.save({**state, name: state[name].permute(1, 2, 0, 3)}, tmp_path / "a.pt")
    model, _ = load_foreign(tmp_path / "a.pt")
    assert model.image_size == (64, 96)
    images = {"base_camera": torch.rand(2, 3, 64, 96)}
    torch.testing.assert_close(model(images), theirs(images), atol=1e-5, rtol=1e-4)
    torch.save({**state, name: state[name][:5]}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match=r"b\.pt': the pooling kernel is \(5, 2, 3, 3\)"):
        load_foreign(tmp_path / "b.pt")


@pytest.mark.parametrize(
    ("arch", "hidden", "classifier"),
    [
        ("resnet10", 6, True),
        ("resnet18", 6, False),
        ("resnet18", None, False),
        ("resnet34", 6, False),
        ("resnet50", 6, False),
    ],
)
def test_resnets_score_as_theirs(tmp_path: Path, arch: str, hidden: int | None, classifier: bool) -> None:
    theirs = TheirResNet(arch, hidden, classifier).eval()
    state = {f"module.model.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({**state, "module._mean": torch.zeros(1, 3, 1, 1)}, tmp_path / "full_weights.pt")
    model, notes = load_foreign(tmp_path, {"image_size": [3, 32, 32], "image_keys": ["front"]})
    assert isinstance(model, ResNetRewardModel)
    assert (model.config.arch, model.config.hidden_dim) == (arch, hidden)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), theirs(images), atol=1e-5, rtol=1e-4)
    assert any("normalize is taken to be True" in note for note in notes)
    assert not any("image_size" in note or "image_keys" in note for note in notes)


def test_what_weights_do_not_tell_is_noted(tmp_path: Path) -> None:
    torch.save(TheirResNet("resnet18", 6).state_dict(), tmp_path / "best_model.pt")
    model, notes = load_foreign(tmp_path / "best_model.pt")
    assert model.cameras == ("base_camera",)
    assert model.image_size == (128, 128)
    assert "image_size is taken to be [3, 128, 128]: its weights do not tell." in notes
    assert len(notes) == 4


def test_folders(tmp_path: Path) -> None:
    for step, seed in ((900, 1), (1000, 2)):
        torch.manual_seed(seed)
        save(TheirClassifier(), tmp_path / f"run/step_{step}/checkpoint.pt")
    (tmp_path / "run/step_old").mkdir()
    newest, _ = load_foreign(tmp_path / "run/step_1000/checkpoint.pt")
    found, _ = load_foreign(tmp_path / "run")
    assert torch.equal(found.state_dict()["pooling.kernel"], newest.state_dict()["pooling.kernel"])
    older, _ = load_foreign(tmp_path / "run/step_900")
    assert not torch.equal(older.state_dict()["pooling.kernel"], newest.state_dict()["pooling.kernel"])
    best = tmp_path / "best_model/actor/model_state_dict/full_weights.pt"
    save(TheirClassifier(), best)
    load_foreign(tmp_path / "best_model")
    with pytest.raises(CheckpointError, match=r"no checkpoint in the folder '.*step_old'.*full_weights\.pt"):
        load_foreign(tmp_path / "run/step_old")
    with pytest.raises(CheckpointError, match=r"no checkpoint '.*nowhere\.pt'"):
        load_foreign(tmp_path / "nowhere.pt")


@pytest.mark.parametrize("use_pretrain", [True, False])
def test_the_checkpoint_is_right_about_use_pretrain(
    tmp_path: Path, use_pretrain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(TheirClassifier(use_pretrain=use_pretrain), tmp_path / "a.pt")
    model, notes = load_foreign(path, {"use_pretrain": not use_pretrain, "hidden_dim": HIDDEN})
    assert isinstance(model, BinaryRewardClassifier)
    assert model.config.use_pretrain is use_pretrain
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"use_pretrain is {use_pretrain}" in warnings[0].getMessage()
    assert any("use_pretrain" in note for note in notes)
    caplog.clear()
    load_foreign(path, {"use_pretrain": use_pretrain})
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hidden_dim": 256}, r"hidden_dim is 256 in the config, but 12 in the checkpoint '.*a\.pt'"),
        ({"num_spatial_blocks": 8}, "num_spatial_blocks is 8 in the config, but 3"),
        ({"image_keys": ["front"]}, r"image_keys is \['front'\] in the config, but \['base_camera'\]"),
        ({"model_type": "resnet_reward"}, "model_type is resnet_reward in the config, but binary_classifier"),
        ({"image_size": [3, 128, 128]}, r"image_size is \[3, 128, 128\] in the config.*is for \[3, 64, 64\]"),
    ],
)
def test_other_differences_are_named(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    path = save(TheirClassifier(), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=words):
        load_foreign(path, given)


def test_keys_that_agree_or_only_the_user_knows(tmp_path: Path) -> None:
    path = save(TheirClassifier(), tmp_path / "a.pt")
    given = {"image_size": (3, 50, 64), "image_keys": ["base_camera"], "freeze_encoder": False, "normalize": True}
    model, notes = load_foreign(path, given)
    assert isinstance(model, BinaryRewardClassifier)
    assert model.image_size == (50, 64)
    assert model.config.normalize
    assert not model.config.freeze_encoder
    assert len(notes) == 1
    with pytest.raises(ConfigError, match=r"reward\.model\.freeze: unknown key"):
        load_foreign(path, {"freeze": False})


def test_a_resnet_s_arch_and_cameras_are_checked(tmp_path: Path) -> None:
    torch.save(TheirResNet("resnet18", 6).state_dict(), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="arch is resnet34 in the config, but resnet18"):
        load_foreign(tmp_path / "a.pt", {"arch": "resnet34"})
    with pytest.raises(CheckpointError, match="image_keys has 2 cameras"):
        load_foreign(tmp_path / "a.pt", {"image_keys": ["a", "b"]})
    state = TheirResNet("resnet18", 6).state_dict()
    torch.save({name: value for name, value in state.items() if ".layer2.1." not in name}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match=r"stages of \(2, 1, 2, 2\) blocks with batch normalisation are none of"):
        load_foreign(tmp_path / "b.pt")


def test_unknown_or_incomplete_models_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    state = TheirClassifier().state_dict()
    torch.save(ResNet("resnet10", width=8, norm="group").state_dict(), path)
    with pytest.raises(
        CheckpointError, match=r"a\.pt' is of no reward model.*'conv1\.weight'.*pretrained_encoder_path"
    ):
        load_foreign(path)
    torch.save({**state, "extra.weight": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"a\.pt' is of another network: it has 'extra\.weight'"):
        load_foreign(path)
    for name in ("classifier.4.bias", "encoders.base_camera.pooling_layer.kernel", "encoders.base_camera.mlp.1.weight"):
        torch.save({key: value for key, value in state.items() if key != name}, path)
        with pytest.raises(CheckpointError, match=rf"a\.pt' lacks '{name}'"):
            load_foreign(path)
    for name, value in {"classifier.0.weight": torch.tensor(1.0), "classifier.0.bias": torch.zeros(3)}.items():
        torch.save({**state, name: value}, path)
        with pytest.raises(CheckpointError, match=r"a\.pt'"):
            load_foreign(path)
    two = TheirClassifier(("a", "b")).state_dict()
    torch.save({**two, "encoders.b.mlp.0.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(CheckpointError, match=r"a\.pt': its weights do not fit together"):
        load_foreign(path)
    bias = "encoders.base_camera.resnet_backbone.bn1.bias"
    torch.save({key: value for key, value in state.items() if key != bias}, path)
    with pytest.raises(CheckpointError, match=r"it lacks 'encoder\.nets\.0\.bn1\.bias'"):
        load_foreign(path)
    torch.save({**state, "classifier.0.bias": torch.full((HIDDEN,), torch.nan)}, path)
    with pytest.raises(CheckpointError, match=r"'classifier\.0\.bias' has a NaN"):
        load_foreign(path)
