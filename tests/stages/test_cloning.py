"""Behaviour cloning from end to end: demonstrations, a clone of them, going on with it, and its report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plaudit.cli import main
from plaudit.rl.algorithms.sac import SAC

SMALL = [
    "env.cfg.num_envs=2",
    "env.eval.num_envs=2",
    "env.cfg.episode_length=25",
    "runtime.eval_episodes=2",
    "runtime.eval_freq=10",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
    "runtime.threads=1",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """The JSON object of a command that succeeds, and what people see."""
    code = main([*words, "--quiet", "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found, err


def test_demonstrations_are_collected_cloned_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["reward.data_collection.max_positive_trajectories=2", "reward.data_collection.num_envs=2"]
    run(capsys, "collect", "rlpd_pick_cube", *SMALL, *keys)  # On a reward model that is not there yet.
    cloning = ["algorithm.cfg.num_demonstrations=2", "algorithm.cfg.updates=5"]
    trained, said = run(capsys, "train", "bc_pick_cube", *SMALL, *cloning, "runtime.iterations=4")
    assert (trained["steps"], trained["counted"]) == (20, "gradient steps")
    assert "2 of 2 demonstrations end in success" in said and "; 20 gradient steps in" in said
    shutil.rmtree("data")
    resumed, _ = run(capsys, "train", "--resume", trained["run"], "runtime.iterations=6")
    assert (resumed["steps"], resumed["exact_resume"]) == (30, True)
    acts = []
    monkeypatch.setattr(SAC, "_act", lambda sac, obs, envs: acts.append(sac.from_scratch) or sac.policy.act(obs))
    learns = ["reward.use_reward_model=false", "~algorithm.cfg.demonstrations", "~algorithm.cfg.num_demonstrations"]
    run(
        capsys,
        "train",
        "rlpd_pick_cube",
        *SMALL,
        *learns,
        "algorithm.cfg.cloning=0",
        "runtime.iterations=1",
        f"runtime.resume={trained['run']}",
    )
    assert acts and not any(acts)
    page = Path(run(capsys, "report", trained["run"])[0]["report"]).read_text()
    assert "taught by demonstrations alone" in page and "gradient steps" in page and "env steps" not in page


def test_without_demonstrations_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "bc_peg_insertion", *SMALL]) == 1
    assert "there is nothing at 'data/rlpd_peg_insertion'. Collect some with plaudit collect" in capsys.readouterr().err
    assert main(["train", "bc_peg_insertion", "~algorithm.cfg.demonstrations"]) == 2
    assert "algorithm.cfg.demonstrations: missing required value" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()
