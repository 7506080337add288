"""What a reward model's word on episodes was worth: kinds of episodes, and counts of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.rewards.pipeline import RewardManager

KINDS = ("agreed_success", "agreed_failure", "fooled", "early", "missed")
"""What the model's word on an episode was worth; see `kinds_of`."""

_SUCCESS, _FAILURE, FOOLED, _EARLY, _MISSED = range(len(KINDS))
_UNTOLD = -1

MARGIN = 0.25
"""How far beyond the scores of the validation split a score may be, as a share of their range. A policy that is good
shows the model clearer successes than most of its data, so that only what is far from all of it is out of range."""

EPISODE = np.dtype(
    [
        ("steps", np.int32),
        ("untold", np.bool_),  # At some step nobody said whether it is a success.
        ("claimed", np.bool_),  # The model called a step a success,
        ("right", np.bool_),  # one that was,
        ("wrong", np.bool_),  # one that was not, nor looked so.
        ("true", np.bool_),  # The episode is a success, by the env's headline.
        ("true_asked", np.bool_),  # A step was a success at which the model was asked.
        ("frames", np.int32),
        ("outside", np.int32),  # Of them, those whose score is out of range.
        ("claims", np.int32),
        ("claimed_logits", np.float64),  # Summed up.
    ]
)
"""What is known of one episode."""

SAID = ("claimed", "right", "wrong", "true_asked", "frames", "outside", "claims", "claimed_logits")
"""What depends on what the model said."""

Episodes = NDArray[np.void]
"""Of dtype `EPISODE`, (n,)."""


def kinds_of(episodes: Episodes) -> NDArray[np.int8]:
    """What each episode is, as a number of `KINDS`; -1 where there is no truth to tell.

    *fooled*: the model called it a success at a step that did not even look like one, never at one that was, and the
    episode was none: the serious kind.
    *early*: it called some step a success that was none, but there was a success. *missed*: a success at a step at
    which it was asked, and it never said so. Else they agree.
    """
    fooled = episodes["wrong"] & ~episodes["right"] & ~episodes["true"]
    missed = ~episodes["claimed"] & episodes["true_asked"]
    cases = [episodes["untold"], fooled, episodes["wrong"], episodes["claimed"], missed]
    return np.select(cases, [_UNTOLD, FOOLED, _EARLY, _SUCCESS, _MISSED], _FAILURE).astype(np.int8)


@dataclass(frozen=True)
class Reference:
    """The scores that a model gave in its fit's validation.

    Attributes:
        low: What is below is out of range.
        high: What is above is out of range.
        claimed: Mean logit of what it would have called a success; NaN where there is nothing.
    """

    low: float = -math.inf
    high: float = math.inf
    claimed: float = math.nan

    @classmethod
    def of(cls, manager: RewardManager) -> Reference:
        """Of the model in use; one that comes without validation scores has no range."""
        scores = manager.artifact.validation
        if scores is None:
            return cls()
        low, high = float(scores.logits.min()), float(scores.logits.max())
        room = MARGIN * (high - low)
        above = manager.artifact.calibration.probabilities(scores.logits) > manager.rule.decision.threshold
        claimed = float(scores.logits[above].mean()) if above.any() else math.nan
        return cls(low - room, high + room, claimed)


@dataclass(frozen=True)
class Tally:
    """Counts over some episodes.

    Attributes:
        episodes: All of them.
        told: Those with ground truth. The kinds, `claims` and `true` are counted among them.
        claimed: Those that the model called a success, with or without truth.
        claims: Those that it called a success and whose truth is known.
        true: Those that were one.
        frames: Frames that the model was asked of.
        outside: Of them, those whose score is out of range.
        shift: Mean logit of the frames that it called a success, less that in its fit's validation; NaN if unknown.
    """

    episodes: int = 0
    told: int = 0
    claimed: int = 0
    claims: int = 0
    true: int = 0
    agreed_success: int = 0
    agreed_failure: int = 0
    fooled: int = 0
    early: int = 0
    missed: int = 0
    frames: int = 0
    outside: int = 0
    shift: float = math.nan

    @classmethod
    def of(cls, episodes: Episodes, reference: Reference) -> Tally:
        """Counts episodes."""
        kinds = kinds_of(episodes)
        told = kinds != _UNTOLD
        claims = int(episodes["claims"].sum())
        mean = float(episodes["claimed_logits"].sum()) / claims if claims else math.nan
        return cls(
            episodes=len(episodes),
            told=int(told.sum()),
            claimed=int(episodes["claimed"].sum()),
            claims=int((episodes["claimed"] & told).sum()),
            true=int((episodes["true"] & told).sum()),
            **{name: int((kinds == kind).sum()) for kind, name in enumerate(KINDS)},
            frames=int(episodes["frames"].sum()),
            outside=int(episodes["outside"].sum()),
            shift=mean - reference.claimed,
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Shares, for the log; what cannot be measured is left out. `fooled` and `early` are of what the model called a
        success, `missed` of what was one when it was asked, the others are of all episodes or frames.
        """
        seen = self.agreed_success + self.early + self.missed
        shares = {
            "agreement": (self.told - self.fooled - self.missed, self.told),
            "claimed": (self.claimed, self.episodes),
            "true_success": (self.true, self.told),
            "fooled": (self.fooled, self.claims),
            "early": (self.early, self.claims),
            "missed": (self.missed, seen),
            "out_of_range": (self.outside, self.frames),
        }
        found = {f"audit/{name}": events / trials for name, (events, trials) in shares.items() if trials}
        return found if math.isnan(self.shift) else {**found, "audit/claimed_shift": self.shift}


def apart(episodes: Episodes) -> dict[str, NDArray[Any]]:
    """Plain arrays, by their names."""
    return {name: episodes[name].copy() for name in EPISODE.names or ()}


def together(columns: Mapping[str, NDArray[Any]]) -> Episodes:
    """The opposite of `apart`."""
    made = np.zeros(len(columns["steps"]), EPISODE)
    for name in EPISODE.names or ():
        made[name] = columns[name]
    return made
