"""Several stores, read as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plaudit.episodes.episode import Episode, Summary
from plaudit.episodes.store import EpisodeStore
from plaudit.errors import DataError, OutputError


class JoinedStore(EpisodeStore):
    """The episodes of the first store, then those of the next, as the stores know them now: those that others have
    added to them meanwhile would come between. Nothing can be added to it.

    Args:
        stores: At least one.
    """

    def __init__(self, stores: Sequence[EpisodeStore]) -> None:
        self.stores, self.path = tuple(stores), stores[0].path
        self.refresh()

    def refresh(self) -> None:
        self._homes: dict[str, EpisodeStore] = {}
        for store in self.stores:
            for id in store.ids:
                if id in self._homes:
                    first, second = self._homes[id].path, store.path
                    raise DataError(f"an episode is called '{id}' in both '{first}' and '{second}'; rename one file.")
                self._homes[id] = store
        self._ids = list(self._homes)
        self._known = {summary.id: summary for store in self.stores for summary in store.summaries()}

    def file(self, id: str) -> Path:
        return self._homes[id].file(id)

    def summaries(self) -> list[Summary]:
        return [self._known[id] for id in self._ids]

    def __contains__(self, item: object) -> bool:
        return (item.id if isinstance(item, Episode) else item) in self._homes

    def add(self, episodes: Sequence[Episode]) -> int:
        """Is an error: an episode belongs to one of the stores."""
        raise OutputError(f"'{self.path}' is one of several stores that are read together; add to one of them.")
