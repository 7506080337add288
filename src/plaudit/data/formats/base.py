"""Base classes of episode formats and of the sources that read their files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from plaudit.data.episode import Episode, EpisodeSource, EpisodeWriter
from plaudit.errors import DataError

FIELDS = ("label_source", "flags", "state", "actions", "rewards", "terminated", "truncated", "meta")
"""Optional fields of an episode besides frames and labels, which a layout may not support."""


class EpisodeFormat(ABC):
    """Layout of episodes on disk. It has class methods only, since it has no state.

    Attributes:
        name: Name in the registry.
        about: Description in one line, for lists of formats.
        holds: The `FIELDS` that the layout can store.
        writer: Creates an `EpisodeWriter` from a path and options; `None` if the layout is read only.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    holds: ClassVar[frozenset[str]] = frozenset()
    writer: ClassVar[Callable[..., EpisodeWriter] | None] = None

    @classmethod
    @abstractmethod
    def matches(cls, path: Path) -> bool:
        """Return whether a path looks like this layout. Never raises, and reads little."""

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> EpisodeSource:
        """Return the episodes at a path, without opening any of them yet."""

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        """Return why the layout cannot store an episode at all, or `None` if it can."""
        return None

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        """Describe the parts of an episode that the layout cannot store."""
        return [field for field in FIELDS if field not in cls.holds and _is_set(getattr(episode, field))]


def _is_set(value: Any) -> bool:
    """Return whether an optional field of an episode has a value."""
    return bool(value) and value != "unknown" if isinstance(value, (Mapping, str)) else value is not None


class Notes(Sequence[str]):
    """Distinct remarks about the data for the user; more are added as episodes are read."""

    def __init__(self, *texts: str) -> None:
        self._texts = dict.fromkeys(texts)

    def add(self, text: str) -> None:
        """Add a note, unless it is already present."""
        self._texts[text] = None

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        return list(self._texts)[index]


class FileSource(EpisodeSource):
    """Source of episodes with one file (or folder) each.

    Args:
        path: Path that contains the episodes.
        files: Id and path of each episode.
        notes: Remarks about the data for the user.
    """

    def __init__(self, path: Path, files: Sequence[tuple[str, Path]], *notes: str) -> None:
        self.path = path
        self.files = files
        self.notes: Notes = Notes(*notes)

    @abstractmethod
    def parse(self, file: Path, id: str) -> Episode:
        """Return the episode in a file.

        `read` converts any error raised here to a `DataError` with the file's name.
        """

    def read(self, index: int) -> Episode:
        id, file = self.files[index]
        with parsing(file, self.format):
            episode = self.parse(file, id)
        return episode.check(file)

    def __len__(self) -> int:
        return len(self.files)


class LoadedSource(EpisodeSource):
    """Source that must read the whole file to know its episodes, and keeps them in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._episodes: list[Episode] | None = None
        self._notes = Notes()

    @abstractmethod
    def load(self) -> list[Episode]:
        """Return all episodes, and add remarks to `_notes`."""

    @property
    def episodes(self) -> list[Episode]:
        """All episodes, read at the first access."""
        if self._episodes is None:
            self._episodes = self.load()
        return self._episodes

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """Remarks about the data; the first access reads the file."""
        return self._notes if self.episodes else ()

    def read(self, index: int) -> Episode:
        return self.episodes[index]

    def __len__(self) -> int:
        return len(self.episodes)


@contextmanager
def parsing(file: Path | str, format: str) -> Iterator[None]:
    """Convert errors from invalid content to a `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{file}: is not as '{format}' files are: {error}.") from None
    except Exception as error:
        # The content comes from other programs; the errors that invalid content causes cannot be foreseen.
        raise DataError(f"{file}: is not as '{format}' files are ({type(error).__name__}: {error}).") from None
