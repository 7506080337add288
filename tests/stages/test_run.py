"""All stages by one command, on small numbers: killed in each of them, stopped, changed and done again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import in_a_process
from pages import look, needs_browser

from plaudit.cli import main
from plaudit.data import EpisodeStore
from plaudit.pipelines.stage_record import FOLDERS, Record
from plaudit.rl.loggers import JsonlLogger

TINY = [
    "env.cfg.num_envs=8",
    "env.cfg.episode_length=10",
    "env.cfg.success_threshold=0.2",  # Half of the episodes start as good as done,
    "env.cfg.action_scale=0.002",  # and the arm hardly moves.
    "reward.data_collection.image_keys=[base_camera]",
    "runtime.iterations=10",
    "runtime.rollout_steps=8",
    "runtime.eval_episodes=8",
    "runtime.eval_freq=256",
    "runtime.save_freq=128",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
    "runtime.threads=1",
    "algorithm.cfg.batch_size=32",
    "reward.data_collection.frames_per_episode=4",
    "reward.training.num_epochs=8",
    "reward.training.save_interval=3",
    "reward.training.log_interval=1",
    "reward.training.global_batch_size=32",
    "reward.training.figures=false",
    "reward.model.width=8",
    "reward.model.encoder_stages=2",
    "reward.model.hidden_dim=16",
    "reward.backend=torch",
    "run.episodes=16",
    "run.train.runtime.video_episodes=1",
    "run.train.reward.reward_threshold=0.5",  # So short a fit may find none that keeps false positives down.
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def weights(folder: Path) -> dict[str, torch.Tensor]:
    policy: dict[str, torch.Tensor] = torch.load(folder / "checkpoints" / "latest.pt")["policy"]
    return policy


def the_run(path: Path) -> Path:
    (found,) = path.iterdir()
    return found


def record(folder: Path) -> Record:
    found = Record.read(folder)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped; tests may read it and no more."""
    path = tmp_path_factory.mktemp("whole")
    assert in_a_process("none", "run", "pick_cube", *TINY, f"runtime.output_dir={path}") == 0
    return the_run(path)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A run that is over, to go on with."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_killed_in_every_stage_it_ends_as_an_unbroken_one(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "pick_cube", *TINY, f"runtime.output_dir={tmp_path}"]
    for stage, folder in FOLDERS.items():
        assert in_a_process(stage, *words) == -signal.SIGKILL
        broken = the_run(tmp_path)
        assert not record(broken / folder).finished
        words = ["run", "--resume", str(broken)]
    code, result, shown = run(capsys, *words, "--quiet")
    assert code == 0 and "[3/4] train: done before" in shown
    assert EpisodeStore(broken / "1_collect" / "data").ids == EpisodeStore(whole / "1_collect" / "data").ids
    for folder in ("1_collect", "3_train"):
        ours, theirs = weights(broken / folder), weights(whole / folder)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), (folder, name)
    assert result["artifact_id"] == record(whole / "2_fit").result["artifact_id"]
    assert result["metrics"] == record(whole / "4_compare").result["metrics"]
    assert [result["stages"][name]["tries"] for name in FOLDERS] == [2, 2, 2, 2]


def test_what_is_finished_is_repeated_only_if_its_inputs_change(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: record(copy / folder) for name, folder in FOLDERS.items()}
    code, result, shown = run(capsys, "run", "--resume", str(copy), "run.episodes=8", "--quiet")
    assert code == 0 and shown.count("done before") == 3 and "[4/4] compare: true success" in shown
    assert result["episodes"] == 8 and set(result["true_success"]) == {"random", "dense_reward", "learned_reward"}
    for name, rate in result["true_success"].items():
        low, high = result["bounds"][name]
        assert low <= rate <= high
    assert record(copy / "4_compare.old1") == before["compare"]

    code, result, shown = run(capsys, "run", "--resume", str(copy), "--redo", "fit", "--quiet")
    assert code == 0 and "[2/4] fit: a reward model" in shown and "fit is kept in" not in shown
    assert (copy / "2_fit.old1").is_dir() and "2_fit.old1" in shown and shown.count("done before") == 3
    assert result["artifact_id"] == before["fit"].result["artifact_id"] and result["episodes"] == 8


def test_ctrl_c_ends_in_good_order_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonlLogger, "on_metrics", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    code, result, shown = run(capsys, "run", "pick_cube", *TINY, f"runtime.output_dir={tmp_path}", "--quiet")
    assert code == 130 and result["interrupted"] and result["stage"] == "collect"
    assert f"go on with: plaudit run --resume {result['run']}" in shown and "plaudit train" not in shown
    assert not record(Path(result["run"]) / "1_collect").finished


