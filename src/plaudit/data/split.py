"""Train, validation and test: whole episodes, and which of their frames are used.

    DIR/train.json  DIR/val.json  DIR/test.json

A manifest names the episodes and rows of a data set that stays where it is; no picture is copied.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plaudit.config.structured import require
from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Counts, EpisodeSource, Summary
from plaudit.data.frame_selection import importance, repeats
from plaudit.errors import DataError

logger = logging.getLogger("plaudit")

TRAIN, VAL, TEST = "train", "val", "test"
Rows = NDArray[np.int32]


@dataclass(frozen=True)
class SplitSettings:
    """How a data set is divided. What thins frames out does so in the training split only."""

    val_fraction: float = 0.15  # Share of the episodes that validate.
    test_fraction: float = 0.15  # Share of the episodes that nothing is chosen by; 0 for no such split.
    seed: int = 0  # Draws the episodes and frames.
    num_samples_per_episode: int | None = None  # Frames of an episode; null or 0 is all of them.
    fail_success_ratio: float | None = None  # Failure frames for each success frame, at most; null as it is.
    drop_stationary: bool = True  # Leave out frames that an action of zero led to.
    keep_last_frame: bool = True  # The last frame of an episode is the last to be thinned out.

    def __post_init__(self) -> None:
        for key in ("val_fraction", "test_fraction"):
            require(0 <= getattr(self, key) < 1, key, "must be at least 0 and less than 1")
        require(self.val_fraction + self.test_fraction < 1, "val_fraction", "leaves nothing to train on")
        require(self.seed >= 0, "seed", "must be at least 0")
        require((self.num_samples_per_episode or 0) >= 0, "num_samples_per_episode", "must be at least 0")
        ratio = self.fail_success_ratio
        require(ratio is None or ratio > 0, "fail_success_ratio", "must be greater than 0")

    @property
    def fractions(self) -> dict[str, float]:
        """Of the splits that hold something back, in the order in which they are filled."""
        both = {TEST: self.test_fraction, VAL: self.val_fraction}
        return {name: fraction for name, fraction in both.items() if fraction > 0}


@dataclass(frozen=True, eq=False)
class Split:
    """Some episodes of a data set, and the frames of them that are used.

    Attributes:
        name: `train`, `val` or `test`.
        source: The data set.
        index: int64 (n,), where the episodes are in `source`.
        summaries: Of these episodes, n of them.
        rows: Frames of each that are used, ascending; may be empty.
        settings: What it was made with.
        dropped: Why frames were left out, and how many.
    """

    name: str
    source: EpisodeSource
    index: NDArray[np.int64]
    summaries: Sequence[Summary]
    rows: Sequence[Rows]
    settings: SplitSettings
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.summaries)

    @property
    def counts(self) -> Counts:
        """How much is used."""
        labels = [summary.labels[rows] for summary, rows in zip(self.summaries, self.rows, strict=True)]
        joined = np.concatenate([np.zeros(0, np.int8), *labels])
        positive = sum(summary.positive for summary in self.summaries)
        frames, success, unknown = len(joined), int((joined == SUCCESS).sum()), int((joined == UNKNOWN).sum())
        return Counts(positive, len(self) - positive, frames, success, unknown)


def split_episodes(
    source: EpisodeSource, settings: SplitSettings | None = None, earlier: Mapping[str, str] | None = None
) -> dict[str, Split]:
    """Divides a data set by episode, each split with its share of positives and of negatives.

    Args:
        source: The data set.
        settings: The shares, the seed, and how training frames are thinned out.
        earlier: Episode id to split, for those that are to stay where they are.

    Returns:
        Name to split: `train`, and `val` and `test` where they have a share.
    """
    settings = settings or SplitSettings()
    summaries = source.summaries()
    ids = [summary.id for summary in summaries]
    if len(set(ids)) != len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise DataError(f"{source.path}: two episodes are called '{twice}', so they cannot be told apart in a split.")
    names = _given(source, summaries) or assign(summaries, settings, earlier or {}, str(source.path))
    splits = {}
    for name in (name for name in (TRAIN, VAL, TEST) if name in names.values()):
        index = np.array([i for i, id in enumerate(ids) if names[id] == name], np.int64)
        splits[name] = _fill(name, source, index, [summaries[i] for i in index], settings)
    return splits


def _given(source: EpisodeSource, summaries: Sequence[Summary]) -> dict[str, str]:
    """Episode id to split, where frames come without episodes but in splits of their own; else empty.

    Such frames may be neighbours in time, so that to deal them out anew would put near-duplicates on both sides.
    """
    if any(len(summary.labels) > 1 for summary in summaries):
        return {}
    names = {episode.id: str(episode.meta.get("split")) for episode in source}
    if set(names.values()) <= {TRAIN, VAL, TEST} and TRAIN in names.values():
        logger.info("'%s' has frames without episodes, but in splits: they are kept.", source.path)
        return names
    logger.warning(
        "every episode of '%s' is a single frame. If some are neighbours in time, the splits will not be independent.",
        source.path,
    )
    return {}


def assign(
    summaries: Sequence[Summary], settings: SplitSettings, earlier: Mapping[str, str], where: str
) -> dict[str, str]:
    """Episode id to the name of its split.

    Within positives and negatives, the episodes are ordered by a hash of seed and id and dealt out by rounded shares:
    shares are exact, the same seed gives the same split, and few of the old episodes move when new ones join. Those in
    `earlier` do not move at all. Episodes that were drawn to be kept whole are held back first: how often a model
    fires in an episode can only be seen where no frame is missing.

    Args:
        summaries: The episodes.
        settings: The shares and the seed.
        earlier: Episode id to split, as it was.
        where: The data set, for messages.
    """
    names: dict[str, str] = {}
    groups = {
        "positive": [summary for summary in summaries if summary.positive],
        "negative": [summary for summary in summaries if not summary.positive],
    }
    need = 1 + len(settings.fractions)
    if min(map(len, groups.values())) < need:
        found = " and ".join(f"{len(group)} {kind}" for kind, group in groups.items())
        fewer = " or use fewer splits (a fraction of 0)," if need > 1 and min(map(len, groups.values())) else ""
        raise DataError(
            f"{where}: has {found} episodes, but {need} splits need at least {need} of each kind. Collect more,{fewer} "
            "and try again."
        )
    for group in groups.values():
        names |= _deal(group, settings, earlier)
    return names


def _deal(group: Sequence[Summary], settings: SplitSettings, earlier: Mapping[str, str]) -> dict[str, str]:
    names = {summary.id: earlier[summary.id] for summary in group if summary.id in earlier}
    order = sorted(group, key=lambda summary: (not summary.whole, _hash(settings.seed, summary.id)))
    free = [summary.id for summary in order if summary.id not in names]
    shares = {name: max(1, round(fraction * len(group))) for name, fraction in settings.fractions.items()}
    while sum(shares.values()) >= len(group):
        shares[max(shares, key=lambda name: shares[name])] -= 1
    for name, share in shares.items():
        there = sum(value == name for value in names.values())
        missing = max(0, share - there)
        names |= dict.fromkeys(free[:missing], name)
        del free[:missing]
    names |= dict.fromkeys(free, TRAIN)
    if earlier and {TRAIN, *shares} - set(names.values()):
        logger.info("episodes that the earlier split held are gone, and it cannot be kept: making a new one.")
        return _deal(group, settings, {})
    return names


def _hash(seed: int, id: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{id}".encode(), digest_size=8).digest()


def _fill(
    name: str, source: EpisodeSource, index: NDArray[np.int64], summaries: Sequence[Summary], settings: SplitSettings
) -> Split:
    """Chooses the frames: all that have a label, and for training as thinned out as the settings say."""
    dropped: dict[str, int] = {}

    def note(why: str, before: Sequence[Rows], after: Sequence[Rows]) -> list[Rows]:
        count = sum(map(len, before)) - sum(map(len, after))
        if count:
            dropped[why] = count
        return list(after)

    every = [np.arange(len(summary.labels), dtype=np.int32) for summary in summaries]
    rows = note("unknown label", every, [_known(row, s) for row, s in zip(every, summaries, strict=True)])
    if name == TRAIN:
        if settings.drop_stationary:
            moving = [_moving(source, int(i), row, settings) for i, row in zip(index, rows, strict=True)]
            rows = note("stationary", rows, moving)
        if settings.num_samples_per_episode:
            rows = note("not sampled", rows, [_sample(s, r, settings) for s, r in zip(summaries, rows, strict=True)])
        if settings.fail_success_ratio is not None:
            rows = note("surplus failures", rows, _balance(summaries, rows, settings))
    return Split(name, source, index, summaries, rows, settings, dropped)


def _known(rows: Rows, summary: Summary) -> Rows:
    known: Rows = rows[summary.labels[rows] != UNKNOWN]
    return known


def _moving(source: EpisodeSource, index: int, rows: Rows, settings: SplitSettings) -> Rows:
    new = ~repeats(source[index], keep_last=settings.keep_last_frame)
    return rows[new[rows]]


def _sample(summary: Summary, rows: Rows, settings: SplitSettings) -> Rows:
    """The last frame, those beside a label change, and others by lot, up to the number asked for."""
    count = settings.num_samples_per_episode
    if not len(rows):
        return rows
    labels = np.pad(summary.labels[rows], 1, mode="edge")
    around = labels[:-2], labels[1:-1], labels[2:]
    rank = importance(*around)
    if settings.keep_last_frame:
        rank[-1:] = importance(*(part[-1:] for part in around), last=True)
    rank += _lots(summary.id, settings.seed, len(rows))
    return np.sort(rows[np.argsort(-rank)[:count]])


def _balance(summaries: Sequence[Summary], rows: Sequence[Rows], settings: SplitSettings) -> list[Rows]:
    """Leaves out failure frames by lot until there are no more than `fail_success_ratio` to each success."""
    lots = []
    for summary, row in zip(summaries, rows, strict=True):
        lot = _lots(summary.id, settings.seed + 1, len(summary.labels))
        if settings.keep_last_frame:
            lot[-1] -= 1.0
        lots.append(np.where(summary.labels == FAILURE, lot, -2.0)[row])
    every = np.sort(np.concatenate([np.zeros(0), *lots]))
    success = int((every == -2.0).sum())
    allowed = success + int(success * (settings.fail_success_ratio or 0))
    if not success or allowed >= len(every):
        return list(rows)
    return [row[lot < every[allowed]] for row, lot in zip(rows, lots, strict=True)]


def _lots(id: str, seed: int, count: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1) that are the episode's own: other episodes do not change them."""
    return np.random.default_rng([seed, zlib.crc32(id.encode())]).random(count)
