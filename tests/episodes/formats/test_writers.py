"""Writers: whole files under the layout's own names, numbers that go on, nothing twice, nothing of others touched."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from pathlib import Path

import layouts
import numpy as np
import pytest
import torch
from samples import make_episode

from plaudit.data import Counts
from plaudit.data.formats import EpisodeFormat, load_episodes, open_writer, register_format
from plaudit.data.formats.numbered_files import HERE, INDEX
from plaudit.errors import ConfigError, DataError, OutputError, RegistryError

FORMAT_NAMES = ["episode_pkl", "images", "npy", "plaudit", "realworld", "realworld_raw"]
NUMBERED = {
    "npy": ["negative/000000.npy", "positive/000000.npy", "positive/000001.npy"],
    "episode_pkl": ["failure/episode_000001.pkl", "success/episode_000000.pkl", "success/episode_000002.pkl"],
    "realworld": [
        "rank_0_env_0_episode_0_success.pkl",
        "rank_0_env_0_episode_1_fail.pkl",
        "rank_0_env_0_episode_2_success.pkl",
    ],
}


def visible(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))


@pytest.mark.parametrize("format", NUMBERED)
def test_names_and_counters_are_those_of_the_layout(format: str, tmp_path: Path) -> None:
    writer = open_writer(tmp_path, format)
    writer.add([make_episode("a", success_at=2), make_episode("b"), make_episode("c", success_at=1)])
    assert visible(tmp_path) == NUMBERED[format]
    assert [episode.id for episode in load_episodes(tmp_path)] == (
        ["a", "c", "b"] if format == "npy" else ["a", "b", "c"]
    )


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_counts_and_ids_go_on_from_what_is_there(format: str, tmp_path: Path) -> None:
    first = open_writer(tmp_path / "data", format)
    assert first.counts == Counts()
    assert first.add([make_episode("a", success_at=2), make_episode("b")]) == 2
    second = open_writer(tmp_path / "data", format)
    assert second.counts == first.counts and second.counts.positive == second.counts.negative == 1
    assert "a" in second and make_episode("b") in second and "c" not in second and 3 not in second
    before = visible(tmp_path)
    assert second.add([make_episode("b"), make_episode("c")]) == 1
    assert second.counts.negative == 2 and set(before) <= set(visible(tmp_path))
    assert sorted(episode.id for episode in load_episodes(tmp_path / "data")) == ["a", "b", "c"]


@pytest.mark.parametrize("format", [*NUMBERED, "images", "realworld_raw"])
def test_of_one_id_in_one_call_the_first_is_written(format: str, tmp_path: Path) -> None:
    first, second = make_episode("a", success_at=1), make_episode("a")
    assert open_writer(tmp_path, format).add([first, second]) == 1
    (episode,) = load_episodes(tmp_path)
    assert episode.positive


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_counts_are_those_of_the_files(format: str, tmp_path: Path) -> None:
    writer = open_writer(tmp_path, format)
    writer.add([make_episode("a", success_at=2), make_episode("b"), make_episode("c", success_at=5)])
    labels = np.concatenate([episode.labels for episode in load_episodes(tmp_path)])
    assert writer.counts.frames == len(labels)
    assert writer.counts.success_frames == (labels == 1).sum()
    assert writer.counts.unknown_frames == (labels == -1).sum()


@pytest.mark.parametrize("format", NUMBERED)
def test_numbers_go_on_after_the_highest_also_without_an_index(format: str, tmp_path: Path) -> None:
    getattr(layouts, format)(tmp_path, make_episode("x", success_at=1), 41)
    writer = open_writer(tmp_path, format)
    assert writer.counts.positive == 1 and writer.counts.frames in (5, 6)
    writer.add([make_episode("y", success_at=1)])
    assert len(visible(tmp_path)) == 2 and "42" in visible(tmp_path)[1]


def test_npy_folders_may_be_anywhere(tmp_path: Path) -> None:
    good, bad = tmp_path / "here" / "good", tmp_path / "there" / "bad"
    writer = open_writer(None, "npy", positive_dir=good, negative_dir=bad)
    writer.add([make_episode("a", success_at=2), make_episode("b"), make_episode("c")])
    assert visible(good) == ["000000.npy"] and visible(bad) == ["000000.npy", "000001.npy"]
    content = np.load(good / "000000.npy", allow_pickle=True).item()
    assert set(content) == {"images", "labels"} and content["labels"].dtype == np.float32
    pixels = content["images"]["base_camera"]
    assert pixels.dtype == np.float32 and pixels.shape == (6, 3, 8, 10) and 0.9 < pixels.max() <= 1
    with pytest.raises(ConfigError, match="same folder"):
        open_writer(None, "npy", positive_dir=good, negative_dir=good)
    with pytest.raises(ConfigError, match="needs a folder"):
        open_writer(None, "npy", positive_dir=good)


def test_episode_pkl_has_all_the_keys(tmp_path: Path) -> None:
    episode = make_episode("a", success_at=2)
    open_writer(tmp_path, "episode_pkl").add([episode])
    content = pickle.loads((tmp_path / "success" / "episode_000000.pkl").read_bytes())
    assert set(content) == {"frames", "num_frames", "grasp", "success", "done", "label", "metadata"}
    assert content["num_frames"] == 5 and content["label"] == 1 and content["success"] is True
    frame = content["frames"][1]
    assert set(frame) == {
        *("obs", "action", "reward", "terminated", "truncated"),
        *("done", "grasp", "success", "info"),
    }
    assert frame["success"] is True and frame["grasp"] is False
    np.testing.assert_array_equal(frame["obs"]["main_images"], episode.frames["base_camera"][2])
    np.testing.assert_array_equal(frame["action"], episode.actions[1])


def test_realworld_writes_the_label_of_the_next_frame(tmp_path: Path) -> None:
    episode = make_episode("a", success_at=3)
    open_writer(tmp_path, "realworld").add([episode])
    content = pickle.loads((tmp_path / "rank_0_env_0_episode_0_success.pkl").read_bytes())
    assert [info["is_obj_placed"] for info in content["infos"]] == [False, False, True, True, True]
    assert {len(content[key]) for key in ("observations", "actions", "rewards", "terminated", "truncated")} == {5}
    assert content["observations"][0]["main_images"].dtype == np.uint8
    assert isinstance(content["actions"][0], torch.Tensor) and content["mode"] == "train"


def test_raw_transitions_are_as_the_robot_writes_them(tmp_path: Path) -> None:
    open_writer(tmp_path, "realworld_raw").add([make_episode("a", success_at=3), make_episode("b", length=2)])
    content = pickle.loads((tmp_path / "data.pkl").read_bytes())
    assert [bool(step["dones"]) for step in content] == [False] * 4 + [True, False, True]
    assert [float(step["rewards"]) for step in content] == [0, 0, 1, 1, 1, 0, 0]
    seen = content[0]["transitions"]["next_obs"]["main_images"]
    assert seen.dtype == torch.float32 and seen.shape == (8, 10, 3) and 0.9 < seen.max() <= 1
    assert content[0]["rewards"].shape == content[0]["dones"].shape == content[0]["truncations"].shape == (1,)


def test_the_main_camera_can_be_chosen(tmp_path: Path) -> None:
    episode = make_episode("a")
    open_writer(tmp_path, "realworld", main_camera="wrist_camera").add([episode])
    frames = load_episodes(tmp_path)[0].frames
    np.testing.assert_array_equal(frames["main_images"], episode.frames["wrist_camera"][:-1])
    with pytest.raises(ConfigError, match=r"no 'wrist'. Did you mean 'wrist_camera'"):
        open_writer(tmp_path / "2", "realworld", main_camera="wrist").add([episode])


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_folder_with_other_things_is_left_alone(format: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(OutputError, match=r"other (files|things)"):
        open_writer(tmp_path, format)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_ones_data_pkl_is_not_written_anew(tmp_path: Path) -> None:
    layouts.realworld_raw(tmp_path, make_episode("a"))
    with pytest.raises(OutputError, match=r"data\.pkl' was not written by Plaudit"):
        open_writer(tmp_path, "realworld_raw")


@pytest.mark.parametrize("format", NUMBERED)
def test_a_kill_between_index_and_file_costs_only_that_file(format: str, tmp_path: Path) -> None:
    writer = open_writer(tmp_path, format)
    writer.add([make_episode("a"), make_episode("b")])
    gone = sorted(p for p in tmp_path.rglob("*") if p.suffix in (".npy", ".pkl"))[-1]
    gone.unlink()
    folder = gone.parent
    (folder / f".{gone.name}.{HERE}.999999999.part").write_bytes(b"half")
    (folder / f".{gone.name}.elsewhere.999999999.part").write_bytes(b"another machine is at it")
    with (folder / INDEX).open("a") as index:
        index.write('{"file": "torn')
    again = open_writer(tmp_path, format)
    assert "a" in again and "b" not in again and again.counts.negative == 1
    assert [path.name for path in folder.glob(".*999999999*")] == [f".{gone.name}.elsewhere.999999999.part"]
    assert again.add([make_episode("a"), make_episode("b")]) == 1
    assert gone.exists() and [episode.id for episode in load_episodes(tmp_path)] == ["a", "b"]
    assert open_writer(tmp_path, format).counts == again.counts


def test_a_damaged_file_is_not_counted_as_if_it_were_whole(tmp_path: Path) -> None:
    file = layouts.npy(tmp_path, make_episode("a"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"000000\.npy"):
        open_writer(tmp_path, "npy")


def test_ids_without_the_index_come_from_the_names(tmp_path: Path) -> None:
    open_writer(tmp_path, "npy").add([make_episode("a", success_at=1)])
    (tmp_path / "positive" / INDEX).unlink()
    assert [episode.id for episode in load_episodes(tmp_path)] == ["positive-000000"]


@pytest.mark.parametrize("format", [*NUMBERED, "images", "realworld_raw"])
def test_a_name_in_the_making_says_machine_and_process(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (replaced.append(Path(a).name), replace(a, b)))
    open_writer(tmp_path, format).add([make_episode("a")])
    assert replaced and all(name.endswith(f".{HERE}.{os.getpid()}.part") for name in replaced)
    assert not list(tmp_path.rglob("*.part"))


def test_images_can_be_looked_at(tmp_path: Path) -> None:
    open_writer(tmp_path, "images").add([make_episode("a", success_at=4)])
    assert (tmp_path / "a" / "labels.csv").read_text().splitlines()[:2] == ["frame,label,grasp", "0,0,0"]
    assert (tmp_path / "a" / "wrist_camera" / "000005.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "a" / "episode.json").read_text())["length"] == 5


def _add(path: Path, format: str, names: list[str]) -> None:
    writer = open_writer(path, format)
    for name in names:
        writer.add([make_episode(name, success_at=1), make_episode("shared")])


@pytest.mark.parametrize("format", NUMBERED)
def test_processes_do_not_overwrite_each_other(format: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    names = [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]]
    processes = [context.Process(target=_add, args=(tmp_path, format, some)) for some in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(episode.id for episode in load_episodes(tmp_path)) == [*"abcdefghi", "shared"]


def test_wrong_names_and_options(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"unknown format 'npi'. Did you mean 'npy'"):
        open_writer(tmp_path, "npi")
    with pytest.raises(ConfigError, match=r"'rlinf' is only read\. Those that are written: episode_pkl, images"):
        open_writer(tmp_path, "rlinf")
    with pytest.raises(ConfigError, match="'npy': got an unexpected keyword argument 'positive'"):
        open_writer(tmp_path, "npy", positive="x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="closed"):
        open_writer(tmp_path / "closed" / "data", "npy")


def test_a_format_of_ones_own_is_one_class(tmp_path: Path) -> None:
    @register_format("mine", override=True)
    class Mine(EpisodeFormat):
        name, about = "mine", "files called .mine"

        @classmethod
        def matches(cls, path: Path) -> bool:
            return path.suffix == ".mine"

        @classmethod
        def read(cls, path: Path) -> list[int]:
            return [1]

    try:
        (tmp_path / "x.mine").touch()
        assert load_episodes(tmp_path / "x.mine") == [1]
    finally:
        from plaudit.data.formats import FORMATS

        del FORMATS._entries["mine"]
