"""Episodes to the disk, in the background."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from types import TracebackType

import numpy as np

from plaudit.data.episode import SUCCESS, UNKNOWN, Counts, Episode, EpisodeWriter
from plaudit.errors import OutputError, PlauditError


class BackgroundWriter:
    """Hands episodes to a writer on a thread of its own, some at a time: whoever puts them waits for the disk only
    when the queue is full.

    At most `interval` seconds of episodes and the time that it takes to write them are lost when the process is killed.
    What goes wrong on the thread is raised by the next `put`, `flush` or `close`, and says how many episodes it cost.

    Args:
        writer: Where they go.
        interval: Seconds that episodes may wait for others, to be written together.
        room: Bytes that may wait; a `put` beyond that blocks.
    """

    def __init__(self, writer: EpisodeWriter, *, interval: float = 0.5, room: int = 256 * 2**20) -> None:
        self.writer, self.interval, self.room = writer, interval, room
        self._counts = writer.counts  # With all that waits, so that asking for them costs nothing.
        self._ids: set[str] = set()  # Of what waits.
        self._waiting: list[Episode] = []
        self._in_hand: list[Episode] = []  # Those that the thread is writing now.
        self._bytes = 0
        self._error: BaseException | None = None
        self._hurry = self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="episode-writer", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Counts:
        """What is there and what will be, as soon as it is written."""
        return self._counts

    def __contains__(self, item: object) -> bool:
        """Whether an episode, or the one with this id, is there or waits to be written."""
        id = item.id if isinstance(item, Episode) else item
        with self._change:
            waits = id in self._ids
        return waits or item in self.writer

    def positives(self, beginning: str) -> int:
        """How many positive episodes are on the disk whose ids begin so."""
        return self.writer.positives(beginning)

    def put(self, episode: Episode) -> None:
        """Queues an episode; waits while the queue is full."""
        with self._change:
            if self._closed:
                raise OutputError(f"episode '{episode.id}' came after the writer was closed.")
            self._change.wait_for(lambda: self._bytes < self.room or self._error is not None)
            self._complain(episode)
            self._waiting.append(episode)
            self._ids.add(episode.id)
            self._counts = _total(self._counts, [episode])
            self._bytes += size(episode)
            self._change.notify_all()

    def flush(self) -> None:
        """Returns once all that was put is on the disk."""
        with self._change:
            self._hurry = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._bytes or self._error is not None)
            self._complain()

    def close(self) -> None:
        """Writes what waits and ends the thread; a second call does nothing."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._change:
                self._closed = True
                self._change.notify_all()
            self._thread.join()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(PlauditError):  # The error on its way out is the one to tell of; often it is this very one.
            self.close()

    def _complain(self, *more: Episode) -> None:
        """Raises what went wrong on the thread. Held by `_change`."""
        if self._error is None:
            return
        lost = [*self._in_hand, *self._waiting, *more]
        kind = type(self._error) if isinstance(self._error, PlauditError) else OutputError
        raise kind(f"{self._error} {len(lost)} episodes were not written, from '{lost[0].id}' on.") from self._error

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._change.wait_for(self._enough, timeout=self.interval)
                self._in_hand, self._waiting = self._waiting, []
            try:
                self.writer.add(self._in_hand)
                written = self.writer.counts
            except BaseException as error:  # Whatever it is, the thread that puts must hear of it.
                with self._change:
                    self._error = error
                    self._change.notify_all()
                return
            with self._change:
                self._counts = _total(written, self._waiting)
                self._ids = {episode.id for episode in self._waiting}
                self._bytes -= sum(size(episode) for episode in self._in_hand)
                self._in_hand = []
                self._hurry = self._hurry and bool(self._waiting)
                self._change.notify_all()

    def _enough(self) -> bool:
        """Whether the thread should not wait for more."""
        return self._hurry or self._closed or 2 * self._bytes >= self.room


def size(episode: Episode) -> int:
    """Bytes of an episode's arrays, near enough."""
    steps = (episode.state, episode.actions, episode.rewards, episode.terminated, episode.truncated)
    arrays = [*episode.frames.values(), *episode.flags.values(), *(part for part in steps if part is not None)]
    return sum(part.nbytes for part in arrays)


def _total(counts: Counts, episodes: Sequence[Episode]) -> Counts:
    """The counts with some episodes more."""
    labels = np.concatenate([np.zeros(0, np.int8), *(episode.labels for episode in episodes)])
    positive = sum(episode.positive for episode in episodes)
    more = (
        positive,
        len(episodes) - positive,
        len(labels),
        int((labels == SUCCESS).sum()),
        int((labels == UNKNOWN).sum()),
    )
    return Counts(*(a + b for a, b in zip(astuple(counts), more, strict=True)))
