"""The audit: what a reward model says under optimisation, held against the truth, which no learner is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plaudit.config.rewards import AuditConfig
from plaudit.envs.base import Headline
from plaudit.episodes.episode import UNKNOWN
from plaudit.rewards.bounds import rate_bounds
from plaudit.rewards.followed import Followed, Moment, labels_of
from plaudit.rewards.tally import EPISODE, FOOLED, SAID, Reference, Tally, apart, kinds_of, together
from plaudit.rewards.watch import RewardListener, Seen


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
    tally: Tally


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

    def on_judged(self, seen: Seen) -> None:
        shown: list[list[Any]] = [[] for _ in seen.done]
        for part in seen.shown:
            shown[part.step].append(part)
        for t in range(len(seen.done)):
            self._count(seen, t)
            for part in shown[t]:
                self._look(seen, t, part.envs, part.frames)
            if seen.done[t].any():
                self._end(np.flatnonzero(seen.done[t]))

    def _count(self, seen: Seen, t: int) -> None:
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

    def _look(self, seen: Seen, t: int, envs: NDArray[np.int64], frames: Mapping[str, NDArray[np.uint8]]) -> None:
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
    def tally(self) -> Tally:
        """What the episodes come to."""
        return Tally.of(self.episodes, self.reference)

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

    def _fooled(self, tally: Tally) -> Alarm | None:
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

    def _out_of_range(self, tally: Tally) -> Alarm | None:
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
