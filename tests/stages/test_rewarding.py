"""Training on a reward model, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from artifact_samples import make_artifact, make_model

from plaudit.cli import main

SMALL = [
    "env.cfg.num_envs=8",
    "env.cfg.episode_length=6",
    "runtime.rollout_steps=8",
    "algorithm.cfg.batch_size=32",
    "algorithm.cfg.lr_schedule=constant",
    "runtime.eval_episodes=8",
    "runtime.eval_freq=128",
    "runtime.save_freq=64",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
    "reward.use_reward_model=true",
    "reward.backend=torch",
    "reward.reward_type=continuous",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main([*words, "--json", "--quiet"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def rows(folder: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (Path(folder) / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("charts/", "time/"))} for row in lines]


@pytest.fixture
def artifact(tmp_path: Path) -> str:
    make_artifact(tmp_path / "model")
    return f"reward.checkpoint_path={tmp_path / 'model'}"


@pytest.mark.parametrize("mode", ["per_step", "terminal"])
def test_train_evaluate_and_resume(
    tmp_path: Path, artifact: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "push_cube", *SMALL, artifact, f"reward.reward_mode={mode}"]
    code, whole, said = run(capsys, *words, "runtime.iterations=4", f"runtime.output_dir={tmp_path / 'a'}")
    assert code == 0
    assert "rewards come from" in said
    assert whole["best_metric"] == "model_success_once"
    assert whole["reward_model"]["path"] == str(tmp_path / "model")
    assert {"model_success_once", "success_once", "env_return"} <= set(whole["test"])
    logged = rows(whole["run"])
    # 8 envs take 8 steps; staggered, all of them end at least once, and each end is scored with terminal.
    scored = [row["rollout/scored_frames"] for row in logged if "rollout/scored_frames" in row]
    assert scored == [64.0] * 4 if mode == "per_step" else all(8 <= count <= 16 for count in scored)
    assert {"rollout/rewards", "rollout/env_reward", "env/success_once"} <= set(logged[0])

    _, again, _ = run(capsys, "eval", whole["run"])
    assert again["eval"] == whole["test"]

    _, half, _ = run(capsys, *words, "runtime.iterations=2", f"runtime.output_dir={tmp_path / 'b'}")
    config = Path(half["run"]) / "config.yaml"
    config.write_text(config.read_text().replace("iterations: 2", "iterations: 4"))
    _, resumed, _ = run(capsys, "train", "--resume", half["run"])
    assert resumed["exact_resume"] is True
    first, second = (torch.load(Path(one["run"]) / "checkpoints" / "latest.pt") for one in (whole, resumed))
    assert all(torch.equal(value, second["policy"][name]) for name, value in first["policy"].items())
    assert rows(resumed["run"])[-2:] == logged[-2:]


def test_a_run_may_start_from_another_ones_policy(
    tmp_path: Path, artifact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "push_cube", *SMALL, "runtime.iterations=1", f"runtime.output_dir={tmp_path}"]
    _, first, _ = run(capsys, *words, artifact, "reward.use_reward_model=false")
    code, second, said = run(
        capsys,
        *words,
        artifact,
        f"runner.resume_dir={first['run']}",
        "algorithm.cfg.learning_rate=1e-12",
        "policy.cfg.resume_log_std=-1.5",
    )
    assert code == 0
    assert f"starting from the policy of {first['run']}" in said
    assert second["steps"] == 64
    start, end = (torch.load(Path(one["run"]) / "checkpoints" / "best.pt")["policy"] for one in (first, second))
    assert start["log_std"].min() > -1 and torch.allclose(end["log_std"], torch.tensor(-1.5), atol=1e-6)
    assert all(torch.allclose(start[name], end[name], atol=1e-6) for name in start if "actor" in name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.checkpoint_path={tmp}/nothing"], "no reward artifact and no checkpoint at '{tmp}/nothing'"),
        (["reward.checkpoint_path={tmp}/front"], "needs the camera 'front_camera', but there is base_camera"),
        (
            ["env.id=gym:Pendulum-v1", "~env.cfg", "reward.checkpoint_path={tmp}/front"],
            "the reward model '{tmp}/front' cannot look: gym:Pendulum-v1 has no camera 'front_camera'",
        ),
        (
            ["env.cfg.obs_mode=rgb", "policy.actor.type=cnn", "policy.critic.type=cnn"],
            "camera 'base_camera' has 64×64 pixels, but the reward model '{tmp}/model' takes 16×24",
        ),
        (["reward.model.image_size=[3,64,64]"], "image_size is [3, 64, 64] in the config, but [3, 16, 24] in the"),
        (["reward.reward_threshold=1.5"], "reward.reward_threshold: must be greater than 0 and less than 1"),
        (["reward.uncertainty_penalty=1"], "has one head"),
        (["reward.guards=['gripper > 1']"], "Did you mean 'gripper_width'?"),
        (["runtime.resume={tmp}/nothing"], "no run or checkpoint at"),
    ],
)
def test_what_goes_wrong_is_said_before_any_work(
    tmp_path: Path, artifact: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_artifact(tmp_path / "front", make_model(image_keys=["front_camera"]))
    given = [word.format(tmp=tmp_path) for word in words]
    code, result, _ = run(
        capsys, "train", "push_cube", *SMALL, artifact, *given, f"runtime.output_dir={tmp_path / 'o'}"
    )
    assert code in (1, 2)
    assert message.format(tmp=tmp_path) in result["error"]
    assert not (tmp_path / "o").exists()


def test_pictures_of_what_was_scored(tmp_path: Path, artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, artifact, "runtime.iterations=1", f"runtime.output_dir={tmp_path / 'o'}"]
    more = [f"reward.debug_save_dir={tmp_path / 'seen'}", "reward.debug_images=5"]
    assert run(capsys, "train", "push_cube", *words, *more)[0] == 0
    kinds = {path.name: len(list(path.iterdir())) for path in (tmp_path / "seen").iterdir()}
    assert set(kinds) <= {"resnet_success", "resnet_fail"}
    assert max(kinds.values()) == 5
