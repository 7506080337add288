"""One episode: frames with a label each, and what happened between them."""

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
"""What a label may be."""

LabelSource = Literal["simulator", "person", "rule", "unknown"]
"""Who says whether a frame shows success."""

Frames = NDArray[np.uint8]
"""(n, H, W, 3)."""


@dataclass(frozen=True, eq=False)
class Episode:
    """Frame and label are the same instant. Instant t is the state after t actions; instant 0 is the reset.

    Arrays may be memory-mapped, and are not to be written to.

    Attributes:
        id: Unique in its data set and fit for a file's name.
        frames: Camera name to uint8 (n, H, W, 3); every camera has the same n frames.
        labels: int8 (n,): `SUCCESS`, `FAILURE` or `UNKNOWN`.
        frame_index: int32 (n,), the instant of each frame, strictly ascending within 0..length. Frames may be few of
            the episode's instants.
        length: T, the number of actions.
        success: Whether the episode as a whole succeeded at some time, where that is known beyond the labels.
        label_source: Who gave the labels.
        flags: Other things known of each frame (`grasp`), int8 (n,) with the labels' values.
        state: float32 (T + 1, k); (T, k) where the reset was not recorded; `None` where nothing was.
        actions: float32 (T, a), or `None`.
        rewards: float32 (T,), or `None`.
        terminated: bool (T,), or `None`.
        truncated: bool (T,), or `None`.
        meta: What else is known (env, seed, actor, policy step, fps), as JSON values.
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
        """Whether this is a success: the env said so once, or a frame is labelled so."""
        return bool(self.success) or bool((self.labels == SUCCESS).any())

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(self.frames))

    def __len__(self) -> int:
        """How many frames there are, of each camera."""
        return len(self.labels)

    def state_at(self, instants: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """States (m, k) at some instants; `None` where there are none, or none of an asked-for reset."""
        if self.state is None:
            return None
        rows = np.asarray(instants) - (self.length + 1 - len(self.state))
        return self.state[rows] if (rows >= 0).all() else None

    def check(self, where: str | Path = "") -> Episode:
        """Returns itself if all its parts fit together, or raises a `DataError` that names the part.

        Args:
            where: The file that it comes from, for the message.
        """
        place = f"{where}: " if where else ""

        def need(ok: bool, part: str, why: str, *values: object) -> None:
            if not ok:
                raise DataError(f"{place}episode '{self.id}': {part} {why.format(*values) if values else why}.")

        need(bool(self.id) and not set(self.id) & set("/\\\0") and not self.id.startswith("."), "id", "is not a name")
        need(bool(self.frames), "frames", "has no camera")
        count, steps = len(self.labels), self.length
        need(count > 0, "frames", "is empty")
        for camera, pixels in self.frames.items():
            shape = pixels.shape
            fits = pixels.dtype == np.uint8 and len(shape) == 4 and shape[3] == 3 and min(shape) > 0
            need(fits, f"frames['{camera}']", "must be uint8 (n, H, W, 3), not {} {}", pixels.dtype, shape)
            need(shape[0] == count, f"frames['{camera}']", f"has {shape[0]} frames, but there are {count} labels")
        for name, values in {"labels": self.labels, **self.flags}.items():
            need(values.dtype == np.int8 and values.shape == (count,), name, f"must be int8 ({count},)")
            need(bool(((values >= UNKNOWN) & (values <= SUCCESS)).all()), name, "may only be 1, 0 or -1")
        index = self.frame_index
        need(index.dtype == np.int32 and index.shape == (count,), "frame_index", f"must be int32 ({count},)")
        need(bool((np.diff(index) > 0).all()), "frame_index", "must ascend")
        need(index[0] >= 0 and index[-1] <= steps, "frame_index", f"must lie within 0..{steps}, the episode's length")
        need(self.label_source in get_args(LabelSource), "label_source", f"must be one of {get_args(LabelSource)}")
        for name, kind, lengths in (
            ("state", np.float32, (steps, steps + 1)),
            ("actions", np.float32, (steps,)),
            ("rewards", np.float32, (steps,)),
            ("terminated", np.bool_, (steps,)),
            ("truncated", np.bool_, (steps,)),
        ):
            value = getattr(self, name)
            if value is not None:
                # A dtype's name takes longer to make than all the rest of this takes to check.
                need(value.dtype == kind, name, "must be {}, not {}", np.dtype(kind), value.dtype)
                dims = 2 if name in ("state", "actions") else 1
                fits = value.ndim == dims and len(value) in lengths
                need(fits, name, f"has shape {value.shape}, but the episode has {steps} steps")
        return self


@dataclass(frozen=True)
class Summary:
    """What is known of an episode without opening its frames.

    Attributes:
        id: As the episode's.
        labels: int8 (n,).
        positive: Whether it is a success.
        cameras: Camera name to (height, width).
        label_source: As the episode's.
        whole: Whether it is one of those of which all frames were to be kept, where of others only some are.
    """

    id: str
    labels: NDArray[np.int8]
    positive: bool
    cameras: Mapping[str, tuple[int, int]]
    label_source: LabelSource
    whole: bool = False


def summarise(episode: Episode) -> Summary:
    """The summary of an episode that is at hand."""
    cameras = {name: (pixels.shape[1], pixels.shape[2]) for name, pixels in episode.frames.items()}
    whole = bool(episode.meta.get("whole"))
    return Summary(episode.id, np.array(episode.labels), episode.positive, cameras, episode.label_source, whole)


class EpisodeSource(Sequence[Episode]):
    """Episodes somewhere on the disk, each read when it is asked for.

    Attributes:
        path: Where they are.
        format: The layout's name.
        notes: What a reader of the data should know: labels that were moved, things the layout could not hold.
    """

    path: Path
    format: str
    notes: Sequence[str] = ()

    @abstractmethod
    def read(self, index: int) -> Episode:
        """The episode at 0 <= index < len(self), checked; a `DataError` names the file where it is damaged."""

    def summaries(self) -> list[Summary]:
        """A line on every episode. Reads all of them, unless the layout has an index."""
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
    """How much a data set holds."""

    positive: int = 0
    negative: int = 0
    frames: int = 0
    success_frames: int = 0
    unknown_frames: int = 0

    @property
    def episodes(self) -> int:
        """All of them."""
        return self.positive + self.negative


class EpisodeWriter(Protocol):
    """Somewhere that episodes are written to: the store, or another system's layout."""

    @property
    def counts(self) -> Counts:
        """What is there, that of earlier runs included."""

    def add(self, episodes: Sequence[Episode]) -> int:
        """Writes some episodes, which are on the disk when this returns; those that are there already are left alone.

        Returns:
            How many were new.
        """

    def __contains__(self, item: object) -> bool:
        """Whether an episode, or the one with this id, is there."""

    def positives(self, beginning: str) -> int:
        """How many positive episodes are there whose ids begin so."""
