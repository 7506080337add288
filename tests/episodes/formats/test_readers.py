"""Every layout, written by hand as its system writes it: frames, labels and the rest land where they belong."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
import torch
from layouts import CAMERA, LAYOUTS
from PIL import Image
from samples import make_episode

import plaudit
from plaudit.data import UNKNOWN
from plaudit.data.formats import FORMATS, load_episodes
from plaudit.errors import DataError

SUCCESS_AT = 3
KNOWN_LABELS = {
    "npy": [0, 0, 0, 1, 1, 1],
    "images": [0, 0, 0, 1, 1, 1],
    "class_folders": [0, 0, 0, 1, 1, 1],
    "plaudit": [0, 0, 0, 1, 1, 1],
    "episode_pkl": [None, 0, 0, 1, 1, 1],
    "realworld_raw": [-1, 0, 0, 1, 1, 1],
    "realworld": [-1, 0, 0, 1, 1, None],
    "rlinf": [-1, 0, 0, 1, 1, 1],
    "hilserl": [-1, 0, 0, 1, 1, 1],
}
"""The label at each instant of an episode that succeeds at instant 3 of 5; `None` where there is no frame."""


@pytest.mark.parametrize("layout", KNOWN_LABELS)
def test_a_known_success_step_is_on_the_right_frame(layout: str, tmp_path: Path) -> None:
    truth = make_episode("e", success_at=SUCCESS_AT)
    format, write = LAYOUTS[layout]
    write(tmp_path, truth)
    source = load_episodes(tmp_path)
    assert source.format == format and len(source) == 1
    episode = source[0]
    there = [t for t, label in enumerate(KNOWN_LABELS[layout]) if label is not None]
    assert episode.frame_index.tolist() == there
    assert episode.labels.tolist() == [label for label in KNOWN_LABELS[layout] if label is not None]
    (camera,) = set(episode.frames) & {CAMERA, "main_images", "wrist_1", "camera"}
    np.testing.assert_array_equal(episode.frames[camera], truth.frames[CAMERA][there])
    assert episode.success is (None if layout == "images" else True) and episode.positive


@pytest.mark.parametrize("layout", ["episode_pkl", "realworld_raw", "realworld", "rlinf", "hilserl"])
def test_states_and_steps_belong_to_their_instants(layout: str, tmp_path: Path) -> None:
    truth = make_episode("e", success_at=SUCCESS_AT)
    LAYOUTS[layout][1](tmp_path, truth)
    episode = load_episodes(tmp_path)[0]
    assert episode.length == truth.length
    np.testing.assert_array_equal(episode.actions, truth.actions)
    np.testing.assert_array_equal(episode.state_at(episode.frame_index), truth.state_at(episode.frame_index))
    if layout != "hilserl":
        np.testing.assert_array_equal(episode.rewards, truth.rewards)
        np.testing.assert_array_equal(episode.terminated, truth.terminated)
        np.testing.assert_array_equal(episode.truncated, truth.truncated)


def test_the_importer_says_that_it_moved_labels(tmp_path: Path) -> None:
    layouts.realworld(tmp_path, make_episode("e", success_at=2))
    assert "moved to the next frame" in load_episodes(tmp_path).notes[0]


def test_a_success_of_the_last_step_is_known_though_its_frame_is_not_there(tmp_path: Path) -> None:
    layouts.realworld(tmp_path, make_episode("e", success_at=5))
    episode = load_episodes(tmp_path)[0]
    assert episode.success and episode.positive and 1 not in episode.labels
    assert np.isnan(episode.state[-1]).all() and not np.isnan(episode.state[:-1]).any()


def test_episode_pkl_keeps_flags_and_metadata(tmp_path: Path) -> None:
    truth = make_episode("e")
    layouts.episode_pkl(tmp_path, truth)
    episode = load_episodes(tmp_path)[0]
    assert episode.id == "failure-episode_000000" and episode.meta == {"env": "PickCube", "seed": 7}
    np.testing.assert_array_equal(episode.flags["grasp"], truth.flags["grasp"][1:])


def test_raw_transitions_are_cut_at_dones_and_an_unfinished_episode_is_kept(tmp_path: Path) -> None:
    first, second = make_episode("a", success_at=2), make_episode("b", length=3)
    steps = layouts.transitions(first) + layouts.transitions(second, done=False)
    source = load_episodes(layouts.dump(tmp_path / "input_data.pkl", steps))
    assert source.format == "realworld_raw" and [len(episode) for episode in source] == [6, 4]
    assert [episode.id for episode in source] == ["input_data-000000", "input_data-000001"]
    np.testing.assert_array_equal(source[1].frames["main_images"], second.frames[CAMERA])
    assert any("middle of an episode" in note for note in source.notes)


@pytest.mark.parametrize(
    "info",
    [
        lambda success: {"success": torch.tensor([success]), "is_obj_placed": not success},
        lambda success: {"is_obj_placed": np.bool_(success), "success_frame": float(not success)},
        lambda success: {"success_frame": np.float32(success), "episode": {"success_once": not success}},
        lambda success: {"episode": {"success_once": torch.tensor(success)}},
        lambda success: {"episode.success_once": success},
    ],
)
def test_rlinf_labels_are_found_in_the_order_of_their_names(info: Any, tmp_path: Path) -> None:
    layouts.rlinf(tmp_path, make_episode("e", success_at=SUCCESS_AT), info=info)
    source = load_episodes(tmp_path)
    assert source[0].labels.tolist() == KNOWN_LABELS["rlinf"]
    assert bool(source.notes) == ("success_once" in str(info(True)) and "success_frame" not in info(True))


def test_rlinf_without_labels_or_entries_for_the_reset(tmp_path: Path) -> None:
    file = layouts.rlinf(tmp_path, make_episode("e"), info=lambda _: {})
    content = pickle.loads(file.read_bytes())
    for key in ("rewards", "terminated", "truncated", "infos"):
        del content[key][0]
    older = layouts.dump(tmp_path / "rank_0_env_0_episode_7_fail.pkl", content)
    file.unlink()
    source = load_episodes(tmp_path)
    assert source.format == "rlinf" and source.files[0][1] == older
    assert source[0].labels.tolist() == [UNKNOWN] * 6 and len(source[0].rewards) == 5


def test_rlinf_views_under_one_name_become_cameras(tmp_path: Path) -> None:
    truth = make_episode("e")
    file = layouts.rlinf(tmp_path, truth)
    content = pickle.loads(file.read_bytes())
    for t, seen in enumerate(content["observations"]):
        seen["extra_view_images"] = torch.from_numpy(truth.frames["wrist_camera"][[t, 0]])
    layouts.dump(file, content)
    frames = load_episodes(tmp_path)[0].frames
    assert set(frames) == {"main_images", "extra_view_images_0", "extra_view_images_1"}
    np.testing.assert_array_equal(frames["extra_view_images_0"], truth.frames["wrist_camera"])


def test_files_with_and_without_the_reset_are_not_taken_for_each_other(tmp_path: Path) -> None:
    new = layouts.rlinf(tmp_path / "new", make_episode("e"))
    old = layouts.realworld(tmp_path / "old", make_episode("e"))
    assert load_episodes(new).format == "rlinf" and load_episodes(old).format == "realworld"
    with pytest.raises(DataError, match=f"{new.name}.*read it as 'rlinf'"):
        load_episodes(new, "realworld")[0]
    with pytest.raises(DataError, match=f"{old.name}.*read it as 'realworld'"):
        load_episodes(old, "rlinf")[0]


def test_images_without_episodes_are_episodes_of_one_frame(tmp_path: Path) -> None:
    truth = make_episode("e", success_at=SUCCESS_AT)
    file = layouts.rlinf_pt(tmp_path, truth)
    for place in (tmp_path, file):
        source = load_episodes(place)
        assert source.format == "rlinf_pt" and len(source) == 6
        assert [int(episode.labels[0]) for episode in source] == truth.labels.tolist()
        np.testing.assert_array_equal(
            np.concatenate([episode.frames["main_images"] for episode in source]), truth.frames[CAMERA]
        )
        assert source[4].meta == {"split": "train"} and "near-duplicates" in source.notes[0]


def test_hilserl_puts_failures_and_successes_of_an_episode_together(tmp_path: Path) -> None:
    first, second = make_episode("a", success_at=2), make_episode("b", length=4)
    failures = layouts.hilserl(tmp_path, first)
    more = layouts.hilserl(tmp_path / "more", second)
    layouts.dump(failures, pickle.loads(failures.read_bytes()) + pickle.loads(more.read_bytes()))
    source = [episode for episode in load_episodes(tmp_path) if episode.label_source == "person"]
    assert sorted(len(episode) for episode in source) == [5, 6]
    assert {episode.positive for episode in source} == {True, False}
    alone = load_episodes(failures)
    assert [len(episode) for episode in alone] == [2, 5] and alone[0].labels.tolist() == [UNKNOWN, 0]


def test_class_folders_by_name(tmp_path: Path) -> None:
    grey = Image.new("L", (5, 4), 7)
    for name in ("positive/one.png", "negative/two.jpg", "positive/run3/000.png", "negative/run3/001.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        grey.save(tmp_path / name)
    source = load_episodes(tmp_path)
    assert {episode.id: episode.labels.tolist() for episode in source} == {
        "positive-one": [1],
        "negative-two": [0],
        "run3": [1, 0],
    }
    assert source[2].frames["camera"].shape == (2, 4, 5, 3) and "2 of 3 episodes" in source.notes[0]


def test_one_file_of_a_folder_can_be_read_alone(tmp_path: Path) -> None:
    for layout in ("npy", "episode_pkl", "realworld", "rlinf"):
        source = load_episodes(LAYOUTS[layout][1](tmp_path / layout, make_episode("e", success_at=1)))
        assert source.format == layout and len(source) == 1 and source[0].positive


def test_nothing_is_opened_before_it_is_asked_for(tmp_path: Path) -> None:
    for layout in ("npy", "episode_pkl", "realworld"):
        for number in range(3):
            file = LAYOUTS[layout][1](tmp_path / layout, make_episode("e"), number)
        file.write_bytes(b"garbage")
        source = load_episodes(tmp_path / layout)
        assert len(source) == 3 and len(source[1]) >= 5
        with pytest.raises(DataError, match=file.name):
            source[2]
        with pytest.raises(DataError, match=file.name):
            list(source)


def test_sources_can_be_sent_to_another_process(tmp_path: Path) -> None:
    for layout, (_, write) in LAYOUTS.items():
        write(tmp_path / layout, make_episode("e", success_at=1))
        source = load_episodes(tmp_path / layout)
        again = pickle.loads(pickle.dumps(source))
        assert len(again) == len(source) and again[0].id == source[0].id


def test_load_episodes_is_public() -> None:
    assert plaudit.load_episodes is load_episodes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_layout_is_taken_for_another(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout][1](tmp_path, make_episode("e", success_at=1))
    assert [name for name in FORMATS.names() if FORMATS.get(name).matches(tmp_path)] == [LAYOUTS[layout][0]]


def test_what_is_not_known_is_described(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is nothing at"):
        load_episodes(tmp_path / "nowhere")
    with pytest.raises(DataError, match="It is empty"):
        load_episodes(tmp_path)
    (tmp_path / "positive").mkdir()
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(DataError, match=r"It holds the folder positive and 1 file \.tex. Known are:\n  episode_pkl "):
        load_episodes(tmp_path)
    with pytest.raises(DataError, match="there are no episodes in"):
        load_episodes(tmp_path, "npy")
    with pytest.raises(DataError, match="It is a file of 3 bytes"):
        load_episodes(tmp_path / "thesis.tex")


def test_two_layouts_in_one_folder_must_be_told_apart(tmp_path: Path) -> None:
    layouts.npy(tmp_path, make_episode("e"))
    layouts.realworld_raw(tmp_path, make_episode("e"))
    with pytest.raises(DataError, match="npy or realworld_raw; say which"):
        load_episodes(tmp_path)
    assert load_episodes(tmp_path, "npy").format == "npy"


def test_several_pickles_in_one_file_are_not_read_as_the_first(tmp_path: Path) -> None:
    file = layouts.realworld_raw(tmp_path, make_episode("e"))
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(DataError, match=r"data\.pkl.*more behind its end"):
        len(load_episodes(tmp_path))
