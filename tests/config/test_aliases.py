"""The dialects that the reward workflow is documented in, as printed there, and what they become."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from plaudit.config.loader import load_config
from plaudit.errors import ConfigError

TARGETS = ("max_positive_trajectories", "max_negative_trajectories")

RESNET_GUIDE = """
defaults: [push_cube, _self_]

env:
  train:
    reward_render_mode: "always"  # Render RGB every frame

reward_data_collection:
  enabled: True
  save_dir: "${oc.env:EMBODIED_PATH}/data"
  target_success: 5000
  target_failure: 5001
"""

WORKFLOW_GUIDE = """
defaults: [push_cube, _self_]

reward:
  group_name: "RewardGroup"
  use_reward_model: False  # Disabled during data collection
  collect_data: True  # Enable data collection
  reward_model:
    # These settings are not used during data collection, but should match actor settings
    image_keys: ["base_camera"]
    image_size: [3, 64, 64]
  data_collection:
    # Directory to save positive trajectories (success_once=1 or any success_frame>=0.5)
    positive_dir: "./reward_data/positive"
    # Directory to save negative trajectories (success_once=0 and all success_frame<0.5)
    negative_dir: "./reward_data/negative"
    # Image keys to collect (must match actor.model.image_keys)
    image_keys: ["base_camera"]
    # Maximum number of trajectories to save (None = unlimited)
    max_positive_trajectories: 500
    max_negative_trajectories: 500
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_resnet_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("EMBODIED_PATH", "/robots")
    with caplog.at_level(logging.WARNING, "plaudit"):
        config = load_config(write(tmp_path, RESNET_GUIDE))
    keys = config.reward.data_collection
    assert config.reward.collect_data and keys.save_dir == "/robots/data" and keys.format == "episode_pkl"
    assert [getattr(keys, name) for name in TARGETS] == [5000, 5001]
    assert config.env.train == {"frames": "always"}
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert sorted(lines) == [
        "'env.train.reward_render_mode' is read as 'env.train.frames'.",
        "'reward.data_collection.target_failure' is read as 'reward.data_collection.max_negative_trajectories'.",
        "'reward.data_collection.target_success' is read as 'reward.data_collection.max_positive_trajectories'.",
        "'reward_data_collection' is read as 'reward.data_collection'.",
    ]


def test_resnet_guide_writes_its_own_layout_unless_another_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "defaults: [push_cube, _self_]\nreward_data_collection: {save_dir: a}")
    assert load_config(path).reward.data_collection.format == "episode_pkl"
    named = ["reward.data_collection.format=npy", "reward_data_collection.target_success=7"]
    assert load_config(path, named).reward.data_collection.format == "npy"
    path.write_text("defaults: [push_cube, _self_]\nreward_data_collection: {format: npy, save_dir: a}")
    assert load_config(path).reward.data_collection.format == "npy"


def test_resnet_guide_on_the_command_line() -> None:
    config = load_config(
        "push_cube", ["reward_data_collection.target_success=7", "+reward_data_collection.enabled=True"]
    )
    assert config.reward.collect_data and config.reward.data_collection.max_positive_trajectories == 7


def test_workflow_guide(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "plaudit"):
        config = load_config(write(tmp_path, WORKFLOW_GUIDE), ["reward.use_reward_model=False"])
    keys = config.reward.data_collection
    assert config.reward.collect_data and keys.image_keys == ("base_camera",)
    assert keys.positive_dir == "./reward_data/positive" and keys.negative_dir == "./reward_data/negative"
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert lines == [
        "'reward.reward_model' is read as 'reward.model'.",
        "'reward.group_name' is not used: one process serves the rewards.",
    ]


def test_targets_by_either_name() -> None:
    words = ["reward.data_collection.target_success=3", "reward.data_collection.target_failure=null"]
    keys = load_config("push_cube", words).reward.data_collection
    assert [getattr(keys, name) for name in TARGETS] == [3, None]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.use_reward_model=3", "expected bool, got 3"),
        ("reward.colect_data=True", "Did you mean 'collect_data'"),
        ("reward_data_collection.save_dri=x", "reward.data_collection.save_dri: unknown key.*'save_dir'"),
        ("reward.data_collection.positive_dir=a", "negative_dir: give both folders or none"),
        ("reward.data_collection.image_size=[64,64]", "image_size: expected list of 3"),
        ("reward.data_collection.image_size=[1,64,64]", r"image_size: must be \[3, height, width\]"),
        ("reward.data_collection.max_negative_trajectories=-1", "must not be negative"),
        ("reward.data_collection.frames_per_episode=0", "must be at least 1"),
        ("reward.data_collection.actors=[]", "somebody must act"),
        ("reward.data_collection.actors=[{kind: policy}]", r"actors\[0\].checkpoint: must name a run's folder"),
        ("reward.data_collection.actors=[{checkpoint: x}]", "checkpoint: is for actors of kind policy"),
        ("reward.data_collection.actors=[{kind: training}, {}]", "acts alone"),
        ("reward.data_collection.actors=[{kind: training, noise: 1}]", "explores by itself"),
        ("reward.data_collection.actors=[{weight: 0}]", "weight: must be greater than 0"),
        ("reward.data_collection.actors=[{halts: 2}]", "halts: must be between 0 and 1"),
    ],
)
def test_what_cannot_work_is_said(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("push_cube", [override])
