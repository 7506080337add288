"""The commands from end to end, on small numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from plaudit.cli import main

SMALL = [
    "env.cfg.num_envs=8",
    "runtime.rollout_steps=8",
    "algorithm.cfg.batch_size=32",
    "runtime.eval_episodes=8",
    "runtime.eval_freq=128",
    "runtime.save_freq=64",
    "runtime.keep_checkpoints=2",
    "runtime.cuda=false",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "plaudit", *words]


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Returns once a run has logged `count` lines."""
    for _ in range(6000):
        files = list(path.glob("*/logs/metrics.jsonl"))
        if files and files[0].read_text().count("\n") >= count:
            return
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    raise AssertionError("the run logged nothing")


def the_run(path: Path) -> Path:
    (found,) = path.iterdir()
    return found


def losses(run: Path) -> list[dict[str, float]]:
    """What was logged, but for how long it took."""
    rows = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("charts/")} for row in rows]


def test_train_then_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "runtime.iterations=3", "runtime.video_episodes=2", f"runtime.output_dir={tmp_path}"]
    code, result, shown = run(capsys, "train", "push_cube", *words)
    assert code == 0
    folder = Path(result["run"])
    assert folder.parent == tmp_path
    assert folder.name.startswith("push_cube_")
    for name in ("config.yaml", "curves.png", "videos/best.mp4", "videos/best.png", "checkpoints/best.pt"):
        assert (folder / name).stat().st_size > 0
    assert len(list((folder / "checkpoints").glob("step_*.pt"))) == 2
    assert list((folder / "logs").glob("events.out.tfevents*"))
    assert result["steps"] == 192
    assert result["best_metric"] == "success_once"
    assert "8 fresh test episodes" in shown
    rows = losses(folder)
    assert {"rewards/reach", "metrics/goal_distance", "train/value_loss"} <= set(rows[0])
    assert any("eval/success_at_end" in row for row in rows)

    code, again, _ = run(capsys, "eval", str(folder))
    assert code == 0
    assert again["eval"] == result["test"]
    code, one, _ = run(capsys, "eval", str(folder / "checkpoints" / "latest.pt"), "--episodes", "3")
    assert one["episodes"] == 3

    code, wrong, _ = run(capsys, "eval", str(folder), "policy.actor.hidden_sizes=[7]")
    assert code == 1
    assert "actor.0.weight" in wrong["error"]


def test_recipe_is_reproducible_from_its_saved_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "runtime.iterations=2", "runtime.video_episodes=0"]
    _, first, _ = run(capsys, "train", "pick_cube", *words, f"runtime.output_dir={tmp_path / 'a'}", "--quiet")
    saved = str(Path(first["run"]) / "config.yaml")
    _, second, _ = run(capsys, "train", saved, f"runtime.output_dir={tmp_path / 'b'}", "--quiet")
    assert losses(Path(first["run"])) == losses(Path(second["run"]))


@pytest.mark.parametrize("recipe", ["push_cube", "peg_insertion"])
def test_killed_run_ends_as_an_unbroken_one(tmp_path: Path, recipe: str) -> None:
    words = ["train", recipe, *SMALL, "runtime.iterations=12", "runtime.video_episodes=0", "--quiet"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(*words, f"runtime.output_dir={whole}"), check=True, capture_output=True)
    process = subprocess.Popen(command(*words, f"runtime.output_dir={broken}"), stderr=subprocess.DEVNULL)
    wait_for_lines(broken, 4, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(losses(the_run(broken))) < len(losses(the_run(whole)))
    subprocess.run(command("train", "--resume", str(the_run(broken)), "--quiet"), check=True, capture_output=True)
    first, second = (torch.load(the_run(path) / "checkpoints" / "latest.pt") for path in (whole, broken))
    assert first["policy"].keys() == second["policy"].keys()
    for name, value in first["policy"].items():
        assert torch.equal(value, second["policy"][name]), name
    assert losses(the_run(whole)) == losses(the_run(broken))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = ["train", "push_cube", *SMALL, "runtime.iterations=5000", f"runtime.output_dir={tmp_path}", "--json"]
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    wait_for_lines(tmp_path, 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(out.splitlines()[-1])
    assert result["interrupted"]
    assert (Path(result["run"]) / "checkpoints" / "latest.pt").exists()
    assert f"plaudit train --resume {result['run']}" in err.decode()
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "{tmp}/nothing"], "no run or checkpoint at"),
        (["eval", "{tmp}"], "is not a run: there is no config.yaml in it"),
        (["train", "--resume", "{tmp}/nothing"], "no run or checkpoint at"),
        (["train", "push_cube", "runtime.output_dir={tmp}/file/x"], "cannot write to the output folder"),
        (["train", "push_cube", "runtime.headless=false", "runtime.output_dir={tmp}/out"], "no display"),
        (["train", "push_cube", "runtime.imports=[not_there]"], "runtime.imports: cannot import 'not_there'"),
        (["train", "push_cube", "env.id=PushCub"], "Did you mean 'PushCube'?"),
        (["train", "push_cube", "algorithm.name=pp"], "Did you mean 'ppo'?"),
        (["envs", "PushCub"], "Did you mean 'PushCube'?"),
        (["recipes", "pendulm"], "Did you mean 'pendulum'?"),
        (["train", "pendulum", "env.id=gym:Pendulm-v9"], "Did you mean 'Pendulum-v1'?"),
        (["bench", "spee"], "Did you mean 'step'?"),
    ],
)
def test_what_goes_wrong_is_said(
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    (tmp_path / "file").write_text("")
    code, result, shown = run(capsys, *[word.format(tmp=tmp_path) for word in words])
    assert code in (1, 2)
    assert message in result["error"]
    assert message in shown


def test_damaged_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "runtime.iterations=1", "runtime.video_episodes=0", f"runtime.output_dir={tmp_path}", "--quiet"]
    _, result, _ = run(capsys, "train", "push_cube", *words)
    checkpoint = Path(result["run"]) / "checkpoints" / "latest.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    code, wrong, _ = run(capsys, "train", "--resume", result["run"])
    assert code == 1
    assert str(checkpoint) in wrong["error"]


def test_lost_metrics_cost_the_curves_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "runtime.iterations=1", "runtime.video_episodes=0", f"runtime.output_dir={tmp_path}", "--quiet"]
    _, result, _ = run(capsys, "train", "push_cube", *words)
    (Path(result["run"]) / "logs" / "metrics.jsonl").write_text('{"step": 64, "tra')
    code, again, shown = run(capsys, "train", "--resume", result["run"], "--quiet")
    assert code == 0
    assert "no curves" in shown
    assert again["test"] == result["test"]


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    _, envs, _ = run(capsys, "envs")
    assert {"PushCube", "PickCube", "PegInsertion", "gym:<id>"} <= {row["id"] for row in envs["envs"]}
    _, keys, _ = run(capsys, "envs", "PegInsertion")
    assert {"clearance", "num_envs"} <= {row["key"] for row in keys["keys"]}
    assert all(row["about"] for row in keys["keys"])
