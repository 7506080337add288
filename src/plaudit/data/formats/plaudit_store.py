"""Plaudit's own episode store as an episode format."""

from __future__ import annotations

from pathlib import Path

from plaudit.data.episode import EpisodeSource
from plaudit.data.formats.base import FIELDS, EpisodeFormat
from plaudit.data.store import EpisodeStore, is_store


class PlauditFormat(EpisodeFormat):
    """Plaudit's own store, which keeps every field of an episode."""

    name = "plaudit"
    about = "Plaudit's own store: episodes/*.safetensors"
    holds = frozenset(FIELDS)
    writer = EpisodeStore.create

    @classmethod
    def matches(cls, path: Path) -> bool:
        return path.is_dir() and is_store(path)

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return EpisodeStore(path)
