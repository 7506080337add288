from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fit_samples import MODEL, SETTINGS, square_splits
from learned_samples import brightness, manager, pictures

from plaudit.compat.rlinf_worker import RewardWorker
from plaudit.config.reward_schema import RewardConfig
from plaudit.data.dataset import FrameDataset
from plaudit.envs.base import Reading
from plaudit.errors import CheckpointError, DataError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.batches import FrameFeed

torch.set_num_threads(1)


def test_a_worker_serves_the_pipeline(tmp_path: Path) -> None:
    brightness().save(tmp_path / "model")
    config = RewardConfig(checkpoint_path=str(tmp_path / "model"), hold=2, backend="torch", guards=("place < 1",))
    worker = RewardWorker(config, readings={"place": Reading(0)})
    with pytest.raises(CheckpointError, match=r"no reward model yet: call init_worker\(\)"):
        worker.compute_batch_rewards(pictures([0]))
    worker.init_worker()
    flat = {"main_images": pictures([-1, 1, 1]), "states": torch.tensor([[0.0], [0.0], [2.0]])}
    assert worker.compute_batch_rewards(flat).tolist() == [0.0, 1.0, 0.0]
    # Two rollouts of two steps of two envs: with a hold of two, the second step of a success counts.
    done = torch.tensor([[False, False], [False, True]])
    rollout = {"base_camera": pictures([[1.0, 1.0], [1.0, 1.0]]), "state": torch.zeros(2, 2, 1)}
    assert worker.compute_rewards(rollout, done).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert worker.compute_rewards(rollout, done).tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_only_ended_episodes_are_scored_at_their_end(tmp_path: Path) -> None:
    brightness().save(tmp_path / "model")
    config = RewardConfig(
        checkpoint_path=str(tmp_path / "model"), reward_mode="terminal", backend="torch", combine_mode="add"
    )
    worker = RewardWorker(config)
    worker.init_worker()
    done = torch.tensor([[False, False], [False, True]])
    rollout = {"base_camera": pictures([[1.0, 1.0], [1.0, 1.0]])}
    assert worker.compute_rewards(rollout, done, torch.full((2, 2), 0.5)).tolist() == [[0.5, 0.5], [0.5, 1.5]]
    assert worker.manager.scored == 1
    with pytest.raises(DataError, match="combine_mode 'add' needs the env's own reward"):
        worker.compute_rewards(rollout, done)


def test_a_worker_fits_what_it_then_rewards_by(tmp_path: Path) -> None:
    splits = square_splits(tmp_path / "squares", 40)
    feeds = [FrameFeed(FrameDataset(splits[name]), Augment(SETTINGS.augment)) for name in ("train", "val")]
    config = RewardConfig(model=MODEL, training=replace(SETTINGS, num_epochs=4), backend="torch")
    worker = RewardWorker(config)
    worker.init_worker()
    first = worker.fit(feeds[0], feeds[1])
    assert first.metrics["roc_auc"] > 0.9 and first.choice is not None
    saved = worker.save_checkpoint(tmp_path / "saved", 7)
    assert saved == tmp_path / "saved" / "step_7"
    assert RewardArtifact.load(saved).id == first.id
    again = worker.fit(feeds[0], feeds[1], seed=1)
    assert again.id != first.id and worker.manager.artifact is again
    frames = torch.from_numpy(splits["val"].source[0].frames["base_camera"].copy())
    assert worker.compute_batch_rewards(frames).shape == (8,)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(CheckpointError, match="no reward artifact and no checkpoint at 'nowhere'"):
        RewardWorker(RewardConfig(checkpoint_path="nowhere")).init_worker()
    assert manager().artifact.path is None