def test_ctrl_c_between_two_steps_of_work_says_so_too(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["plaudit.pipelines.run"], "compare", stopped)
    code, result, shown = run(capsys, "run", "--resume", str(copy), "--redo", "compare", "--quiet")
    assert code == 130 and result["interrupted"] and f"go on with: plaudit run --resume {copy}" in shown


def test_the_reports_of_a_run_and_of_its_parts(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = (whole / "report.html").read_text()
    for words in ("PickCube, taught by pictures", "Learned reward", "Env&#x27;s own reward", "Random actions"):
        assert words in shown
    for name in ("learning", "model", "data", "films", "stages"):
        assert f'<article id="{name}">' in shown
    assert "Config of train" in shown and "use_reward_model: true" in shown and 'id="audit"' in shown

    _, result, _ = run(capsys, "report", str(whole / "3_train"), "--out", str(tmp_path / "train.html"))
    text = Path(result["report"]).read_text()
    assert "taught by a reward model" in text and "<video" in text and 'id="model"' not in text
    _, result, _ = run(capsys, "report", str(whole / "2_fit"), "--out", str(tmp_path / "fit.html"))
    text = Path(result["report"]).read_text()
    assert 'id="model"' in text and "balanced accuracy" in text and 'id="learning"' not in text


@needs_browser
def test_a_browser_shows_the_report_of_a_run(copy: Path) -> None:
    seen = look(copy / "report.html", 1200)
    assert (
        seen["fetched"] == []
        and min(seen["pictures"]) > 100
        and all(width > 0 and error is None for width, error in seen["films"])
    )
    assert "The reward model" in seen["sections"] and len(seen["plot"]) == 6 and all(seen["links"])


def test_a_report_tells_what_a_refresh_took(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {"fooled": 1, "failures": 9}
    refresh = {"version": 2, "step": 64, "episodes": 18, "before": held, "after": held}
    refreshes = [{**refresh, "held_back_before": held, "held_back_after": held}]
    audit = {"refreshes": refreshes, "labels": {"spent": 18, "budget": 200}}
    (copy / "3_train" / "audit.json").write_text(json.dumps(audit))
    path = copy / "3_train" / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "prolonged": 2}))
    assert run(capsys, "report", str(copy))[0] == 0
    text = (copy / "report.html").read_text()
    more = 2 * result["steps"] // result["iterations"]
    assert f"fitted further 1 time, with the truth about 18 episodes; training went on for {more:,} steps more." in text
    assert "never saw" not in text and "1 of 9" in text


def test_an_audit_is_shown_where_there_is_one_and_a_run_that_is_not_over_says_so(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / "4_compare")
    shutil.copy(copy / "3_train" / "videos" / "best.png", copy / "3_train" / "worst.png")
    audit = {"mood": "bad", "summary": "It is fooled.", "head": ["step"], "rows": [["5k"]]}
    pictures = [{"file": "worst.png", "caption": "Fooled here"}, {"file": "gone.png", "caption": "Not there"}]
    (copy / "3_train" / "audit.json").write_text(json.dumps({**audit, "pictures": pictures}))
    assert run(capsys, "report", str(copy))[0] == 0
    text = (copy / "report.html").read_text()
    assert "This run is not over: compare still has to be done." in text and "true success</th>" not in text
    assert (
        '<article id="audit">' in text and "It is fooled." in text and "Fooled here" in text and "Not there" not in text
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "quickstar"], "Did you mean 'quickstart'?"),
        (["run", "run.fit.reward.training.num_epoch=3"], "Did you mean 'num_epochs'?"),
        (["run", "--resume", "{tmp}/nothing"], "is not the folder of a run"),
        (["run", "--resume", "{tmp}/empty"], "is the folder of one stage only"),
        (["run", "--redo", "fit"], "name the run with --resume RUN"),
        (["run", "push_cube", "--resume", "{tmp}"], "leave out the recipe"),
        (["report", "{tmp}/nothing"], "no run or checkpoint at"),
        (["report", "{tmp}"], "there is no config.yaml in it"),
        (["report", "{tmp}/empty"], "has nothing to report yet"),
    ],
)
def test_what_goes_wrong_is_said(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("runtime: {}\n")
    code, result, _ = run(capsys, *[word.format(tmp=tmp_path) for word in words])
    assert code in (1, 2) and message in result["error"]


def test_what_fails_says_how_to_go_on(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "1_collect" / "data" / "episodes")
    code, result, shown = run(capsys, "run", "--resume", str(copy), "--quiet")
    assert code == 1 and "is not an episode store" in result["error"]
    assert f"once the cause is gone, go on with: plaudit run --resume {copy}" in shown


def test_no_such_stage(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = run(capsys, "run", "--resume", str(copy), "--redo", "fitt")
    assert code == 2 and "Did you mean 'fit'?" in result["error"]
