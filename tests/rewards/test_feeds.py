"""What a fit reads, and reading ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fit_samples import small_model, square_splits

from plaudit.config.reward_schema import AugmentConfig
from plaudit.data.dataset import FrameDataset
from plaudit.errors import DataError
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.batches import FeatureFeed, FrameFeed, parts, read_ahead
from plaudit.reward_models.training.distributed import Alone


@pytest.fixture
def dataset(tmp_path: Path) -> FrameDataset:
    return FrameDataset(square_splits(tmp_path, 12)["train"])


def test_rows_are_in_order_and_have_a_label(dataset: FrameDataset) -> None:
    dataset.labels[3] = -1
    dataset.episodes, dataset.rows = dataset.episodes[::-1], dataset.rows[::-1]
    feed = FrameFeed(dataset)
    assert len(feed.rows) == len(dataset) - 1 and 3 not in feed.rows
    keys = list(zip(dataset.episodes[feed.rows], dataset.rows[feed.rows], strict=True))
    assert keys == sorted(keys)
    np.testing.assert_array_equal(feed.instants, dataset.rows[feed.rows] + 1)  # The squares have no reset frame.


def test_frames_go_through_the_whole_model_and_are_varied_in_training_only(dataset: FrameDataset) -> None:
    model = small_model().eval()
    feed = FrameFeed(dataset, Augment(AugmentConfig(shift=2)))
    batch = feed.read(np.arange(6))
    assert batch.labels.tolist() == [0, 0, 0, 0, 1, 1]
    with torch.no_grad():
        plain = feed.logits(model, batch)
        assert torch.equal(plain, model(dataset.batch(range(6))["frames"]))
        assert not torch.equal(plain, feed.logits(model, batch, torch.Generator().manual_seed(0)))


def test_features_are_those_of_the_rows_and_of_a_view_by_lot(dataset: FrameDataset) -> None:
    features = np.arange(len(dataset) * 3, dtype=np.float16).reshape(len(dataset), 3, 1)
    feed = FeatureFeed(dataset, features)
    rows = np.array([5, 0, 9, 5])
    plain = feed.read(rows).inputs
    assert isinstance(plain, torch.Tensor) and plain.flatten().tolist() == [15, 0, 27, 15]
    seen = set()
    for seed in range(20):
        some = feed.read(rows, np.random.default_rng(seed)).inputs
        assert isinstance(some, torch.Tensor) and (some.flatten().numpy() // 3 == rows).all()
        seen |= set((some.flatten() % 3).int().tolist())
    assert seen == {0, 1, 2}


def test_parts_of_a_batch(dataset: FrameDataset) -> None:
    batch = FrameFeed(dataset).read(np.arange(7))
    some = list(parts(batch, Alone().cuts(7, 3)))
    assert [len(part.rows) for part in some] == [3, 3, 1] and some[2].labels.tolist() == batch.labels[6:].tolist()
    assert not isinstance(some[1].inputs, torch.Tensor) and not isinstance(batch.inputs, torch.Tensor)
    assert torch.equal(some[1].inputs["base_camera"], batch.inputs["base_camera"][3:6])


def test_one_thing_is_read_ahead_by_another_thread() -> None:
    asked: list[int] = []

    def wanted() -> Iterator[int]:
        for number in range(4):
            asked.append(number)
            yield number

    reading = read_ahead(lambda number: (number, threading.current_thread()), wanted())
    assert asked == []
    first, thread = next(reading)
    assert first == 0 and thread is not threading.current_thread() and asked == [0, 1]
    assert [number for number, _ in reading] == [1, 2, 3]


def test_an_error_while_reading_comes_out_where_it_is_wanted() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise DataError("cut short")
        return number

    reading = read_ahead(read, range(5))
    assert [next(reading), next(reading)] == [0, 1]
    with pytest.raises(DataError, match="cut short"):
        next(reading)
    assert list(read_ahead(read, [])) == []
