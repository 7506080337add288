"""Pictures that are varied: by how much, where, and each on its own."""

from __future__ import annotations

import torch

from plaudit.config.reward_schema import AugmentConfig
from plaudit.reward_models.training.augment import Augment

NOTHING = AugmentConfig(shift=0, zoom=0.0, brightness=0.0, contrast=0.0, colour=0.0)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradient(count: int, height: int = 8, width: int = 10) -> torch.Tensor:
    """Pictures (count, 3, height, width) in which every pixel tells where it is: red its column, green its row."""
    picture = torch.zeros(3, height, width)
    picture[0] = torch.arange(width) / 20
    picture[1] = torch.arange(height)[:, None] / 20
    return picture.expand(count, -1, -1, -1).contiguous()


def test_nothing_is_changed_where_nothing_is_asked_for() -> None:
    images = {"a": torch.rand(4, 3, 8, 8)}
    for config in (NOTHING, AugmentConfig(enabled=False)):
        assert torch.equal(Augment(config)(images, draw())["a"], images["a"])


def test_a_shift_is_whole_pixels_and_repeats_the_edge() -> None:
    images = gradient(64)
    moved = Augment(AugmentConfig(shift=2, brightness=0, contrast=0, colour=0))({"a": images}, draw())["a"] * 20
    columns, rows = moved[:, 0, 4], moved[:, 1, :, 5]
    across, down = columns[:, 5] - 5, rows[:, 4] - 4
    torch.testing.assert_close(across, across.round(), atol=1e-4, rtol=0)
    assert set(across.round().int().tolist()) == set(down.round().int().tolist()) == {-2, -1, 0, 1, 2}
    expected = (torch.arange(10) + across.round()[:, None]).clamp(0, 9)
    torch.testing.assert_close(columns, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(rows, (torch.arange(8) + down.round()[:, None]).clamp(0, 7), atol=1e-3, rtol=0)


def test_a_zoom_keeps_the_middle_and_moves_the_rest() -> None:
    images = gradient(64, 9, 9)
    seen = (
        Augment(AugmentConfig(shift=0, zoom=0.2, brightness=0, contrast=0, colour=0))({"a": images}, draw())["a"] * 20
    )
    torch.testing.assert_close(seen[:, 0, 4, 4], torch.full((64,), 4.0), atol=1e-3, rtol=0)
    scale = (seen[:, 0, 4, 6] - 4) / 2
    assert 0.8 <= scale.min() < 0.9 and 1.1 < scale.max() <= 1.2


def test_light_changes_within_its_bounds_and_stays_a_picture() -> None:
    images = torch.rand(64, 3, 6, 6)
    lit = Augment(AugmentConfig(shift=0, brightness=0.2, contrast=0, colour=0))({"a": images}, draw())["a"]
    ratio = (lit / images.clamp_min(1e-6))[images < 0.8]  # The brightest end at 1.
    assert 0.8 <= ratio.min() < 0.85 and 1.15 < ratio.max() <= 1.2 + 1e-5 and lit.max() <= 1
    gains = (lit / images)[:, :, 0, 0][images[:, :, 0, 0].amax(1) < 0.8]
    torch.testing.assert_close(gains, gains[:, :1].expand_as(gains))  # The same for all three colours.
    coloured = Augment(AugmentConfig(shift=0, brightness=0, contrast=0, colour=0.2))({"a": images / 2}, draw())["a"]
    assert (coloured / (images / 2)).mean((2, 3)).std(1).min() > 0


def test_contrast_keeps_the_mean() -> None:
    images = torch.rand(32, 3, 6, 6) * 0.4 + 0.3
    seen = Augment(AugmentConfig(shift=0, brightness=0, contrast=0.3, colour=0))({"a": images}, draw())["a"]
    torch.testing.assert_close(seen.mean((1, 2, 3)), images.mean((1, 2, 3)))
    spread = seen.std((1, 2, 3)) / images.std((1, 2, 3))
    assert 0.7 <= spread.min() < 0.8 and 1.2 < spread.max() <= 1.3001


def test_cameras_and_pictures_vary_on_their_own_and_by_the_generator() -> None:
    images = {"a": gradient(8), "b": gradient(8)}
    augment = Augment(AugmentConfig())
    first, again, other = augment(images, draw(1)), augment(images, draw(1)), augment(images, draw(2))
    assert torch.equal(first["a"], again["a"]) and not torch.equal(first["a"], other["a"])
    assert not torch.equal(first["a"], first["b"]) and not torch.equal(first["a"][0], first["a"][1])


def test_a_part_of_a_batch_is_varied_as_within_the_whole() -> None:
    images = {"a": gradient(8), "b": gradient(8)}
    augment = Augment(AugmentConfig(zoom=0.1))
    whole = augment(images, draw(1))
    part = augment({camera: some[3:6] for camera, some in images.items()}, draw(1), start=3, whole=8)
    for camera in images:
        torch.testing.assert_close(part[camera], whole[camera][3:6])
