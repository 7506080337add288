"""Transitions that a person has sorted, as HIL-SERL records them for its reward classifier; read only.

    *_success_images_*.pkl, *_failure_images_*.pkl      lists of {"observations", "actions", "next_observations",
                                                        "rewards", "masks", "dones"}

An observation has pictures under the names of the cameras, often with a leading time axis, and `state`. The label was
given at the end of the step, so it is that of `next_observations`; the frame before it has the label of the transition
that led to it, if that is there. Episodes are cut where `dones` is true, or where what follows a transition is not what
it led to. The failures at the beginning of an episode are in one file and the successes at its end in the other: where
one begins with the very frame that the other ends with, they are put together again, since otherwise a split by episode
could put neighbouring frames on both sides.

The files are read as a whole.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Episode, EpisodeSource
from plaudit.data.formats import parsing as values
from plaudit.data.formats.base import EpisodeFormat, LoadedSource, parsing
from plaudit.data.formats.numbered_files import files_in
from plaudit.data.formats.rlinf_observations import whole_episode
from plaudit.data.formats.safe_pickle import is_pickle_of, load_pickle
from plaudit.errors import DataError

NAME = re.compile(r"(?:.*_)?(success|failure)_images(?:_(.*))?\.pkl")


@dataclass
class _Chain:
    """Transitions of which each goes on where the one before ended; `start` and `reached` are fingerprints."""

    id: str
    file: Path
    label: int
    start: int
    transitions: list[Mapping[str, Any]] = field(default_factory=list)
    reached: int = 0
    done: bool = False
    before: _Chain | None = None

    def add(self, transition: Mapping[str, Any]) -> None:
        """Goes on by one transition."""
        self.transitions.append(transition)
        self.reached = _fingerprint(values.entry(transition, "next_observations", "a transition"))
        self.done = values.number(values.entry(transition, "dones", "a transition"), "dones") > 0.5


class HilserlSource(LoadedSource):
    """The episodes of a folder of such files, or of one file, which are read when the first is asked for."""

    format = "hilserl"

    def load(self) -> list[Episode]:
        files = _files(self.path) if self.path.is_dir() else [self.path]
        chains = [chain for file in files for chain in _chains(file)]
        if not chains:
            raise DataError(f"{self.path}: holds no transitions, so there is no episode in it.")
        _join(chains)
        taken = {id(chain.before) for chain in chains}
        episodes = []
        for chain in chains:
            if id(chain) not in taken:
                place = " and ".join(str(part.file) for part in (chain.before, chain) if part is not None)
                with parsing(place, self.format):
                    episodes.append(_episode(chain))
                episodes[-1].check(place)
        self._notes.add("a frame has the label of the transition that led to it; the first of an episode has none")
        joined = sum(chain.before is not None for chain in chains)
        if joined:
            self._notes.add(
                f"{joined} episodes were put together from the failures of one file and the successes of another"
            )
        return episodes


def _chains(file: Path) -> list[_Chain]:
    content = load_pickle(file)
    name = NAME.fullmatch(file.name)
    if name is None:
        raise DataError(f"{file}: its name says neither 'success_images' nor 'failure_images', so it has no labels.")
    label = SUCCESS if name[1] == "success" else FAILURE
    found: list[_Chain] = []
    with parsing(file, HilserlSource.format):
        for transition in values.items(content, "it"):
            start = _fingerprint(values.entry(transition, "observations", "a transition"))
            if not found or found[-1].done or start != found[-1].reached:
                found.append(_Chain(f"{file.stem}-{len(found):04d}", file, label, start))
            found[-1].add(transition)
    return found


def _fingerprint(observation: Any) -> int:
    """A number that only the very same observation has."""
    if not isinstance(observation, Mapping):
        raise ValueError(f"an observation should be a dict, not {values.kind(observation)}")
    found = 0
    for key in sorted(str(key) for key, value in observation.items() if isinstance(value, np.ndarray)):
        found = zlib.crc32(np.ascontiguousarray(observation[key]).tobytes(), found)
    return found


def _join(chains: list[_Chain]) -> None:
    """Lets successes follow the failures that led to them, within the files of one recording."""
    failures = [chain for chain in chains if chain.label == FAILURE and not chain.done]
    open_ends = {(_recording(chain.file), chain.reached): chain for chain in failures}
    for chain in chains:
        if chain.label == SUCCESS:
            chain.before = open_ends.pop((_recording(chain.file), chain.start), None)


def _recording(file: Path) -> str:
    name = NAME.fullmatch(file.name)
    return (name and name[2]) or ""


def _episode(chain: _Chain) -> Episode:
    parts = [chain] if chain.before is None else [chain.before, chain]
    transitions = [transition for part in parts for transition in part.transitions]
    labels = [UNKNOWN, *(part.label for part in parts for _ in part.transitions)]

    def each(key: str) -> list[Any]:
        return [transition.get(key) for transition in transitions]

    return whole_episode(
        parts[0].id,
        [_newest(transitions[0]["observations"]), *(_newest(t["next_observations"]) for t in transitions)],
        labels,
        "observations",
        success=SUCCESS in labels,
        label_source="person",
        actions=values.vectors(each("actions"), "actions"),
        rewards=values.numbers(each("rewards"), "rewards"),
        terminated=values.booleans(each("dones"), "dones"),
        meta={"recording": _recording(chain.file)},
    )


def _newest(observation: Mapping[str, Any]) -> dict[str, Any]:
    """The last of the pictures along the time axis, which is that of the instant."""
    return {key: value[-1] if getattr(value, "ndim", 0) == 4 else value for key, value in observation.items()}


class HilserlFormat(EpisodeFormat):
    """Transitions, sorted by a person."""

    name = "hilserl"
    about = "*_success_images_*.pkl and *_failure_images_*.pkl, as HIL-SERL records them (read only)"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(_files(path)) or is_pickle_of(path, "list", "observations")

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return HilserlSource(path)


def _files(path: Path) -> list[Path]:
    return [file for file in files_in(path, ".pkl") if NAME.fullmatch(file.name)]
