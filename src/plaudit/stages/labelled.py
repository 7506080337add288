"""The labelled episodes of a run: which of them a refresh learns from, and what a model makes of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.episodes.split import TRAIN, VAL, Rows, Split, SplitSettings
from plaudit.episodes.store import EpisodeStore

if TYPE_CHECKING:
    from plaudit.rewards.pipeline import RewardManager

HELD_BACK = 4
"""One in so many labelled episodes is not learned from, and helps to choose the threshold."""


def labelled_splits(store: EpisodeStore, ids: Sequence[str]) -> dict[str, Split]:
    """Labelled episodes: those that are learned from, and those that are held back."""
    store.refresh()
    places, summaries = {id: number for number, id in enumerate(store.ids)}, store.summaries()
    made = {}
    for name in (TRAIN, VAL):
        index = np.array(sorted(places[id] for id in ids if is_held_back(id) == (name == VAL)), np.int64)
        some = [summaries[number] for number in index]
        rows: list[Rows] = [np.flatnonzero(one.labels != UNKNOWN).astype(np.int32) for one in some]
        made[name] = Split(name, store, index, some, rows, SplitSettings())
    return made


def is_held_back(id: str) -> bool:
    """By its name, so that an episode that was learned from once is not taken for a new one later."""
    return zlib.crc32(id.encode()) % HELD_BACK == 0


@dataclass(frozen=True)
class Agreement:
    """What a model makes of labelled episodes.

    Attributes:
        episodes: How many.
        agreement: Share of them about which it is neither fooled nor blind.
        failures: Episodes without success among them.
        fooled: Of those, how many it calls a success at some frame that was kept.
    """

    episodes: int
    agreement: float
    failures: int
    fooled: int

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return {**vars(self), "agreement": None if math.isnan(self.agreement) else self.agreement}


def agreement(manager: RewardManager, store: EpisodeStore, ids: Sequence[str], *, held_back: bool) -> Agreement:
    """What a model makes of labelled episodes, frame by frame: of all of them, or of those that no refresh learns from.

    Args:
        manager: The model and its threshold.
        store: Where they are.
        ids: Which.
        held_back: Only those.
    """
    from plaudit.episodes.dataset import FrameDataset
    from plaudit.rewards.feeds import FrameFeed
    from plaudit.rewards.firing import asked, fires
    from plaudit.rewards.scoring import score

    chosen = [id for id in ids if not held_back or is_held_back(id)]
    if not chosen:
        return Agreement(0, math.nan, 0, 0)
    both = labelled_splits(store, chosen)
    found = []
    for split in (one for one in both.values() if len(one)):
        scores = score(manager.artifact.model(), FrameFeed(FrameDataset(split, manager.artifact.cameras)))
        # Few frames of an episode are kept, so that each is judged by itself.
        decision = replace(manager.rule.decision, hold=1, release=None)
        fired = fires(manager.artifact.calibration.probabilities(scores.logits), scores, decision)
        counted = asked(scores, decision.mode)
        success, failure = counted & (scores.labels == SUCCESS), counted & (scores.labels == FAILURE)
        failed = scores.per_episode(success) == 0
        fooled = failed & (scores.per_episode(fired & failure) > 0)
        missed = ~failed & (scores.per_episode(fired & success) == 0)
        found.append(np.stack([failed, fooled, fooled | missed]))
    failed, fooled, wrong = np.concatenate(found, axis=1)
    return Agreement(len(wrong), float(1 - wrong.mean()), int(failed.sum()), int(fooled.sum()))
