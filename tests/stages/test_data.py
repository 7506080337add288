"""Processing and examining through the stages and the command line."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenes import alter, make_store

from plaudit.cli import main
from plaudit.data import EpisodeStore
from plaudit.data.formats import load_episodes
from plaudit.data.split_files import load_splits
from plaudit.errors import DataError
from plaudit.pipelines.datasets import doctor, process, process_realworld

SCRIPT = Path(__file__).parents[2] / "examples" / "embodiment" / "process_realworld_data.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data", 12).path


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_process_writes_manifests_and_says_what_is_in_them(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["process", str(data), "--num-samples-per-episode", "4", "--seed", "1", "--json"]) == 0
    result = last_line(capsys)
    splits = load_splits(data / "splits" / "default")
    assert result["splits"] == str(data / "splits" / "default")
    for name, split in splits.items():
        assert result[name]["episodes"] == len(split) and result[name]["frames"] == split.counts.frames
    assert result["train"]["dropped"] == {"not sampled": 8 * 11} and result["train"]["frames"] == 8 * 4
    assert splits["train"].settings.seed == 1 and splits["train"].settings.num_samples_per_episode == 4


def test_process_shows_a_table(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["process", str(data), "--out", str(tmp_path / "s"), "--test-fraction", "0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["split", "episodes", "positive", "negative", "frames", "success"] in lines
    assert ["val", "2", "1", "1", "30", "13.3%"] in lines
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["train.json", "val.json"]


def test_processing_again_moves_no_episode(data: Path) -> None:
    process(data)
    before = {s.id: name for name, split in load_splits(data / "splits/default").items() for s in split.summaries}
    make_store(data, 24)
    process(data, fail_success_ratio=2.0)
    after = {s.id: name for name, split in load_splits(data / "splits/default").items() for s in split.summaries}
    assert len(after) == 24 and all(after[id] == name for id, name in before.items())


def test_wrong_settings_and_places_are_clear_errors(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["process", str(data), "--val-fraction", "1.5"]) == 2
    assert "val_fraction: must be at least 0 and less than 1" in capsys.readouterr().err
    assert main(["process", str(data), "--val-fractoin", "0.1"]) == 2
    assert "Did you mean '--val-fraction'" in capsys.readouterr().err
    assert main(["process", str(tmp_path / "nowhere")]) == 1
    assert "nothing at" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["doctor", str(tmp_path / "empty")]) == 1
    assert "It is empty" in capsys.readouterr().err
    assert main(["doctor", str(data), "--splits", str(tmp_path / "empty")]) == 1
    assert "holds no splits" in capsys.readouterr().err


def test_too_few_episodes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 positive and 2 negative"):
        process(make_store(tmp_path / "data", 4).path)


def test_doctor_passes_a_clean_data_set(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(data), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    result = last_line(capsys)
    assert result["findings"] == [] and result["splits"] is None and result["exit_code"] == 0
    assert result["balance"]["all"]["frames"] == 12 * 15 and result["balance"]["all"]["success_share"] == 24 / 180
    assert "Nothing found." in (tmp_path / "page.html").read_text()


def test_doctor_fails_what_would_spoil_a_fit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process(data)
    store = EpisodeStore(data)
    store.file("scene-003").write_bytes(b"not an episode")
    capsys.readouterr()
    assert main(["doctor", str(data)]) == 1
    out = capsys.readouterr().out
    assert "SPOILS A FIT" in out and "scene-003" in out and "1 would spoil a fit." in out
    assert main(["doctor", str(data), "--json"]) == 1
    result = last_line(capsys)
    assert result["splits"] == str(data / "splits" / "default") and set(result["balance"]) == {"train", "val", "test"}
    (finding,) = result["findings"]
    assert finding["kind"] == "unreadable" and finding["where"][0]["episode"] == "scene-003" and finding["advice"]


def test_what_is_only_worth_a_look_does_not_fail(data: Path) -> None:
    alter(data, 3, lambda episode: (episode.frames["camera"][5].fill(0), episode)[1])
    result = doctor(data)
    assert [finding["kind"] for finding in result["findings"]] == ["dark"] and result["exit_code"] == 0


def raw_transitions(lengths: list[int], still: set[int]) -> list[dict[str, Any]]:
    """The raw layout of RLinf's real-world guide; the steps in `still`, over all episodes, have an action of zero."""
    random, transitions = np.random.default_rng(0), []
    for episode, length in enumerate(lengths):
        seen = [
            {"states": random.normal(size=4), "main_images": random.random((6, 6, 3)).astype(np.float32)}
            for _ in range(length + 1)
        ]
        for step in range(length):
            end = np.array([step == length - 1])
            action = np.zeros(6) if len(transitions) in still else random.uniform(0.1, 1, 6)
            transitions.append(
                {
                    "transitions": {"obs": seen[step], "next_obs": seen[step + 1]},
                    "action": action,
                    "rewards": np.array([float(end[0] and episode % 2 == 0)]),
                    "dones": end,
                    "terminations": end & (episode % 2 == 0),
                    "truncations": end & (episode % 2 == 1),
                }
            )
    return transitions


def test_real_world_data_loses_its_still_steps(tmp_path: Path) -> None:
    file = tmp_path / "input_data.pkl"
    file.write_bytes(pickle.dumps(raw_transitions([5, 4, 6], still={1, 2, 6})))
    folder = process_realworld(file)
    assert folder == tmp_path / "collected_data"
    names = sorted(path.name for path in folder.glob("*.pkl"))
    assert names == [f"rank_0_env_0_episode_{i}_{end}.pkl" for i, end in enumerate(("success", "fail", "success"))]
    lengths = sorted(episode.length for episode in load_episodes(folder))
    assert lengths == [3, 3, 6]


def test_the_script_that_real_world_guide_names(tmp_path: Path) -> None:
    file = tmp_path / "input_data.pkl"
    file.write_bytes(pickle.dumps(raw_transitions([5, 4], still={1})))
    done = subprocess.run([sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 episodes (1 successes), of whose 9 steps 1 stand still" in done.stderr
    assert len(list((tmp_path / "collected_data").glob("*.pkl"))) == 2
    for words in ([], [str(tmp_path / "nowhere.pkl")]):
        done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stderr and done.stderr


def test_a_foreign_file_is_split_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "data.pkl"
    file.write_bytes(pickle.dumps(raw_transitions([4] * 8, still=set())))
    result = process(file)
    assert result["splits"] == str(tmp_path / "splits" / "data") and result["format"] == "realworld_raw"
    splits = load_splits(tmp_path / "splits" / "data")
    assert splits["train"].source.path == file and sum(map(len, splits.values())) == 8
    assert splits["val"].dropped == {"unknown label": 2}
    assert doctor(file)["exit_code"] == 0
