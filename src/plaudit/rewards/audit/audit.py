"""Compare a reward model's claims with the ground truth while a policy optimises it, and raise alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plaudit.config.reward_schema import AuditConfig
from plaudit.data.episode import UNKNOWN
from plaudit.envs.base import Headline
from plaudit.reward_models.evaluation.confidence_bounds import rate_bounds
from plaudit.rewards.audit.frame_recorder import Followed, Moment, labels_of
from plaudit.rewards.callbacks import RewardListener, ScoredSteps
from plaudit.rewards.reward_function import RewardManager

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
class AuditCounts:
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
    def of(cls, episodes: Episodes, reference: Reference) -> AuditCounts:
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


@dataclass(frozen=True)
class Alarm:
    """Why a model is not to be trusted any more.

    Attributes:
        reason: Whether the truth or the scores tell it.
        message: What was seen, in a sentence.
        tally: Of the episodes that it was seen in.
    """

    reason: Literal["fooled", "out_of_range"]
    message: str
    tally: AuditCounts


class Audit(RewardListener):
    """Watches a reward model at work. It tells people, and changes nothing.

    Args:
        num_envs: Envs that step together.
        settings: When an alarm is raised.
        headline: What the env calls the success of an episode.
        reference: The scores that the model is expected to give.
        followed: Keeps pictures of some envs.
        quota: int64 (num_envs,), for evaluations: only so many episodes of each env count, all that were played since
            the envs were reset, and not those of a window.

    Attributes:
        episodes: Those that the counts are of.
        ended: Episodes that have ended in each env.
        renewed: Whether the model is in the place of one that was fooled.
    """

    def __init__(
        self,
        num_envs: int,
        settings: AuditConfig,
        headline: Headline = "success_once",
        reference: Reference | None = None,
        *,
        followed: Followed | None = None,
        quota: NDArray[np.int64] | None = None,
    ) -> None:
        self.settings, self.headline, self.quota = settings, headline, quota
        self.reference, self.followed = reference or Reference(), followed
        if followed is not None:
            self.follows = followed.envs
        self.running = np.zeros(num_envs, EPISODE)
        self.ended = np.zeros(num_envs, np.int64)
        self.episodes = np.zeros(0, EPISODE)
        self.renewed = False
        self._silent = 0  # Episodes to come before there is another alarm.

    def on_reset(self) -> None:
        self.running[:] = 0
        if self.followed is not None:
            self.followed.break_off()
        if self.quota is not None:
            self.clear()
            self.ended[:] = 0

    def on_rewards(self, seen: ScoredSteps) -> None:
        shown: list[list[Any]] = [[] for _ in seen.done]
        for part in seen.shown:
            shown[part.step].append(part)
        for t in range(len(seen.done)):
            self._count(seen, t)
            for part in shown[t]:
                self._look(seen, t, part.envs, part.frames)
            if seen.done[t].any():
                self._end(np.flatnonzero(seen.done[t]))

    def _count(self, seen: ScoredSteps, t: int) -> None:
        """Takes one step of all envs into their running episodes."""
        logits, running = seen.scores[t, :, 0], self.running
        asked = ~np.isnan(logits)
        verdict = seen.judged.verdict[t] & asked
        running["steps"] += 1
        running["claimed"] |= verdict
        running["frames"] += asked
        running["outside"] += asked & ((logits < self.reference.low) | (logits > self.reference.high))
        running["claims"] += verdict
        running["claimed_logits"] += np.where(verdict, logits, 0.0)
        if seen.success is None:
            running["untold"] = True
            return
        success = seen.success[t]
        # What looks done and is not, no picture can tell: to call it a success is neither right nor wrong.
        unknown = False if seen.looks_done is None else seen.looks_done[t]
        running["right"] |= verdict & success
        running["wrong"] |= verdict & ~success & ~np.asarray(unknown)
        running["true"] = success if self.headline == "success_at_end" else running["true"] | success
        running["true_asked"] |= asked & success

    def _look(
        self, seen: ScoredSteps, t: int, envs: NDArray[np.int64], frames: Mapping[str, NDArray[np.uint8]]
    ) -> None:
        """Keeps pictures of one step."""
        assert self.followed is not None
        labels = np.full(len(envs), UNKNOWN, np.int8)
        if seen.success is not None:
            nothing = np.zeros(len(envs), bool)
            labels = labels_of(seen.success[t, envs], nothing if seen.looks_done is None else seen.looks_done[t, envs])
        parts = (self.running["steps"][envs], seen.scores[t, envs, 0], seen.judged.verdict[t, envs], labels)
        columns = zip(*(part.tolist() for part in (envs, *parts)), strict=True)
        for row, (env, instant, logit, verdict, label) in enumerate(columns):
            # Copies: a view would keep the pictures of all the others.
            picture = {camera: pixels[row].copy() for camera, pixels in frames.items()}
            self.followed.add(env, Moment(instant, picture, logit, verdict, label))

    def _end(self, envs: NDArray[np.int64]) -> None:
        """Counts the episodes of some envs, which are over."""
        if self.quota is not None:
            counted = self.running[envs[self.ended[envs] < self.quota[envs]]]
            self.episodes = np.concatenate([self.episodes, counted])
        else:
            self.episodes = np.concatenate([self.episodes, self.running[envs]])[-self.settings.window :]
            self._silent = max(0, self._silent - len(envs))
        if self.followed is not None:
            self._file(envs)
        self.ended[envs] += 1
        self.running[envs] = 0

    def _file(self, envs: NDArray[np.int64]) -> None:
        assert self.followed is not None
        over = self.running[envs]
        parts = (envs, self.ended[envs], over["steps"], kinds_of(over) == FOOLED, over["true"], over["untold"])
        for env, number, steps, fooled, true, untold in zip(*(part.tolist() for part in parts), strict=True):
            if env in self.followed.running:
                self.followed.end(env, number, steps, fooled, None if untold else true)

    @property
    def tally(self) -> AuditCounts:
        """What the episodes come to."""
        return AuditCounts.of(self.episodes, self.reference)

    def report(self) -> dict[str, float]:
        return self.tally.metrics

    def check(self) -> Alarm | None:
        """The alarm that there is reason for; then none until the window is full of other episodes."""
        if self._silent:
            return None
        tally = self.tally
        alarm = self._fooled(tally) or self._out_of_range(tally)
        if alarm is not None:
            self._silent = self.settings.window
        return alarm

    def _fooled(self, tally: AuditCounts) -> Alarm | None:
        keys = self.settings
        # While successes are rare even a good model's mistakes are most of what it claims, and training gets over it:
        # until it claims most episodes, those that fool it have to be many of all.
        settled = tally.claims >= keys.min_claimed * tally.told
        among = tally.claims if settled else tally.told
        allowed = keys.max_fooled_again if settled and self.renewed else keys.max_fooled
        if tally.claims < keys.min_claims or rate_bounds(tally.fooled, among)[0] <= allowed:
            return None
        low, high = rate_bounds(tally.fooled, tally.claims)
        message = (
            f"the reward model is being fooled: of {tally.claims} episodes that it called a success, {tally.fooled} "
            f"never were one ({tally.fooled / tally.claims:.0%}; 95 % bounds {low:.0%} to {high:.0%}), in the last "
            f"{tally.told} training episodes, of which {tally.true / tally.told:.0%} were successes in truth"
        )
        return Alarm("fooled", message, tally)

    def _out_of_range(self, tally: AuditCounts) -> Alarm | None:
        """Frames of one episode are much alike, so that an episode counts as one of them."""
        keys = self.settings
        asked = int((self.episodes["frames"] > 0).sum())
        share = tally.outside / tally.frames if tally.frames else 0.0
        if asked < keys.min_claims or share <= keys.max_out_of_range:
            return None
        low, high = rate_bounds(share * asked, asked)
        if low <= keys.max_out_of_range:
            return None
        message = (
            f"the reward model sees what it was not fitted to: {share:.0%} of its scores (95 % bounds {low:.0%} to "
            f"{high:.0%}) in the last {tally.episodes} training episodes are far outside the range that they had in "
            f"its validation ({self.reference.low:.1f} to {self.reference.high:.1f}, as logits)"
        )
        return Alarm("out_of_range", message, tally)

    def clear(self) -> None:
        """Begins to count anew."""
        self.episodes = self.episodes[:0]
        self._silent = 0

    def renew(self, reference: Reference) -> None:
        """Begins anew for another model: what the one before said, of the episodes that go on too, is forgotten."""
        self.clear()
        self.reference, self.renewed = reference, True
        for name in SAID:
            self.running[name] = 0
        if self.followed is not None:
            self.followed.clear()
            self.followed.break_off()

    def state_dict(self, *, pictures: bool) -> dict[str, Any]:
        """What makes it go on as if nothing had been; with `pictures` those too, which are many megabytes."""
        return {
            "running": apart(self.running),
            "episodes": apart(self.episodes),
            "ended": self.ended.copy(),
            "silent": self._silent,
            "renewed": self.renewed,
            "followed": self.followed.state_dict() if pictures and self.followed is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.episodes = together(state["episodes"])[-self.settings.window :]
        self._silent, self.renewed = int(state["silent"]), bool(state.get("renewed", False))
        if len(state["ended"]) != len(self.ended):
            # Other envs, which begin anew; but no episode is to have the number that another had before.
            self.ended[:] = state["ended"].max(initial=0)
            return
        self.running, self.ended = together(state["running"]), state["ended"].copy()
        if self.followed is not None and state["followed"] is not None:
            self.followed.load_state_dict(state["followed"])
