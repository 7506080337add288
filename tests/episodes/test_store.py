"""The store: whole files, an index that can be lost, many writers at a time."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from samples import assert_same, make_episode

from plaudit.data import Episode, EpisodeStore
from plaudit.data import serialization as files
from plaudit.data import store as store_module
from plaudit.errors import DataError, OutputError


def test_an_episode_comes_back_as_it_was(tmp_path: Path) -> None:
    episode = make_episode("a", success_at=3)
    store = EpisodeStore.create(tmp_path / "data")
    assert store.add([episode]) == 1
    assert_same(EpisodeStore(tmp_path / "data")[0], episode)


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    frames = {"camera": np.zeros((1, 4, 5, 3), np.uint8)}
    episode = Episode("x", frames, np.array([-1], np.int8), np.array([0], np.int32), 0)
    store = EpisodeStore.create(tmp_path)
    store.add([episode])
    assert_same(store[0], episode)
    assert store.counts.unknown_frames == 1 and store.counts.negative == 1


def test_the_same_id_is_never_there_twice(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    assert store.add([make_episode("a"), make_episode("b")]) == 2
    assert store.add([make_episode("b"), make_episode("c")]) == 1
    assert list(store.ids) == ["a", "b", "c"] and "b" in store and "d" not in store


def test_the_same_id_twice_in_one_call(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    assert store.add([make_episode("a"), make_episode("a", success_at=2)]) == 1
    assert len(EpisodeStore(tmp_path)) == 1


def test_frames_are_mapped_not_read(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    store.add([make_episode("a")])
    pixels = store[0].frames["base_camera"]
    assert not pixels.flags.owndata and not pixels.flags.writeable


def test_index_and_manifest_are_made_anew_from_the_files(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    store.add([make_episode("a", success_at=2), make_episode("b")])
    before = store.counts
    index, manifest = (tmp_path / name for name in ("index.jsonl", "manifest.json"))
    whole = json.loads(manifest.read_text())
    assert whole["positive_episodes"] == 1 and whole["negative_episodes"] == 1 and whole["frames"] == before.frames
    assert whole["cameras"] == {"base_camera": [[8, 10]], "wrist_camera": [[6, 6]]}
    index.unlink(), manifest.unlink()
    assert EpisodeStore(tmp_path).counts == before
    EpisodeStore.create(tmp_path)
    assert len(index.read_text().splitlines()) == 2 and json.loads(manifest.read_text()) == whole


def test_a_torn_index_line_loses_nothing(tmp_path: Path) -> None:
    EpisodeStore.create(tmp_path).add([make_episode("a"), make_episode("b")])
    index = tmp_path / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-20])
    store = EpisodeStore(tmp_path)
    assert len(store.summaries()) == 2
    store.add([make_episode("c")])
    assert [summary.id for summary in EpisodeStore(tmp_path).summaries()] == ["a", "b", "c"]


def test_a_removed_file_is_gone_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    store.add([make_episode(name) for name in "abc"])
    store.file("a").unlink()
    store.file("b").write_bytes(store.file("b").read_bytes()[:-1])
    again = EpisodeStore(tmp_path)
    assert list(again.ids) == ["b", "c"]
    with pytest.raises(DataError, match=r"b\.safetensors: .*cut short"):
        again[0]


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 300])
def test_any_truncation_is_an_error_that_names_the_file(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(files.encode(make_episode("x"))[:keep])
    with pytest.raises(DataError, match=r"x\.safetensors"):
        files.read(path)


def test_the_checksum_finds_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    content = bytearray(files.encode(make_episode("x")))
    path.write_bytes(content)
    files.verify(path)
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        files.verify(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    EpisodeStore.create(tmp_path).add([make_episode("a")])
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(DataError, match="newer version"):
        EpisodeStore(tmp_path)


def test_a_folder_with_other_things_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(OutputError, match="other files"):
        EpisodeStore.create(tmp_path)
    with pytest.raises(DataError, match="not an episode store"):
        EpisodeStore(tmp_path)


def test_an_episode_that_does_not_fit_together_is_not_written(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    good = make_episode("a")
    bad = Episode("bad", good.frames, good.labels[:-1], good.frame_index[:-1], good.length)
    with pytest.raises(DataError, match=r"episode 'bad': frames\['base_camera'\] has 6 frames"):
        store.add([good, bad])
    assert len(EpisodeStore(tmp_path)) == 0


def _add_many(path: Path, writer: int) -> None:
    store = EpisodeStore.create(path)
    number = store.next_writer()
    for i in range(10):
        store.add([make_episode(f"w{number}-{i}"), make_episode(f"shared-{i}")])


def test_many_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add_many, args=(tmp_path, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    store = EpisodeStore(tmp_path)
    assert len(store) == 4 * 10 + 10
    lines = [json.loads(line)["id"] for line in (tmp_path / "index.jsonl").read_text().splitlines() if line]
    assert sorted(lines) == list(store.ids)
    assert json.loads((tmp_path / "manifest.json").read_text())["negative_episodes"] == 50


def test_a_lost_or_damaged_count_of_writers_is_taken_from_the_ids(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    store.add([make_episode("PickCube-s0-w004-e0000-000000")])
    assert store.next_writer() == 5
    (tmp_path / "writers").write_text("junk")
    assert store.next_writer() == 5 and store.next_writer() == 6


def test_a_strange_manifest_does_not_hide_the_episodes(tmp_path: Path) -> None:
    EpisodeStore.create(tmp_path).add([make_episode("a")])
    (tmp_path / "manifest.json").write_text('{"format": "x", "schema": 1}')
    assert len(EpisodeStore.create(tmp_path)) == 1


def test_only_what_a_dead_process_of_this_machine_left_is_swept(tmp_path: Path) -> None:
    EpisodeStore.create(tmp_path).add([make_episode("a")])
    folder = tmp_path / "episodes"
    host = store_module._HERE
    for name in (f"{host}4194305.dead", f"{host}1.alive", ".other-host.4194305.alive"):
        (folder / name).touch()
    EpisodeStore.create(tmp_path)
    assert sorted(path.name for path in folder.glob(".*")) == sorted([f"{host}1.alive", ".other-host.4194305.alive"])
