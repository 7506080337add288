from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import assert_same, make_episode

from plaudit.data import EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.data.store import JoinedStore
from plaudit.errors import DataError, OutputError


def store(path: Path, *ids: str) -> EpisodeStore:
    made = EpisodeStore.create(path)
    made.add([make_episode(id) for id in ids])
    return made


def test_the_episodes_of_both_in_their_order(tmp_path: Path) -> None:
    joined = JoinedStore([store(tmp_path / "a", "m", "z"), store(tmp_path / "b", "c")])
    assert list(joined.ids) == ["m", "z", "c"] == [summary.id for summary in joined.summaries()]
    assert len(joined) == 3 and "c" in joined and "d" not in joined
    assert_same(joined[2], make_episode("c"))
    frames = FrameDataset(joined)
    alone = FrameDataset(EpisodeStore(tmp_path / "b"))
    last = len(frames) - 1
    for camera, pixels in frames.batch([last])["frames"].items():
        assert np.array_equal(pixels, alone.batch([len(alone) - 1])["frames"][camera])
    assert frames.batch([last])["episode"].tolist() == [2]


def test_one_name_in_both_is_an_error_and_nothing_can_be_added(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'z' in both"):
        JoinedStore([store(tmp_path / "a", "m", "z"), store(tmp_path / "b", "z")])
    joined = JoinedStore([EpisodeStore(tmp_path / "a")])
    with pytest.raises(OutputError, match="read together"):
        joined.add([make_episode("x")])
