"""Transitions of a real robot in one pickle, in the raw layout of RLinf's real-world guide.

    data.pkl      a list of {"transitions": {"obs": {…}, "next_obs": {…}}, "action": (6,), "rewards": (1,),
                  "dones": (1,), "terminations": (1,), "truncations": (1,)}

An observation has `main_images`, float (H, W, C) in 0 to 1, and `states`. An episode ends when `dones` is true.
Success is a reward above 0.5, and belongs to `next_obs`. The reset frame is the `obs` of an episode's first
transition; the file does not record whether it shows success, so its label is unknown.

The whole file is read at once, and rewritten with every addition.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource
from plaudit.data.formats import parsing as values
from plaudit.data.formats.base import EpisodeFormat, LoadedSource, parsing
from plaudit.data.formats.numbered_files import claim, new_ones, staged
from plaudit.data.formats.parsing import to_unit_floats
from plaudit.data.formats.rlinf_observations import (
    any_within,
    at,
    lost_between_frames,
    lost_in_observations,
    main_camera,
    observation,
    whole_episode,
)
from plaudit.data.formats.safe_pickle import is_pickle_of, load_pickle
from plaudit.errors import DataError, OutputError

FILE = "data.pkl"


class RealworldRawSource(LoadedSource):
    """Episodes of a `data.pkl`; the first access reads the whole file."""

    format = "realworld_raw"

    def load(self) -> list[Episode]:
        transitions = load_pickle(self.path)
        with parsing(self.path, self.format):
            chunks = _split(values.items(transitions, "it"))
            ids = _ids(self.path, chunks)
            episodes = [_episode(id, chunk) for id, chunk in zip(ids, chunks, strict=True)]
        if not episodes:
            raise DataError(f"{self.path}: holds no transitions, so there is no episode in it.")

        # A recording that was interrupted has no `dones` at its end.
        if not _ends(chunks[-1][-1]):
            self._notes.add(
                f"{self.path.name} ends in the middle of an episode: '{episodes[-1].id}' is kept as far as it goes"
            )
        self._notes.add(
            "labels are those of the frames after each action; that of each episode's first frame is unknown"
        )
        return [episode.check(self.path) for episode in episodes]


def _split(transitions: list[Any]) -> list[list[Any]]:
    """Split transitions into episodes after every true `dones`."""
    chunks: list[list[Any]] = [[]]
    for transition in transitions:
        chunks[-1].append(transition)
        if _ends(transition):
            chunks.append([])
    return [chunk for chunk in chunks if chunk]


def _ends(transition: Any) -> bool:
    """Return whether a transition is the last of its episode."""
    return values.number(values.entry(transition, "dones", "a transition"), "dones") > 0.5


def _episode(id: str, chunk: list[Any]) -> Episode:
    """Return the episode of a list of consecutive transitions."""
    # T transitions have T + 1 observations: the reset, then the one after each action.
    pairs = [values.entry(transition, "transitions", "a transition") for transition in chunk]
    reset = values.entry(pairs[0], "obs", "transitions")
    observations = [reset, *(values.entry(pair, "next_obs", "transitions") for pair in pairs)]

    def each(key: str) -> list[Any]:
        return [values.entry(transition, key, "a transition") for transition in chunk]

    rewards = [values.number(reward, "rewards") for reward in each("rewards")]
    labels = [UNKNOWN if math.isnan(reward) else SUCCESS if reward > 0.5 else FAILURE for reward in rewards]

    return whole_episode(
        id,
        observations,
        [UNKNOWN, *labels],
        "obs",
        success=True if SUCCESS in labels else None if UNKNOWN in labels else False,
        label_source="rule",
        actions=values.vectors(each("action"), "action"),
        rewards=values.numbers(rewards, "rewards"),
        terminated=values.booleans(each("terminations"), "terminations"),
        truncated=values.booleans(each("truncations"), "truncations"),
    )


class RealworldRawWriter:
    """Writer of `data.pkl`, which rewrites the file with every addition.

    Args:
        path: The file, or the folder that contains `data.pkl`.
        main_camera: The camera that becomes `main_images`; by default the first by name.
    """

    def __init__(self, path: str | Path, *, main_camera: str | None = None) -> None:
        self.file = _file(Path(path))
        self.main_camera = main_camera
        if self.file.parent == Path(path):
            claim(self.file.parent, lambda name: name == FILE)

        self._episodes: list[Episode] = []
        if self.file.exists():
            # A file of another program may contain data that rewriting would lose.
            if not _ids_file(self.file).exists():
                raise OutputError(f"'{self.file}' was not written by Plaudit; choose another place.")
            self._episodes = RealworldRawSource(self.file).episodes

    @property
    def counts(self) -> Counts:
        """Numbers of episodes and frames in the file."""
        labels = np.concatenate([np.zeros(0, np.int8), *(_held_labels(episode) for episode in self._episodes)])
        positive = sum(episode.positive for episode in self._episodes)
        success = int((labels == SUCCESS).sum())
        unknown = int((labels == UNKNOWN).sum())
        return Counts(positive, len(self._episodes) - positive, len(labels), success, unknown)

    def __contains__(self, item: object) -> bool:
        id = item.id if isinstance(item, Episode) else item
        return any(episode.id == id for episode in self._episodes)

    def positives(self, beginning: str) -> int:
        """Return the number of positive episodes whose ids start with `beginning`."""
        return sum(episode.positive for episode in self._episodes if episode.id.startswith(beginning))

    def add(self, episodes: Sequence[Episode]) -> int:
        """Write the episodes with new ids and return how many there were.

        All of them are synced to disk when this returns.
        """
        # Check all of them before anything is written.
        for episode in episodes:
            reason = RealworldRawFormat.misfit(episode.check())
            if reason:
                raise DataError(f"episode '{episode.id}': {reason}.")

        new = new_ones(episodes, self)
        if new:
            all_episodes = [*self._episodes, *new]

            # Write the ids first: too many ids do no harm, but with too few an episode would be written twice.
            with staged(_ids_file(self.file)) as temporary:
                temporary.write_text(json.dumps([[episode.id, len(episode) - 1] for episode in all_episodes]))

            transitions = [t for episode in all_episodes for t in _transitions(episode, self.main_camera)]
            with staged(self.file) as temporary, temporary.open("wb") as file:
                pickle.dump(transitions, file)
            self._episodes = all_episodes

        return len(new)


def _transitions(episode: Episode, camera: str | None) -> Iterator[dict[str, Any]]:
    """Yield the transition from each frame to the next.

    The steps between two frames count as one step.
    """
    import torch

    main = main_camera(episode, camera)
    index = episode.frame_index
    observations = [_observation(episode, row, main) for row in range(len(episode))]

    for row in range(len(episode) - 1):
        start = int(index[row])
        stop = int(index[row + 1])
        last = row == len(episode) - 2
        action = at(episode.actions, start)

        # If it is not known why the episode ends, it counts as truncated: the recording does end there.
        ends = [any_within(flags, start, stop) for flags in (episode.terminated, episode.truncated)]
        if last and ends == [None, None]:
            ends = [False, True]

        yield {
            "transitions": {"obs": observations[row], "next_obs": observations[row + 1]},
            "action": torch.full((6,), math.nan) if action is None else torch.tensor(action),
            "rewards": torch.tensor([_reward(episode, row + 1)]),
            "dones": torch.tensor([last]),
            "terminations": torch.tensor([bool(ends[0])]),
            "truncations": torch.tensor([bool(ends[1])]),
        }


def _observation(episode: Episode, row: int, main: str) -> dict[str, Any]:
    """Return the observation of a frame as tensors, with images as floats in 0 to 1."""
    import torch

    content = observation(episode, row, main)
    states = content.pop("states")
    images = {camera: torch.from_numpy(to_unit_floats(pixels)) for camera, pixels in content.items()}
    return {"states": None if states is None else torch.from_numpy(states), **images}


def _reward(episode: Episode, row: int) -> float:
    """Return the reward of the step to a frame if it agrees with the label, else the label."""
    label = episode.labels[row]
    reward = at(episode.rewards, int(episode.frame_index[row]) - 1)
    if label == UNKNOWN:
        return math.nan
    return float(reward) if reward is not None and (reward > 0.5) == (label == SUCCESS) else float(label)


def _held_labels(episode: Episode) -> NDArray[np.int8]:
    """Return the labels that the layout keeps: all but that of the reset frame."""
    labels = np.array(episode.labels)
    labels[0] = UNKNOWN
    return labels


class RealworldRawFormat(EpisodeFormat):
    """Transitions: pairs of frames with the action, reward and end flags between them."""

    name = "realworld_raw"
    about = "data.pkl, a list of transitions of a real robot (RLinf's real-world guide)"
    holds = frozenset({"state", "actions", "rewards", "terminated", "truncated"})
    writer = RealworldRawWriter

    @classmethod
    def matches(cls, path: Path) -> bool:
        return (path / FILE).is_file() or is_pickle_of(path, "list", "transitions", "obs")

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return RealworldRawSource(path / FILE if path.is_dir() else path)

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        return "it has a single frame, and the layout holds pairs of them" if len(episode) < 2 else None

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        lost = [*super().lost(episode), *lost_in_observations(episode), *lost_between_frames(episode)]

        # The file encodes labels as rewards, and has none for the reset frame.
        if episode.labels[0] != UNKNOWN:
            lost.append("labels: that of the first frame")
        if any(
            at(episode.rewards, int(episode.frame_index[i]) - 1) != _reward(episode, i) for i in range(1, len(episode))
        ):
            lost.append("rewards: the labels take their place")

        # The file stores neither the success of an episode nor an unknown reason for its end.
        if episode.success != bool((_held_labels(episode) == SUCCESS).any()):
            lost.append("success: of the episode as a whole, beyond its labels")
        if episode.terminated is None and episode.truncated is None:
            lost.append("terminated and truncated: not known, so the end counts as truncated")
        return lost


def _file(path: Path) -> Path:
    """Return the path of the pickle, given itself or its folder."""
    return path if path.suffix == ".pkl" else path / FILE


def _ids_file(file: Path) -> Path:
    """Return the path of the hidden file with the episode ids."""
    return file.with_name(f".{file.stem}.ids.json")


def _ids(file: Path, chunks: list[list[Any]]) -> list[str]:
    """Return the ids stored beside the file, or else ids made from its name."""
    stored: list[Any] = []
    with suppress(OSError, ValueError):
        stored = json.loads(_ids_file(file).read_text())

    # A stored id is valid only if its number of transitions agrees.
    ids = [f"{file.stem}-{i:06d}" for i in range(len(chunks))]
    for i, (line, chunk) in enumerate(zip(stored, chunks, strict=False)):
        if isinstance(line, list) and len(line) == 2 and line[1] == len(chunk) and isinstance(line[0], str):
            ids[i] = line[0]
    return ids
