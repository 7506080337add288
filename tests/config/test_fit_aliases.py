"""What a fit is told in the dialects of the seeds, as printed there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from plaudit.config.loader import load_config, load_fit_config, save_config
from plaudit.config.schema import FitConfig
from plaudit.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"
GUIDES = Path(__file__).parents[1] / "guides"


def test_resnet_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_PATH", "/robots")
    config = load_fit_config(GUIDES / "resnet_reward/05_fit.yaml", ["reward_training.epochs=7"])
    keys = config.reward.training
    assert keys.data.path == "/robots/data" and keys.save_dir == "/robots/../../logs/reward_checkpoints"
    assert keys.output_checkpoint == "/robots/../../logs/reward_checkpoints/reward_model_best.pt"
    assert (keys.num_epochs, keys.micro_batch_size, keys.global_batch_size, keys.optim.lr) == (7, 64, 64, 1e-4)


def test_hydra_guide(caplog: pytest.LogCaptureFixture) -> None:
    overrides = ["reward.gpu_id=1", "reward.global_batch_size=64", "reward.num_epochs=50", "reward.save_interval=500"]
    with caplog.at_level(logging.WARNING, "plaudit"):
        config = load_fit_config(GUIDES / "workflow_config/04_fit.yaml", overrides)
    keys = config.reward.training
    assert (keys.gpu_id, keys.global_batch_size, keys.num_epochs, keys.save_interval) == (1, 64, 50, 500)
    assert (keys.log_interval, keys.optim.optimizer, keys.optim.lr, keys.optim.clip_grad) == (100, "adam", 1e-4, 1.0)
    assert keys.data.positive_dir == "./reward_data/positive" and keys.data.negative_dir == "./reward_data/negative"
    assert keys.save_dir == "../results/reward-model-training/checkpoints"
    assert (config.runtime.output_dir, config.runtime.exp_name) == ("../results", "reward-model-training")
    assert config.reward.model["model_type"] == "binary_classifier" and config.reward.model["freeze_encoder"] is True
    lines = [record.getMessage() for record in caplog.records]
    assert "command line: 'reward.gpu_id' is read as 'reward.training.gpu_id'." in lines
    assert any(line.endswith("'reward.data.num_workers' is not used.") for line in lines)


def test_hydra_guide_schedules_and_cameras() -> None:
    words = ["reward.lr_sched.type=linear", "reward.lr_sched.warmup_steps=9", "reward.data.image_key=wrist"]
    config = load_fit_config(None, words)
    assert config.reward.training.optim.lr_schedule == "linear" and config.reward.training.optim.warmup_steps == 9
    assert config.reward.model == {"image_keys": ["wrist"]}  # And not another model.
    assert load_fit_config(None, ["reward.lr_sched=constant"]).reward.training.optim.lr_schedule == "constant"


def test_real_world_guide() -> None:
    words = """
        data.num_samples_per_episode=0 data.fail_success_ratio=3.0 actor.global_batch_size=32 actor.micro_batch_size=16
        runner.max_epochs=100 runner.val_check_interval=10 runner.save_interval=10 runner.early_stop.patience=10
        data.debug_save_dir="logs/training_data_debug_realworld" runner.logger.log_path="logs/reward_model_realworld"
    """
    config = load_fit_config(EXAMPLES / "reward/config/reward_training.yaml", words.split(), data="/some where/${x}")
    keys = config.reward.training
    assert keys.data.path == "/some where/${x}" and keys.data.num_samples_per_episode == 0
    assert (keys.data.fail_success_ratio, keys.global_batch_size, keys.micro_batch_size) == (3.0, 32, 16)
    assert (keys.num_epochs, keys.val_check_interval, keys.save_interval, keys.patience) == (100, 10, 10, 10)
    assert keys.save_dir == "logs/reward_model_realworld/checkpoints"
    assert keys.debug_save_dir == "logs/training_data_debug_realworld"
    assert config.reward.model["arch"] == "resnet18"


def test_a_null_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("reward: {save_dir: here, training: {micro_batch_size: 8}}")
    config = load_fit_config(tmp_path / "mine.yaml", ["reward.save_dir=null"])
    assert config.reward.training.save_dir is None and config.reward.training.micro_batch_size == 8


def test_two_spellings_in_one_file_must_agree(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("reward: {num_epochs: 3, training: {num_epochs: 4}}")
    with pytest.raises(ConfigError, match=r"reward.num_epochs and reward.training.num_epochs are the same key, but"):
        load_fit_config(tmp_path / "mine.yaml")


def test_a_fit_takes_its_part_of_any_recipe(tmp_path: Path) -> None:
    config = load_fit_config("push_cube", ["reward.training.num_epochs=5", "runtime.seed=3"])
    assert config.runtime.exp_name == "push_cube" and config.reward.data_collection.image_keys == ("base_camera",)
    save_config(config, tmp_path / "config.yaml", "fit")
    assert load_fit_config(tmp_path / "config.yaml") == config
    assert load_fit_config(None) == FitConfig()
    assert load_config("push_cube", ["reward.training.num_epochs=5"]).reward.training.num_epochs == 5


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("runner.max_epoch=3", "runner: unknown key"),
        ("rewrad.hold=3", "rewrad: unknown key.*'reward'"),
        ("reward_training.only=true", "reward.training.only: needs enabled to be true"),
        ("reward.training.optim.lr=0", "lr: must be greater than 0"),
        ("reward.training.optim.warmup_steps=-1", "must not be negative"),
        ("reward.training.augment.zoom=1", "zoom: must be at least 0 and less than 1"),
        ("reward.training.augment.shift=-1", "shift: must not be negative"),
        ("reward.training.success_share=1", "success_share: must be greater than 0 and less than 1"),
        ("reward.training.global_batch_size=0", "global_batch_size: must be at least 1"),
        ("reward.training.max_seconds=0", "max_seconds: must be greater than 0"),
        ("reward.training.patience=-1", "patience: must not be negative"),
        ("reward.training.target_false_positive_rate=1", "must be at least 0 and less than 1"),
        ("reward.training.best_metric=acuracy", "best_metric: expected one of"),
        ("reward.training.data.positive_dir=a", "negative_dir: give both folders or none"),
        ("reward.training.data={path: a, positive_dir: b, negative_dir: c}", "path: cannot be given beside"),
        ("reward.hold=0", "hold: must be at least 1"),
    ],
)
def test_what_cannot_work_is_said(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_fit_config(None, [word])


def test_the_models_keys_are_checked_by_its_registry() -> None:
    from plaudit.reward_models.config import BinaryClassifierConfig

    asked: list[Any] = []

    def model_type(name: str) -> type:
        asked.append(name)
        return BinaryClassifierConfig

    registries = {"reward.model": model_type}
    load_fit_config(None, ["reward.model.width=32"], registries=registries)
    load_fit_config(None, ["reward.model.model_type=mine"], registries=registries)
    assert asked == ["", "mine"]
    with pytest.raises(ConfigError, match=r"command line: reward\.model\.widht: unknown key.*'width'"):
        load_fit_config(None, ["reward.model.widht=32"], registries=registries)
