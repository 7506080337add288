"""Transitions labelled by a person, as HIL-SERL records them for its reward classifier.

The format is read only.

    *_success_images_*.pkl, *_failure_images_*.pkl      lists of {"observations", "actions", "next_observations",
                                                        "rewards", "masks", "dones"}

An observation has images under the names of the cameras, often with a leading time axis, and `state`. The label was
given at the end of the step, so it belongs to `next_observations`; the frame before it has the label of the transition
that led to it, if the file contains that transition. An episode ends if `dones` is true, or if the next transition does
not start with the observation that this one ended with. The failures at the beginning of an episode are in one file and
the successes at its end in the other: if one begins with exactly the frame that the other ends with, they are joined
again, since otherwise a split by episode could put neighbouring frames on both sides.

Each file is read completely at once.
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
    """Consecutive transitions, each of which starts with the observation the last ended with.

    Attributes:
        id: Id of the episode that begins with this chain.
        file: File that contains the transitions.
        label: Label of all transitions.
        start: Fingerprint of the first observation.
        transitions: The transitions in order.
        reached: Fingerprint of the last observation.
        done: Whether the last transition ends its episode.
        before: Chain of the same episode that precedes this one.
    """

    id: str
    file: Path
    label: int
    start: int
    transitions: list[Mapping[str, Any]] = field(default_factory=list)
    reached: int = 0
    done: bool = False
    before: _Chain | None = None

    def add(self, transition: Mapping[str, Any]) -> None:
        """Append a transition."""
        self.transitions.append(transition)
        self.reached = _fingerprint(values.entry(transition, "next_observations", "a transition"))
        self.done = values.number(values.entry(transition, "dones", "a transition"), "dones") > 0.5


class HilserlSource(LoadedSource):
    """Episodes of a folder of such files, or of one file; the first access reads them all."""

    format = "hilserl"

    def load(self) -> list[Episode]:
        files = _files(self.path) if self.path.is_dir() else [self.path]
        chains = [chain for file in files for chain in _chains(file)]
        if not chains:
            raise DataError(f"{self.path}: holds no transitions, so there is no episode in it.")

        # A chain that precedes another one becomes part of that episode.
        _join(chains)
        preceding = {id(chain.before) for chain in chains}
        episodes = []
        for chain in chains:
            if id(chain) not in preceding:
                origin = " and ".join(str(part.file) for part in (chain.before, chain) if part is not None)
                with parsing(origin, self.format):
                    episodes.append(_episode(chain))
                episodes[-1].check(origin)

        # Inform the user about the origin of labels and episodes.
        self._notes.add("a frame has the label of the transition that led to it; the first of an episode has none")
        joined = sum(chain.before is not None for chain in chains)
        if joined:
            self._notes.add(
                f"{joined} episodes were put together from the failures of one file and the successes of another"
            )
        return episodes


def _chains(file: Path) -> list[_Chain]:
    """Split the transitions of a file into chains."""
    content = load_pickle(file)
    name = NAME.fullmatch(file.name)
    if name is None:
        raise DataError(f"{file}: its name says neither 'success_images' nor 'failure_images', so it has no labels.")

    label = SUCCESS if name[1] == "success" else FAILURE
    chains: list[_Chain] = []
    with parsing(file, HilserlSource.format):
        for transition in values.items(content, "it"):
            start = _fingerprint(values.entry(transition, "observations", "a transition"))
            if not chains or chains[-1].done or start != chains[-1].reached:
                chains.append(_Chain(f"{file.stem}-{len(chains):04d}", file, label, start))
            chains[-1].add(transition)
    return chains


def _fingerprint(observation: Any) -> int:
    """Return a checksum of the arrays of an observation."""
    if not isinstance(observation, Mapping):
        raise ValueError(f"an observation should be a dict, not {values.kind(observation)}")
    checksum = 0
    for key in sorted(str(key) for key, value in observation.items() if isinstance(value, np.ndarray)):
        checksum = zlib.crc32(np.ascontiguousarray(observation[key]).tobytes(), checksum)
    return checksum


def _join(chains: list[_Chain]) -> None:
    """Link chains of success to the failures that led to them, within one recording."""
    failures = [chain for chain in chains if chain.label == FAILURE and not chain.done]
    open_ends = {(_recording(chain.file), chain.reached): chain for chain in failures}
    for chain in chains:
        if chain.label == SUCCESS:
            chain.before = open_ends.pop((_recording(chain.file), chain.start), None)


def _recording(file: Path) -> str:
    """Return the part of a file name that identifies the recording."""
    name = NAME.fullmatch(file.name)
    return (name and name[2]) or ""


def _episode(chain: _Chain) -> Episode:
    """Return the episode of a chain and the chain before it, if any."""
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
    """Return an observation with only the last image along each time axis.

    The last image is that of the current instant.
    """
    return {key: value[-1] if getattr(value, "ndim", 0) == 4 else value for key, value in observation.items()}


class HilserlFormat(EpisodeFormat):
    """Transitions that a person sorted into success and failure."""

    name = "hilserl"
    about = "*_success_images_*.pkl and *_failure_images_*.pkl, as HIL-SERL records them (read only)"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(_files(path)) or is_pickle_of(path, "list", "observations")

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return HilserlSource(path)


def _files(path: Path) -> list[Path]:
    """Return the files of a folder whose names state a label."""
    return [file for file in files_in(path, ".pkl") if NAME.fullmatch(file.name)]
