from pathlib import Path

import pytest
import torch

from plaudit.errors import CheckpointError, ConfigError
from plaudit.rl.networks.image_encoder import FEATURES, ImageEncoder, SmallCNN, Tower
from plaudit.vision.resnet import Encoder, ResNet


def pictures(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["cnn", "resnet10"])
@pytest.mark.parametrize("size", [(64, 64), (33, 20)])
def test_every_camera_has_its_own_part_of_the_vector(kind: str, size: tuple[int, int]) -> None:
    encoder = ImageEncoder({"base": (*size, 3), "wrist": (*size, 3)}, kind)  # type: ignore[arg-type]
    obs = {name: pictures(2, *size, 3) for name in ("base", "wrist")}
    before = encoder(obs)
    assert before.shape == (2, encoder.features) == (2, 2 * FEATURES)
    changed = (encoder({**obs, "wrist": 255 - obs["wrist"]}) != before).any(0)
    assert changed[FEATURES:].all()
    assert not changed[:FEATURES].any()


class Colours(Encoder):
    """A map of one place: each colour's mean over the picture, which is remembered."""

    channels, stride = 3, 1000
    mean, std = (0.5, 0.0, 0.25), (1.0, 0.5, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x
        return x.mean((2, 3), keepdim=True)


def test_colours_reach_the_encoder_as_it_wants_them() -> None:
    net = Colours()
    Tower(net, (8, 8), frozen=False)(torch.tensor([255, 51, 102], dtype=torch.uint8).expand(4, 8, 8, 3))
    # (1 - 0.5) / 1, (0.2 - 0) / 0.5, (0.4 - 0.25) / 0.25
    torch.testing.assert_close(net.seen[0, :, 0, 0], torch.tensor([0.5, 0.4, 0.6]))


def test_channels_stay_innermost_and_pictures_as_they_are() -> None:
    net, images = Colours(), pictures(2, 8, 8, 3)
    before = images.clone()
    Tower(net, (8, 8), frozen=False)(images)
    assert net.seen.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_the_small_one_takes_any_number_of_channels_and_rounds_up() -> None:
    for channels, size in ((1, (64, 64)), (6, (33, 20))):
        net = SmallCNN(channels)
        assert net(torch.randn(2, channels, *size)).shape[2:] == net.map_size(size)
        assert ImageEncoder({"cam": (*size, channels)})({"cam": pictures(2, *size, channels)}).shape == (2, FEATURES)


def test_resnet_starts_from_a_file_and_may_stay_as_it_is(tmp_path: Path) -> None:
    source = ResNet("resnet10", norm="group")
    weights = {**source.state_dict(), "fc.weight": torch.zeros(1000, 512)}
    torch.save(weights, tmp_path / "resnet10_pretrained.pt")
    encoder = ImageEncoder({"a": (32, 32, 3), "b": (32, 32, 3)}, "resnet10", frozen=True)
    encoder.load_pretrained(tmp_path / "resnet10_pretrained.pt")
    for tower in encoder.towers:
        assert torch.equal(
            tower.net.get_parameter("layer4.0.conv2.weight"), source.get_parameter("layer4.0.conv2.weight")
        )
    learning = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert learning and all(".tail." in name for name in learning)
    encoder({"a": pictures(2, 32, 32, 3), "b": pictures(2, 32, 32, 3)}).sum().backward()
    assert all(parameter.grad is None for tower in encoder.towers for parameter in tower.net.parameters())


def test_what_a_frozen_one_makes_of_pictures_stands_for_them() -> None:
    encoder = ImageEncoder({"a": (40, 64, 3), "b": (32, 32, 3)}, "resnet10", frozen=True)
    obs = {"a": pictures(2, 40, 64, 3), "b": pictures(2, 32, 32, 3), "state": torch.zeros(2, 1)}
    digested = encoder.digest(obs)
    assert {name: part.shape for name, part in digested.items()} == {"a": (2, 2 * 2 * 512), "b": (2, 512)}
    assert {name: tower.places for name, tower in encoder.by_camera.items()} == {"a": 2048, "b": 512}
    assert torch.equal(encoder(digested), encoder(obs))
    assert encoder.digest(digested)["a"] is digested["a"]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_twin_learns_by_itself_and_shares_what_is_frozen(frozen: bool) -> None:
    encoder = ImageEncoder({"a": (16, 16, 3)}, "resnet10", frozen=frozen)
    twin = encoder.twin()
    ours, theirs = encoder.by_camera["a"], twin.by_camera["a"]
    assert (ours.net is theirs.net) == frozen
    obs = {"a": pictures(2, 16, 16, 3)}
    assert torch.equal(encoder(obs), twin(obs))
    with torch.no_grad():
        for part in ours.tail.parameters():
            part.add_(torch.randn_like(part))
    assert not torch.equal(encoder(obs), twin(obs))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    torch.save(ResNet("resnet18", width=8).state_dict(), tmp_path / "other.pt")
    encoder = ImageEncoder({"cam": (32, 32, 3)}, "resnet10")
    with pytest.raises(CheckpointError, match=r"other\.pt.*of another network"):
        encoder.load_pretrained(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        encoder.load_pretrained(tmp_path / "missing.pt")
    with pytest.raises(ConfigError, match="camera 'depth' has 1"):
        ImageEncoder({"depth": (32, 32, 1)}, "resnet10")
