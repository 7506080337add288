"""A run whose learning is another process's, from a recipe to its checkpoint and on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from plaudit.cli import main
from plaudit.pipelines import load
from plaudit.pipelines.train import beside_learning

SMALL = [
    "runtime.iterations=6",
    "runtime.save_freq=1000000",
    "runtime.save_seconds=0",
    "runtime.eval_freq=0",
    "runtime.eval_episodes=4",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
    "env.cfg.num_envs=4",
    "env.eval.num_envs=4",
    "algorithm.cfg.learning_starts=32",
    "algorithm.cfg.batch_size=16",
    "algorithm.cfg.capacity=2000",
    "algorithm.cfg.update_ratio=0.25",
]


def test_a_recipe_is_trained_in_two_processes_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sac_push_cube", "runtime.mode=async", f"runtime.output_dir={tmp_path}", *SMALL]
    assert main(["train", *words, "--quiet", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert first["steps"] == 96 and not first["interrupted"]
    assert main(["train", "--resume", first["run"], "runtime.iterations=8", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 128
    logged = [json.loads(line) for line in (Path(first["run"]) / "logs" / "metrics.jsonl").read_text().splitlines()]
    updates = max(line.get("train/updates", 0) for line in logged)
    assert 0 < updates <= 0.25 * (128 - 32)


JUDGED = ["reward.use_reward_model=true", "reward.checkpoint_path=a_model"]
FROZEN = ["policy.cfg.encoder=resnet10", "policy.cfg.pretrained_encoder_path=some.pt", "policy.cfg.freeze_encoder=true"]


@pytest.mark.parametrize(
    ("recipe", "words", "learning"),
    [
        ("sac_push_cube", [], 1),
        ("sac_push_cube_cnn", [], 4),  # The encoder learns.
        ("sac_push_cube_cnn", [*FROZEN, "algorithm.cfg.image_shift=0"], 1),  # It is asked once, while acting.
        ("sac_push_cube_cnn", FROZEN, 4),  # Every picture is moved, and encoded, at every gradient step.
        ("sac_push_cube_cnn", [*FROZEN, "algorithm.cfg.image_shift=0", *JUDGED], 4),
    ],
)
def test_who_has_how_many_threads(recipe: str, words: list[str], learning: int) -> None:
    config = load(recipe, ["runtime.threads=8", "runtime.mode=async", *words])
    looks = recipe.endswith("_cnn")
    acting, _, threads = beside_learning(config, torch.device("cpu"), looks=looks)
    assert (acting.runtime.threads, threads) == (8 - learning, learning)
