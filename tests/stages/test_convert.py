"""Converting, as a user does it: what is said, what is refused, and what an interruption leaves behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
from samples import assert_same, make_episode

from plaudit.cli import HELP, main
from plaudit.data import EpisodeStore
from plaudit.data.formats import load_episodes, open_writer
from plaudit.data.formats.npy import NpyWriter


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main(["convert", *map(str, words), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    EpisodeStore.create(tmp_path / "store").add(
        [make_episode(name, success_at=at) for name, at in (("a", 2), ("b", None))]
    )
    return tmp_path / "store"


def test_to_another_layout_and_back(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = run(capsys, store, tmp_path / "images", "--format", "images")
    assert code == 0 and result["written"] == 2 and result["source_format"] == "plaudit"
    code, result, _ = run(capsys, tmp_path / "images", tmp_path / "back")
    assert code == 0 and result["format"] == "plaudit" and result["lost"] == {}
    for before, after in zip(EpisodeStore(store), EpisodeStore(tmp_path / "back"), strict=True):
        steps = dict.fromkeys(("state", "actions", "rewards", "terminated", "truncated"))
        assert_same(after, replace(before, **steps))


def test_it_says_once_what_is_lost(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result, err = run(capsys, store, tmp_path / "npy", "--format", "npy")
    assert code == 0 and result["lost"]["actions"] == 2
    lines = [line for line in err.splitlines() if "has no place for" in line]
    assert len(lines) == 1 and "actions; rewards; " in lines[0] and lines[0].endswith("(2 of 2 episodes).")
    assert f"2 episodes written from '{store}' (plaudit) to '{tmp_path / 'npy'}' (npy)." in err


def test_it_passes_on_what_the_source_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layouts.realworld(tmp_path / "collected_data", make_episode("e", success_at=2))
    code, result, err = run(capsys, tmp_path / "collected_data", tmp_path / "store")
    assert code == 0 and "moved to the next frame" in err and len(result["notes"]) == 1


def test_after_an_interruption_the_same_command_goes_on(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: NpyWriter, episodes: Any) -> int:
        added(self, episodes[:1])
        raise KeyboardInterrupt

    added = NpyWriter.add
    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "add", stop)
        assert run(capsys, store, tmp_path / "npy", "--format", "npy")[0] == 130
    assert len(load_episodes(tmp_path / "npy")) == 1
    code, result, err = run(capsys, store, tmp_path / "npy", "--format", "npy")
    assert code == 0 and result["written"] == result["already_there"] == 1 and "1 were there already" in err
    assert sorted(episode.id for episode in load_episodes(tmp_path / "npy")) == ["a", "b"]


def test_a_damaged_episode_stops_it_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        file = layouts.npy(tmp_path / "npy", make_episode("e"), number)
    file.write_bytes(file.read_bytes()[:50])
    code, result, _ = run(capsys, tmp_path / "npy", tmp_path / "store")
    assert code == 1 and "000002.npy" in result["error"]


def test_what_does_not_fit_at_all_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blind = replace(make_episode("blind"), labels=np.full(6, -1, np.int8), success=None)
    open_writer(tmp_path / "store").add([make_episode("a"), blind])
    code, result, err = run(capsys, tmp_path / "store", tmp_path / "npy", "--format", "npy")
    assert code == 0 and result["written"] == 1 and sum(result["left_out"].values()) == 1
    assert "1 of 2 episodes left out: no frame has a label" in err
    layouts.rlinf_pt(tmp_path / "pt", make_episode("e"))
    code, result, _ = run(capsys, tmp_path / "pt", tmp_path / "raw", "--format", "realworld_raw")
    assert code == 1 and "none of the 6 episodes fits 'realworld_raw'" in result["error"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere", "out"], 1, "there is nothing at 'nowhere'"),
        (["store", "out", "--format", "npi"], 2, "unknown format 'npi'. Did you mean 'npy'?"),
        (["store", "out", "--from", "npi"], 2, "unknown format 'npi'. Did you mean 'npy'?"),
        (["store", "out", "--format", "rlinf"], 2, "'rlinf' is only read"),
        (["store", "store"], 2, "the same"),
        (["store", "store/out"], 2, "the target is within the source"),
        (["store", ".", "--format", "npy"], 2, "the source is within the target"),
        (["store", "full", "--format", "npy"], 1, "holds other things ('thesis.tex')"),
        (["empty", "out"], 1, "It is empty"),
        (["store"], 2, "DST"),
    ],
)
def test_wrong_use_is_said_and_writes_nothing(
    words: list[str],
    code: int,
    message: str,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(store.parent)
    Path("full").mkdir()
    Path("full", "thesis.tex").write_text("...")
    Path("empty").mkdir()
    found, result, _ = run(capsys, *words)
    assert found == code and message in result["error"]
    assert (
        not Path("out").exists()
        and not Path("store", "out").exists()
        and [p.name for p in Path("full").iterdir()] == ["thesis.tex"]
    )


def test_two_episodes_of_one_name_are_not_taken_for_one(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = make_episode("a")
    monkeypatch.setattr(EpisodeStore, "read", lambda self, index: twice)
    code, result, _ = run(capsys, store, tmp_path / "out")
    assert code == 1 and "two episodes called 'a'" in result["error"]


def test_the_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "convert SRC DST" in HELP
    assert main(["convert", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--format" in out and "--from" in out and "--quiet" in out and len(out.splitlines()) <= 24
