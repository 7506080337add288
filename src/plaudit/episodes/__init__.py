"""Labelled camera episodes: collected, kept, read from others, split and examined."""

from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource, EpisodeWriter, Summary
from plaudit.episodes.store import EpisodeStore

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
