"""Frames as pictures, by the name patterns of the seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_samples import SIZE, square, square_store
from PIL import Image

from plaudit.data import EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.reward_models.evaluation import prediction_images as module
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.prediction_images import DecidedPictures, pictures, write_decided, write_positives
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.training.batches import FrameFeed


def test_cameras_stand_side_by_side(tmp_path: Path) -> None:
    episode = square(0)
    both = {**episode.frames, "wrist_camera": np.ascontiguousarray(episode.frames["base_camera"][:, :10, :7])}
    store = EpisodeStore.create(tmp_path)
    store.add([replace(episode, frames=both)])
    found = pictures(FrameDataset(store), np.array([3, 1]))
    assert found.shape == (2, SIZE, SIZE + 7, 3)
    np.testing.assert_array_equal(found[0, :, :SIZE], episode.frames["base_camera"][3])
    np.testing.assert_array_equal(found[1, :10, SIZE:], episode.frames["base_camera"][1, :10, :7])
    assert not found[:, 10:, SIZE:].any()


def test_positives_are_named_after_folder_trajectory_and_frame(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([replace(square(0), id="positive-000001"), replace(square(1), id="negative-000001"), square(2)])
    assert write_positives(tmp_path / "out", FrameDataset(store)) == 8
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names[:4] == [f"positive_000001_frame{row:03d}.png" for row in range(4, 8)]
    assert names[4] == "positive_square-002_frame004.png"
    picture = np.asarray(Image.open(tmp_path / "out" / names[0]))
    np.testing.assert_array_equal(picture, square(0).frames["base_camera"][4])


def test_decided_frames_are_sorted_by_what_the_model_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameFeed(FrameDataset(square_store(tmp_path / "data", 2)))
    logits = np.linspace(-4, 4, 16, dtype=np.float32)
    episode = feed.dataset.episodes[feed.rows].astype(np.int64)
    scores = Scores(logits, feed.dataset.labels[feed.rows], episode, feed.instants)
    assert write_decided(tmp_path / "out", feed, scores, Calibration(), 0.5) == 16
    names = {folder: sorted(file.name for file in (tmp_path / "out" / folder).iterdir()) for folder in FOLDERS}
    assert names["resnet_fail"][0] == "000000_prob0.0180.png" and len(names["resnet_fail"]) == 8
    assert names["resnet_success"][-1] == "000015_prob0.9820.png" and len(names["resnet_success"]) == 8
    live = DecidedPictures(tmp_path / "live", 100)
    for row in feed.rows:
        live.write(int(row), feed.dataset.batch([row])["frames"], Calibration().probabilities(logits[[row]]), 0.5)
    assert {folder: sorted(file.name for file in (tmp_path / "live" / folder).iterdir()) for folder in FOLDERS} == names
    monkeypatch.setattr(module, "MOST_DECIDED", 4)
    assert write_decided(tmp_path / "few", feed, scores, Calibration(), 0.5) == 4
    assert sorted(file.name[:6] for file in (tmp_path / "few").rglob("*.png")) == [
        "000000",
        "000005",
        "000010",
        "000015",
    ]


FOLDERS = ("resnet_fail", "resnet_success")
