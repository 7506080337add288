"""Our own writing of safetensors, against the library's reading."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from samples import assert_same, make_episode

from plaudit.data import Episode
from plaudit.data import serialization as tensors


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    episode = make_episode("a", success_at=3)
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensors.encode(episode))
    with safe_open(path, "np") as file:
        assert json.loads(file.metadata()["plaudit"])["id"] == "a"
        np.testing.assert_array_equal(file.get_tensor("frames.base_camera"), episode.frames["base_camera"])
        np.testing.assert_array_equal(file.get_tensor("labels"), episode.labels)
        np.testing.assert_array_equal(file.get_tensor("state"), episode.state)
        np.testing.assert_array_equal(file.get_tensor("truncated"), episode.truncated)
        assert len(list(file.keys())) == 10


def test_numbers_lie_at_multiples_of_their_size(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensors.encode(make_episode("a", length=3)))
    for name, place in tensors.places(path).items():
        assert place.start % place.dtype.itemsize == 0, name


def test_an_episode_without_an_action(tmp_path: Path) -> None:
    frames = {"camera": np.zeros((1, 4, 5, 3), np.uint8)}
    nothing = np.zeros((0, 3), np.float32)
    episode = Episode("x", frames, np.array([-1], np.int8), np.array([0], np.int32), 0, actions=nothing)
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensors.encode(episode))
    assert_same(tensors.verify(path), episode)
