"""Pictures of what a reward model was asked of, kept of some envs: for people, and for whoever labels episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Episode, LabelSource

PER_EPISODE = 8
"""Pictures that are kept of an episode."""

EPISODES = 64
"""Episodes that are kept of those that fooled the model, and of the others; newer ones replace older ones."""


class Moment(NamedTuple):
    """One instant of an episode at which the model was asked.

    Attributes:
        instant: Steps of the episode until then.
        frames: By camera, uint8 (H, W, 3).
        logit: The model's.
        verdict: Whether it is a success to the model.
        label: What it is in truth, as far as a picture can show it.
    """

    instant: int
    frames: Mapping[str, NDArray[np.uint8]]
    logit: float
    verdict: bool
    label: int


@dataclass(frozen=True, eq=False)
class Watched:
    """An episode that has ended, by some of its moments.

    Attributes:
        env: Which env it was in.
        number: How many episodes had ended there before.
        length: Steps.
        fooled: Whether the model called a success what never was one.
        true: Whether it was a success; `None` where nobody says.
        moments: At least one, by their instants.
    """

    env: int
    number: int
    length: int
    fooled: bool
    true: bool | None
    moments: Sequence[Moment]

    @property
    def id(self) -> str:
        """A name that no other episode of the run has."""
        return f"audit-e{self.env:04d}-{self.number:06d}"

    @property
    def claimed(self) -> bool:
        """Whether the model called one of the moments a success."""
        return any(one.verdict for one in self.moments)

    @property
    def labelled(self) -> bool:
        """Whether the truth of any moment is known and can be seen."""
        return any(one.label != UNKNOWN for one in self.moments)

    @property
    def worst(self) -> Moment:
        """The moment at which the model was surest of a success."""
        return max(self.moments, key=lambda one: one.logit)

    def episode(self, label_source: LabelSource, meta: Mapping[str, Any]) -> Episode:
        """As an episode of a data set."""
        columns = _columns(self.moments)
        return Episode(
            id=self.id,
            frames=columns["frames"],
            labels=columns["labels"],
            frame_index=columns["instants"],
            length=self.length,
            success=self.true,
            label_source=label_source,
            meta={"env_index": self.env, "episode": self.number, **meta},
        ).check()


class Followed:
    """Keeps pictures of the episodes of some envs: few of each, and of the last episodes only, so that their number is
    bounded however long a run is.

    Args:
        envs: int64 (n,), which envs.
    """

    def __init__(self, envs: NDArray[np.int64]) -> None:
        self.envs = envs
        self.running: dict[int, list[Moment]] = {int(env): [] for env in envs}
        self.fooled: deque[Watched] = deque(maxlen=EPISODES)
        self.others: deque[Watched] = deque(maxlen=EPISODES)

    def add(self, env: int, moment: Moment) -> None:
        """Takes in one moment of an env's present episode."""
        moments = self.running[env]
        moments.append(moment)
        if len(moments) > 2 * PER_EPISODE:
            self.running[env] = _chosen(moments)

    def end(self, env: int, number: int, length: int, fooled: bool, true: bool | None) -> None:
        """An env's episode is over."""
        moments = _chosen(self.running[env])
        self.running[env] = []
        if moments:
            (self.fooled if fooled else self.others).append(Watched(env, number, length, fooled, true, moments))

    def break_off(self) -> None:
        """Forgets the episodes that go on."""
        self.running = {env: [] for env in self.running}

    def clear(self) -> None:
        """Forgets the episodes that are over."""
        self.fooled.clear()
        self.others.clear()

    def worst(self) -> list[Watched]:
        """Those that fooled the model, the one that it was surest of first."""
        return sorted(self.fooled, key=lambda one: -one.worst.logit)

    def telling(self) -> list[Watched]:
        """The others, most telling ones first: successes that it did not see, other successes, then failures; newer
        ones before older ones.
        """
        newest = list(self.others)[::-1]
        return sorted(newest, key=lambda one: (not one.true, one.claimed))

    def state_dict(self) -> dict[str, Any]:
        """All that is kept."""
        return {
            "running": {env: _columns(moments) for env, moments in self.running.items() if moments},
            "fooled": [{**vars(one), "moments": _columns(one.moments)} for one in self.fooled],
            "others": [{**vars(one), "moments": _columns(one.moments)} for one in self.others],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave, as far as it is of the same envs."""
        self.break_off()
        for env, columns in state["running"].items():
            if env in self.running:
                self.running[env] = _moments(columns)
        for kept, name in ((self.fooled, "fooled"), (self.others, "others")):
            kept.clear()
            kept.extend(Watched(**{**one, "moments": _moments(one["moments"])}) for one in state[name])


def _chosen(moments: Sequence[Moment]) -> list[Moment]:
    """At most `PER_EPISODE` of an episode's moments: the last, those that the model is surest of, and some spread over
    the rest.
    """
    if len(moments) <= PER_EPISODE:
        return list(moments)
    by_score = sorted(range(len(moments)), key=lambda i: -moments[i].logit)
    taken = {len(moments) - 1, *by_score[: PER_EPISODE // 2]}
    left = [i for i in range(len(moments)) if i not in taken]
    spread = np.linspace(0, len(left) - 1, PER_EPISODE - len(taken)).round().astype(int)
    return [moments[i] for i in sorted(taken | {left[i] for i in spread})]


def _columns(moments: Sequence[Moment]) -> dict[str, Any]:
    """Moments as arrays."""
    return {
        "instants": np.array([one.instant for one in moments], np.int32),
        "frames": {camera: np.stack([one.frames[camera] for one in moments]) for camera in moments[0].frames},
        "logits": np.array([one.logit for one in moments], np.float32),
        "verdicts": np.array([one.verdict for one in moments], bool),
        "labels": np.array([one.label for one in moments], np.int8),
    }


def _moments(columns: Mapping[str, Any]) -> list[Moment]:
    """The opposite of `_columns`."""
    return [
        Moment(
            int(instant),
            {camera: pixels[row] for camera, pixels in columns["frames"].items()},
            float(columns["logits"][row]),
            bool(columns["verdicts"][row]),
            int(columns["labels"][row]),
        )
        for row, instant in enumerate(columns["instants"])
    ]


def labels_of(success: NDArray[np.bool_], looks_done: NDArray[np.bool_]) -> NDArray[np.int8]:
    """What pictures are to be labelled, (n,): what only looks like success is not known, since no picture can tell."""
    return np.where(success, SUCCESS, np.where(looks_done, UNKNOWN, FAILURE)).astype(np.int8)
