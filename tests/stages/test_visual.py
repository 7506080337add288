"""Policies that look at pictures, from end to end, on small numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plaudit.cli import main
from plaudit.vision.resnet import ResNet

SMALL = [
    "env.cfg.num_envs=4",
    "runtime.rollout_steps=4",
    "runtime.eval_episodes=4",
    "runtime.eval_freq=0",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
    "runtime.threads=1",
    "algorithm.cfg.batch_size=8",
]
TINY = [*SMALL, "env.cfg.camera_size=[16,16]", "env.cfg.episode_length=4"]
PUSH = ["push_cube_cnn", *TINY]
SAC = ["sac_push_cube_cnn", *TINY, "env.eval.num_envs=4", "algorithm.cfg.learning_starts=16"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--json", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 0, err
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def weights(result: dict[str, Any]) -> dict[str, torch.Tensor]:
    policy: dict[str, torch.Tensor] = torch.load(Path(result["run"]) / "checkpoints" / "latest.pt")["policy"]
    return policy


@pytest.mark.parametrize("recipe", [[*PUSH, "algorithm.cfg.lr_schedule=constant"], SAC], ids=["ppo", "sac"])
def test_a_stopped_run_ends_as_an_unbroken_one(
    recipe: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *recipe, "algorithm.cfg.image_shift=2"]
    whole = run(capsys, *words, "runtime.iterations=4", f"runtime.output_dir={tmp_path / 'whole'}")
    half = run(capsys, *words, "runtime.iterations=2", f"runtime.output_dir={tmp_path / 'half'}")
    resumed = run(capsys, "train", "--resume", half["run"], "runtime.iterations=4")
    assert resumed["exact_resume"] is True
    first, second = weights(whole), weights(resumed)
    assert any(name.startswith("encoder.towers.0.net") for name in first)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    if recipe is SAC:
        assert run(capsys, "eval", resumed["run"])["eval"] == resumed["test"]


def test_pretrained_weights_are_read_where_training_begins_and_only_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ResNet("resnet10", norm="group")
    path = tmp_path / "resnet10_pretrained.pt"
    torch.save(source.state_dict(), path)
    words = ["policy.cfg.encoder=resnet10", f"policy.cfg.pretrained_encoder_path={path}", "runtime.iterations=1"]
    frozen = run(capsys, "train", *PUSH, *words, "policy.cfg.freeze_encoder=true", f"runtime.output_dir={tmp_path}")
    kept = weights(frozen)
    for name, value in source.state_dict().items():
        assert torch.equal(kept[f"encoder.towers.0.net.{name}"], value), name
    path.unlink()
    assert run(capsys, "eval", frozen["run"])["eval"] == frozen["test"]
    assert run(capsys, "train", "--resume", frozen["run"], "runtime.iterations=2")["steps"] == 32


def test_a_missing_file_is_named_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policy.cfg.encoder=resnet10", f"policy.cfg.pretrained_encoder_path={tmp_path}/none.pt"]
    assert main(["train", *PUSH, *words, f"runtime.output_dir={tmp_path / 'out'}"]) == 1
    assert "there is no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
