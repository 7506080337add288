"""Labelled camera episodes: collected, kept, read from others, split and examined."""

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource, EpisodeWriter, Summary
from plaudit.data.store import EpisodeStore

__all__ = [
    "FAILURE",
    "SUCCESS",
    "UNKNOWN",
    "Counts",
    "Episode",
    "EpisodeSource",
    "EpisodeStore",
    "EpisodeWriter",
    "Summary",
]
