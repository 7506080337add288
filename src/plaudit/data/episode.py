"""Episode data types: labelled frames, actions and states, and how they are read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, overload

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import DataError

SUCCESS, FAILURE, UNKNOWN = 1, 0, -1
"""The values of a label."""

LabelSource = Literal["simulator", "person", "rule", "unknown"]
"""The origin of a label that says whether a frame shows success."""

Frames = NDArray[np.uint8]
"""(n, H, W, 3)."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: labelled frames and the actions, states and rewards between them.

    A frame and its label belong to the same instant. Instant t is the state after t actions; instant 0 is the reset.
    Arrays may be memory-mapped and must not be written to.

    Attributes:
        id: Unique in its data set and valid as a file name.
        frames: Camera name to uint8 (n, H, W, 3); every camera has the same n frames.
        labels: int8 (n,): `SUCCESS`, `FAILURE` or `UNKNOWN`.
        frame_index: int32 (n,), the instant of each frame, strictly ascending within 0..length. Frames may cover only
            some of the episode's instants.
        length: T, the number of actions.
        success: Whether the episode succeeded at any time, if that is known independently of the labels.
        label_source: Origin of the labels.
        flags: Further annotations of each frame (`grasp`), int8 (n,) with the same values as labels.
        state: float32 (T + 1, k); (T, k) if the reset was not recorded; `None` if no state was.
        actions: float32 (T, a), or `None`.
        rewards: float32 (T,), or `None`.
        terminated: bool (T,), or `None`.
        truncated: bool (T,), or `None`.
        meta: Further metadata (env, seed, actor, policy step, fps), as JSON values.
    """

    id: str
    frames: Mapping[str, Frames]
    labels: NDArray[np.int8]
    frame_index: NDArray[np.int32]
    length: int
    success: bool | None = None
    label_source: LabelSource = "unknown"
    flags: Mapping[str, NDArray[np.int8]] = field(default_factory=dict)
    state: NDArray[np.float32] | None = None
    actions: NDArray[np.float32] | None = None
    rewards: NDArray[np.float32] | None = None
    terminated: NDArray[np.bool_] | None = None
    truncated: NDArray[np.bool_] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def positive(self) -> bool:
        """True if the env reported success once or any frame is labelled a success."""
        return bool(self.success) or bool((self.labels == SUCCESS).any())

    @property
    def cameras(self) -> tuple[str, ...]:
        """Camera names, sorted."""
        return tuple(sorted(self.frames))

    def __len__(self) -> int:
        """Return the number of frames per camera."""
        return len(self.labels)

    def state_at(self, instants: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """Return the states (m, k) at the given instants.

        `None` if the episode has no states, or if `instants` includes a reset that was not recorded.
        """
        if self.state is None:
            return None

        # Without a recorded reset, row 0 is instant 1.
        rows = np.asarray(instants) - (self.length + 1 - len(self.state))
        return self.state[rows] if (rows >= 0).all() else None

    def check(self, where: str | Path = "") -> Episode:
        """Validate the episode and return it; raise a `DataError` that names the invalid part.

        Args:
            where: The file that the episode comes from, for the error message.
        """
        place = f"{where}: " if where else ""

        def need(ok: bool, part: str, why: str, *values: object) -> None:
            if not ok:
                raise DataError(f"{place}episode '{self.id}': {part} {why.format(*values) if values else why}.")

        need(bool(self.id) and not set(self.id) & set("/\\\0") and not self.id.startswith("."), "id", "is not a name")
        need(bool(self.frames), "frames", "has no camera")
        count = len(self.labels)
        steps = self.length
        need(count > 0, "frames", "is empty")

        # Every camera has one frame per label.
        for camera, pixels in self.frames.items():
            shape = pixels.shape
            fits = pixels.dtype == np.uint8 and len(shape) == 4 and shape[3] == 3 and min(shape) > 0
            need(fits, f"frames['{camera}']", "must be uint8 (n, H, W, 3), not {} {}", pixels.dtype, shape)
            need(shape[0] == count, f"frames['{camera}']", f"has {shape[0]} frames, but there are {count} labels")

        # Flags share shape and values with the labels.
        for name, values in {"labels": self.labels, **self.flags}.items():
            need(values.dtype == np.int8 and values.shape == (count,), name, f"must be int8 ({count},)")
            need(bool(((values >= UNKNOWN) & (values <= SUCCESS)).all()), name, "may only be 1, 0 or -1")

        index = self.frame_index
        need(index.dtype == np.int32 and index.shape == (count,), "frame_index", f"must be int32 ({count},)")
        need(bool((np.diff(index) > 0).all()), "frame_index", "must ascend")
        need(index[0] >= 0 and index[-1] <= steps, "frame_index", f"must lie within 0..{steps}, the episode's length")

        need(self.label_source in get_args(LabelSource), "label_source", f"must be one of {get_args(LabelSource)}")

        # Arrays per step; the state may have one more row, the reset.
        for name, kind, lengths in (
            ("state", np.float32, (steps, steps + 1)),
            ("actions", np.float32, (steps,)),
            ("rewards", np.float32, (steps,)),
            ("terminated", np.bool_, (steps,)),
            ("truncated", np.bool_, (steps,)),
        ):
            value = getattr(self, name)
            if value is not None:
                # The message is formatted only on failure: a dtype's name takes longer to make than all other checks.
                need(value.dtype == kind, name, "must be {}, not {}", np.dtype(kind), value.dtype)
                dims = 2 if name in ("state", "actions") else 1
                fits = value.ndim == dims and len(value) in lengths
                need(fits, name, f"has shape {value.shape}, but the episode has {steps} steps")

        return self


@dataclass(frozen=True)
class Summary:
    """Summary of an episode that is available without opening its frames.

    Attributes:
        id: The episode's id.
        labels: int8 (n,).
        positive: Whether the episode is a success.
        cameras: Camera name to (height, width).
        label_source: The episode's label source.
        whole: Whether the episode was drawn to keep all of its frames, while others keep only some.
    """

    id: str
    labels: NDArray[np.int8]
    positive: bool
    cameras: Mapping[str, tuple[int, int]]
    label_source: LabelSource
    whole: bool = False


def summarise(episode: Episode) -> Summary:
    """Return the summary of a loaded episode."""
    cameras = {name: (pixels.shape[1], pixels.shape[2]) for name, pixels in episode.frames.items()}
    whole = bool(episode.meta.get("whole"))
    return Summary(episode.id, np.array(episode.labels), episode.positive, cameras, episode.label_source, whole)


class EpisodeSource(Sequence[Episode]):
    """Sequence of episodes on disk, each read when it is accessed.

    Attributes:
        path: The folder or file of the data set.
        format: The layout's name.
        notes: Caveats for users of the data: labels that were moved, fields that the layout could not hold.
    """

    path: Path
    format: str
    notes: Sequence[str] = ()

    @abstractmethod
    def read(self, index: int) -> Episode:
        """Return the validated episode at 0 <= index < len(self).

        Raises:
            DataError: The episode is damaged; the message names the file.
        """

    def summaries(self) -> list[Summary]:
        """Return a summary of every episode. Reads all of them, unless the layout has an index."""
        return [summarise(episode) for episode in self]

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} episodes in {self.path}, but number {index} was asked for")
        return self.read(index % len(self))

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(index) for index in range(len(self)))


@dataclass(frozen=True)
class Counts:
    """Numbers of episodes and frames in a data set."""

    positive: int = 0
    negative: int = 0
    frames: int = 0
    success_frames: int = 0
    unknown_frames: int = 0

    @property
    def episodes(self) -> int:
        """Number of episodes, positive and negative."""
        return self.positive + self.negative


class EpisodeWriter(Protocol):
    """Destination for episodes: the store, or another system's layout."""

    @property
    def counts(self) -> Counts:
        """Counts of the episodes written so far, including earlier runs."""

    def add(self, episodes: Sequence[Episode]) -> int:
        """Write episodes; all are on disk when this returns. Existing episodes are left unchanged.

        Returns:
            The number of new episodes.
        """

    def __contains__(self, item: object) -> bool:
        """Return whether an episode, given as such or by its id, has been written."""

    def positives(self, beginning: str) -> int:
        """Return the number of positive episodes whose ids start with `beginning`."""
