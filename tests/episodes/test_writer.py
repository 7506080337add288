"""The background writer: grouped, bounded, and loud about what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from samples import assert_same, make_episode

from plaudit.data import Counts, Episode, EpisodeStore
from plaudit.data.background_writer import BackgroundWriter, size
from plaudit.errors import DataError, OutputError


class Gate:
    """A disk that writes when it is let, and may fail."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.asked = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.error: Exception | None = None

    @property
    def counts(self) -> Counts:
        return Counts(negative=sum(map(len, self.groups)))

    def add(self, episodes: Sequence[Episode]) -> int:
        self.asked.release()
        self.open.acquire()
        if self.error is not None:
            raise self.error
        self.groups.append([episode.id for episode in episodes])
        return len(episodes)

    def __contains__(self, item: object) -> bool:
        return any(item in group for group in self.groups)


def test_what_was_put_is_in_the_store(tmp_path: Path) -> None:
    store = EpisodeStore.create(tmp_path)
    episodes = [make_episode(name, success_at=2 if name < "c" else None) for name in "abcde"]
    with BackgroundWriter(store) as writer:
        for episode in episodes:
            writer.put(episode)
        writer.flush()
        assert len(EpisodeStore(tmp_path)) == 5
        writer.put(make_episode("f"))
    assert (writer.counts.positive, writer.counts.negative) == (2, 4)
    for ours, theirs in zip(EpisodeStore(tmp_path), episodes, strict=False):
        assert_same(ours, theirs)


def test_it_does_not_wait_for_the_disk_and_writes_in_groups() -> None:
    disk = Gate()
    writer = BackgroundWriter(disk, interval=0.0)
    writer.put(make_episode("a"))
    disk.asked.acquire()  # "a" is being written, and the disk is stuck:
    for name in "bcd":
        writer.put(make_episode(name, success_at=1))
    assert disk.groups == []
    assert (writer.counts.positive, writer.counts.negative) == (3, 1)
    assert "a" in writer and "d" in writer and "e" not in writer
    disk.open.release(2)
    writer.close()
    assert disk.groups == [["a"], ["b", "c", "d"]]
    assert writer.counts.negative == 4  # As the disk counts them.


def test_a_full_queue_holds_the_next_one_back() -> None:
    disk = Gate()
    writer = BackgroundWriter(disk, interval=60.0, room=2 * size(make_episode("a")))
    writer.put(make_episode("a"))
    disk.asked.acquire()  # Half full: written at once, although more might come within the minute.
    writer.put(make_episode("b"))
    third = threading.Thread(target=writer.put, args=[make_episode("c")])
    third.start()
    assert third.is_alive() and "c" not in writer
    disk.open.release()  # "a" is on the disk, so there is room for "c".
    third.join()
    assert "c" in writer
    disk.open.release(9)
    writer.close()
    assert sorted(name for group in disk.groups for name in group) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OutputError("cannot write x: No space left.")]
)
def test_what_goes_wrong_is_raised_with_how_much_it_cost(error: Exception) -> None:
    disk = Gate()
    disk.error = error
    writer = BackgroundWriter(disk, interval=0.0)
    writer.put(make_episode("a"))
    disk.asked.acquire()
    writer.put(make_episode("b"))
    disk.open.release()
    with pytest.raises(OutputError, match=r"No space left.* 2 episodes were not written, from 'a' on\."):
        writer.flush()
    with pytest.raises(OutputError, match=r"3 episodes were not written, from 'a' on\."):
        writer.put(make_episode("c"))
    with pytest.raises(OutputError):
        writer.close()
    writer.close()


def test_an_error_on_the_way_out_is_not_replaced() -> None:
    disk = Gate()
    disk.error = OSError("disk gone")
    disk.open.release(9)
    with pytest.raises(KeyError, match="mine"), BackgroundWriter(disk) as writer:
        writer.put(make_episode("a"))
        raise KeyError("mine")


def test_a_bad_episode_is_named(tmp_path: Path) -> None:
    good = make_episode("a")
    bad = Episode("bad", good.frames, good.labels[:-1], good.frame_index[:-1], good.length)
    writer = BackgroundWriter(EpisodeStore.create(tmp_path))
    writer.put(bad)
    with pytest.raises(DataError, match="episode 'bad'"):
        writer.close()


def test_nothing_is_taken_after_the_end(tmp_path: Path) -> None:
    writer = BackgroundWriter(EpisodeStore.create(tmp_path))
    writer.close()
    writer.close()
    with pytest.raises(OutputError, match="'a' came after the writer was closed"):
        writer.put(make_episode("a"))
