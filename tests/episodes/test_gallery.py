"""The gallery shows the right frames with the right captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import make_episode

from plaudit.data import EpisodeStore
from plaudit.data.contact_sheet import changes, contact_sheet, gallery, tile
from plaudit.errors import OutputError
from plaudit.reporting.contact_sheet import BAD, GOOD, UNSURE


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([make_episode(f"p{i}", success_at=3) for i in range(5)] + [make_episode(f"n{i}") for i in range(5)])
    return store


def test_changes_pass_over_unknown_labels() -> None:
    labels = np.array([-1, 0, 0, -1, 1, 1, 0, -1], np.int8)
    assert changes(labels).tolist() == [4, 6]
    assert changes(np.array([-1, -1], np.int8)).tolist() == []


def test_rows_hold_positives_negatives_and_label_changes(store: EpisodeStore) -> None:
    positives, negatives, pairs = gallery(store, count=4)
    assert len(positives.tiles) == 4 and all(t.caption[0].startswith("p") for t in positives.tiles)
    assert all(t.caption[1] == "frame 5/5, success" and t.colour == GOOD for t in positives.tiles)
    assert len(negatives.tiles) == 4 and all(t.caption[1] == "frame 5/5, failure" for t in negatives.tiles)
    assert pairs.group == 2 and [t.caption[1] for t in pairs.tiles[:2]] == ["frame 2/5, failure", "frame 3/5, success"]
    assert pairs.tiles[0].caption[0] == pairs.tiles[1].caption[0]


def test_the_seed_draws(store: EpisodeStore) -> None:
    def shown(seed: int) -> list[str]:
        return [t.caption[0] for strip in gallery(store, count=2, seed=seed) for t in strip.tiles]

    assert shown(1) == shown(1) and len({tuple(shown(seed)) for seed in range(5)}) > 1


def test_a_positive_that_ends_in_failure_shows_its_last_success(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path / "data")
    labels = np.array([0, 0, 1, 1, 0, 0], np.int8)
    store.add([make_episode("lost", labels=labels), make_episode("flag", success=True)])
    captions = [t.caption[1] for t in gallery(store)[0].tiles]
    assert captions == ["frame 5/5, failure", "frame 3/5, success"]


def test_a_tile_is_one_camera_or_all_side_by_side() -> None:
    episode = make_episode("a", labels=np.array([0, 0, 0, 0, 0, -1], np.int8))
    np.testing.assert_array_equal(tile(episode, 2, "wrist_camera").frame, episode.frames["wrist_camera"][2])
    assert tile(episode, 2).colour == BAD and tile(episode, -1).colour == UNSURE
    both = tile(episode, 2).frame  # 8×10 pixels 14 times, 6×6 pixels 19 times, and two columns between them.
    assert both.shape == (114, 140 + 2 + 114, 3)


def test_the_sheet_is_written_or_says_why_not(store: EpisodeStore, tmp_path: Path) -> None:
    contact_sheet(tmp_path / "deep" / "sheet.png", store)
    assert (tmp_path / "deep" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="no picture to show"):
        contact_sheet(tmp_path / "none.png", EpisodeStore.create(tmp_path / "empty"))
    assert not (tmp_path / "none.png").exists()
