"""The doctor finds each planted fault, names the place, and finds nothing in a clean data set."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenes import LENGTH, alter, make_store, scene

from plaudit.data import Episode, EpisodeStore
from plaudit.data.doctor import KINDS, LOOK, SPOILS, Diagnosis, diagnose
from plaudit.data.doctor.html import write_diagnosis
from plaudit.data.episode import EpisodeSource
from plaudit.data.split import split_episodes
from plaudit.data.split_files import read_members, save_splits

COUNT = 24
ONE = "scene-003"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = make_store(tmp_path_factory.mktemp("clean") / "data", COUNT)
    save_splits(store.path / "splits", split_episodes(store))
    return store.path


@pytest.fixture
def data(clean: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "data"))


def examine(path: Path) -> Diagnosis:
    store = EpisodeStore(path)
    return diagnose(store, read_members(path / "splits", store))


def members(path: Path, split: str) -> dict[str, list[int]]:
    return dict(json.loads((path / "splits" / f"{split}.json").read_text())["episodes"])


def rewrite(path: Path, split: str, change: Callable[[dict[str, list[int]]], None]) -> None:
    file = path / "splits" / f"{split}.json"
    content = json.loads(file.read_text())
    change(content["episodes"])
    file.write_text(json.dumps(content))


def with_frames(change: Callable[[np.ndarray[Any, Any]], None]) -> Callable[[Episode], Episode]:
    """An episode with its pictures changed in place."""

    def apply(episode: Episode) -> Episode:
        change(episode.frames["camera"])
        return episode

    return apply


def with_labels(*labels: int, **changes: Any) -> Callable[[Episode], Episode]:
    """An episode with its last labels changed."""

    def apply(episode: Episode) -> Episode:
        new = episode.labels.copy()
        new[-len(labels) :] = labels
        return dataclasses.replace(episode, labels=new, **changes)

    return apply


def test_a_clean_data_set_has_nothing(clean: Path) -> None:
    assert examine(clean).findings == []
    assert diagnose(EpisodeStore(clean)).findings == []
    assert not examine(clean).spoiled


def truncate(path: Path) -> None:
    file = EpisodeStore(path).file(ONE)
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    file = EpisodeStore(path).file(ONE)
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    file.write_bytes(content)


def darken(path: Path) -> None:
    alter(path, 3, with_frames(lambda pixels: pixels[5:7].__ifloordiv__(40)))


def overexpose(path: Path) -> None:
    alter(path, 3, with_frames(lambda pixels: pixels.__setitem__(5, 252)))


def blank(path: Path) -> None:
    alter(path, 3, with_frames(lambda pixels: pixels.__setitem__(5, 128)))


def tear(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (24, 48, 3))
    alter(path, 3, with_frames(lambda pixels: pixels[6].__setitem__(slice(24), noise)))


def freeze(path: Path) -> None:
    alter(path, 3, with_frames(lambda pixels: pixels.__setitem__(slice(3, 9), pixels[3].copy())))


def take_next_reset(path: Path) -> None:
    for number in range(COUNT):
        alter(path, number, with_frames(lambda pixels: pixels.__setitem__(-1, pixels[0])))


def flicker(path: Path) -> None:
    alter(path, 3, with_labels(1, 0, 1, 0, 1, 0, 1, success=True))


def end_in_failure(path: Path) -> None:
    alter(path, 2, with_labels(0, 0))


def call_a_success_failure(path: Path) -> None:
    alter(path, 3, lambda episode: dataclasses.replace(episode, success=True))


def call_a_failure_success(path: Path) -> None:
    alter(path, 2, lambda episode: dataclasses.replace(episode, success=False))


def forget_labels(path: Path) -> None:
    alter(path, 3, with_labels(-1, -1))


def break_numbers(path: Path) -> None:
    def change(episode: Episode) -> Episode:
        actions = np.array(episode.actions)
        actions[4, 0] = np.nan
        return dataclasses.replace(episode, actions=actions)

    alter(path, 3, change)


def shrink(path: Path) -> None:
    alter(path, 3, lambda e: dataclasses.replace(e, frames={"camera": e.frames["camera"][:, ::2, ::2]}))


def rename_camera(path: Path) -> None:
    alter(path, 3, lambda e: dataclasses.replace(e, frames={"another": e.frames["camera"]}))


def copy(path: Path, split: str, change: Callable[[Episode], Episode]) -> None:
    """A second episode from one of the training split, put into some split."""
    store = EpisodeStore(path)
    original = store[list(store.ids).index(next(iter(members(path, "train"))))]
    store.add([dataclasses.replace(change(original), id="the-copy")])
    rewrite(path, split, lambda episodes: episodes.update({"the-copy": [0, 1]}))


def copy_across(path: Path) -> None:
    copy(path, "val", lambda episode: episode)


def copy_within(path: Path) -> None:
    copy(path, "train", lambda episode: episode)


def save_anew_across(path: Path) -> None:
    def change(episode: Episode) -> Episode:
        noise = np.random.default_rng(0).normal(4, 3, episode.frames["camera"].shape)
        pixels = np.clip(episode.frames["camera"] + noise, 0, 255).astype(np.uint8)
        return dataclasses.replace(episode, frames={"camera": pixels})

    copy(path, "test", change)


def cut_in_two(path: Path) -> None:
    def change(episode: Episode) -> Episode:
        rows = slice(5, None)
        return dataclasses.replace(
            episode,
            frames={"camera": episode.frames["camera"][rows]},
            labels=episode.labels[rows],
            frame_index=episode.frame_index[rows],
        )

    copy(path, "val", change)


def train_on_a_test_episode(path: Path) -> None:
    moved = next(iter(members(path, "test").items()))
    rewrite(path, "train", lambda episodes: episodes.update([moved]))


def lose_an_episode(path: Path) -> None:
    EpisodeStore(path).file(ONE).unlink()


def add_an_episode(path: Path) -> None:
    EpisodeStore(path).add([scene(COUNT)])


def leave_out_success(path: Path) -> None:
    rewrite(path, "val", lambda episodes: episodes.update({id: [0, 1] for id in episodes}))


def make_success_rare(path: Path) -> None:
    def thin(episodes: dict[str, list[int]]) -> None:
        last = max(id for id in episodes if int(id[-3:]) % 2 == 0)
        episodes.update({id: list(range(LENGTH - 3)) for id in episodes if int(id[-3:]) % 2 == 0})
        episodes[last].append(LENGTH - 1)

    rewrite(path, "train", thin)


FAULTS = {
    truncate: ("unreadable", SPOILS, ONE),
    flip_a_bit: ("unreadable", SPOILS, "checksum"),
    leave_out_success: ("one_class", SPOILS, "val"),
    shrink: ("cameras", SPOILS, ONE),
    rename_camera: ("cameras", SPOILS, "another 48×48"),
    train_on_a_test_episode: ("two_splits", SPOILS, "train and test"),
    copy_across: ("copies_across", SPOILS, "the-copy"),
    save_anew_across: ("copies_across", SPOILS, "the-copy"),
    cut_in_two: ("copies_across", SPOILS, "the-copy"),
    lose_an_episode: ("gone", SPOILS, ONE),
    add_an_episode: ("unsplit", LOOK, "scene-024"),
    copy_within: ("copies", LOOK, "the-copy"),
    take_next_reset: ("wrong_end", SPOILS, ONE),
    call_a_success_failure: ("contradiction", LOOK, ONE),
    call_a_failure_success: ("contradiction", LOOK, "scene-002"),
    freeze: ("frozen", LOOK, ONE),
    darken: ("dark", LOOK, ONE),
    overexpose: ("blown_out", LOOK, ONE),
    blank: ("blank", LOOK, ONE),
    tear: ("glitch", LOOK, ONE),
    flicker: ("flicker", LOOK, ONE),
    end_in_failure: ("ends_failing", LOOK, "scene-002"),
    forget_labels: ("unknown", LOOK, ONE),
    make_success_rare: ("imbalance", LOOK, "train"),
    break_numbers: ("not_finite", LOOK, ONE),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_nothing_else(plant: Callable[[Path], None], data: Path) -> None:
    kind, severity, place = FAULTS[plant]
    plant(data)
    findings = examine(data).findings
    assert [(finding.kind, finding.severity) for finding in findings] == [(kind, severity)]
    assert any(place in f"{spot.episode} {spot.detail}" for spot in findings[0].spots)


def test_every_kind_of_fault_is_planted() -> None:
    assert {kind for kind, _, _ in FAULTS.values()} == set(KINDS)


def test_frames_are_named_by_their_instant(data: Path) -> None:
    darken(data)
    (finding,) = examine(data).findings
    assert finding.spots[0].frames == (5, 6) and finding.count == 2
    assert finding.spots[0].file.endswith(f"{ONE}.safetensors")
    assert [tile.caption[0] for tile in finding.tiles] == [ONE, ONE]


def test_what_a_fit_survives_in_one_episode_spoils_it_in_many(data: Path) -> None:
    for number in range(0, COUNT, 3):
        alter(data, number, with_frames(lambda pixels: pixels[4:8].__ifloordiv__(40)))
    (finding,) = examine(data).findings
    assert (finding.kind, finding.severity, finding.count) == ("dark", SPOILS, 8 * 4)


def test_a_rest_is_not_a_frozen_camera(data: Path) -> None:
    def rest(episode: Episode) -> Episode:
        state, actions = np.array(episode.state), np.array(episode.actions)
        state[9:], actions[9:] = state[9], 0
        episode.frames["camera"][9:] = episode.frames["camera"][9]
        return dataclasses.replace(episode, state=state, actions=actions)

    alter(data, 3, rest)
    assert examine(data).findings == []


@pytest.mark.parametrize(("known", "found"), [("actions", True), ("nothing", False)])
def test_a_frozen_camera_by_actions_alone(known: str, found: bool, data: Path) -> None:
    alter(data, 3, with_frames(lambda pixels: pixels.__setitem__(slice(7, 14), pixels[7].copy())))
    changes: dict[str, Any] = {"state": None} if known == "actions" else {"state": None, "actions": None}
    alter(data, 3, lambda episode: dataclasses.replace(episode, **changes))
    assert [finding.kind for finding in examine(data).findings] == ["frozen"] * found


def test_a_clock_in_the_state_is_no_motion(data: Path) -> None:
    def rest(episode: Episode) -> Episode:
        assert episode.state is not None
        state = np.concatenate([episode.state, np.arange(LENGTH + 1)[:, None]], axis=1).astype(np.float32)
        if episode.id == ONE:
            state[9:, :-1] = state[9, :-1]
            episode.frames["camera"][9:] = episode.frames["camera"][9]
        return dataclasses.replace(episode, state=state)

    for number in range(COUNT):
        alter(data, number, rest)
    assert examine(data).findings == []


def test_frames_far_apart_may_be_unlike_each_other(data: Path) -> None:
    def few(episode: Episode) -> Episode:
        rows = np.array([0, 3, 6, 9, 14])
        pixels = episode.frames["camera"][rows]
        pixels[2] = np.roll(pixels[2], 24, axis=0)
        return dataclasses.replace(
            episode, frames={"camera": pixels}, labels=episode.labels[rows], frame_index=episode.frame_index[rows]
        )

    alter(data, 3, few)
    assert diagnose(EpisodeStore(data)).findings == []


@pytest.mark.parametrize(("episodes", "found"), [(2, False), (6, True)])
def test_a_simulator_may_leave_some_frames_unlabelled(episodes: int, found: bool, data: Path) -> None:
    for number in range(1, 2 * episodes, 2):
        alter(data, number, with_labels(-1, -1, -1, -1, label_source="simulator"))
    assert [finding.kind for finding in diagnose(EpisodeStore(data)).findings] == ["unknown"] * found


def test_simulators_may_hover_and_lose_success(data: Path) -> None:
    labels = np.zeros(40 + 1, np.int8)
    labels[10:20:2] = 1
    long = dataclasses.replace(scene(50, length=40), labels=labels, label_source="simulator")
    EpisodeStore(data).add([dataclasses.replace(long, id="long")])
    assert diagnose(EpisodeStore(data)).findings == []
    # "long" comes before "scene" in the store.
    alter(data, 0, lambda episode: dataclasses.replace(episode, label_source="person"))
    kinds = [finding.kind for finding in diagnose(EpisodeStore(data)).findings]
    assert kinds == ["flicker", "ends_failing"]


def test_the_reset_may_look_the_same_everywhere(data: Path) -> None:
    first = np.array(EpisodeStore(data)[0].frames["camera"][0])
    for number in range(COUNT):
        alter(data, number, with_frames(lambda pixels: pixels.__setitem__(0, first)))
    assert examine(data).findings == []


class Singles(EpisodeSource):
    """Every frame an episode of its own, as some layouts have it."""

    format = "singles"

    def __init__(self, store: EpisodeStore) -> None:
        self.path = store.path
        self.frames = [(index, row) for index, episode in enumerate(store) for row in range(len(episode))]
        self.store = store

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, index: int) -> Episode:
        number, row = self.frames[index]
        episode = self.store[number]
        pixels, label = episode.frames["camera"][row : row + 1], episode.labels[row : row + 1]
        return Episode(f"{number:03d}-{row:03d}", {"camera": pixels}, label, np.zeros(1, np.int32), 0)


def test_single_frames_of_one_recording_in_two_splits(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path / "data")
    for number in range(8):
        episode = scene(number)
        pixels = episode.frames["camera"].repeat(2, axis=0)
        pixels[1::2] = np.clip(pixels[1::2].astype(int) + 2, 0, 255)
        store.add([
            dataclasses.replace(
                episode,
                frames={"camera": pixels},
                labels=episode.labels.repeat(2),
                frame_index=np.arange(len(pixels), dtype=np.int32),
                length=len(pixels),
                state=None, actions=None, rewards=None, terminated=None, truncated=None,
            )
        ])  # fmt: skip
    singles = Singles(store)
    row = np.zeros(1, np.int32)
    ids = [singles[i].id for i in range(len(singles))]
    by_frame = {"train": dict.fromkeys(ids[::2], row), "val": dict.fromkeys(ids[1::2], row)}
    assert [finding.kind for finding in diagnose(singles, by_frame).findings] == ["copies_across"]
    held = {id for id in ids if id < "004"}
    by_episode = {"train": {id: row for id in ids if id not in held}, "val": dict.fromkeys(held, row)}
    kinds = [finding.kind for finding in diagnose(singles, by_episode).findings]
    assert "copies_across" not in kinds


def test_the_page_holds_findings_pictures_and_no_markup_from_the_data(data: Path, tmp_path: Path) -> None:
    alter(data, 3, lambda episode: dataclasses.replace(darkened(episode), id="<script>"))
    diagnosis = diagnose(EpisodeStore(data))
    write_diagnosis(tmp_path / "page.html", diagnosis)
    text = (tmp_path / "page.html").read_text()
    assert "dark frames" in text and KINDS["dark"].why in text
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert text.count("data:image/png;base64,") > 10 and "http" not in text


def darkened(episode: Episode) -> Episode:
    episode.frames["camera"][5:7] //= 40
    return episode


def test_the_page_is_written_even_of_a_damaged_data_set(data: Path, tmp_path: Path) -> None:
    truncate(data)
    write_diagnosis(tmp_path / "page.html", examine(data))
    assert "cut short" in (tmp_path / "page.html").read_text()


def test_findings_are_counted_beyond_those_that_are_named(tmp_path: Path) -> None:
    from plaudit.data.doctor.issues import MOST_SPOTS, Notebook, Spot

    notes = Notebook()
    for number in range(MOST_SPOTS + 7):
        notes.add("flicker", Spot(str(number)))
    (finding,) = notes.findings(1000, 1000)
    assert finding.places == finding.count == MOST_SPOTS + 7 and len(finding.spots) == MOST_SPOTS
    assert json.loads(json.dumps(finding.as_dict()))["places"] == MOST_SPOTS + 7
