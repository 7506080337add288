"""What a layout of episodes on the disk is, and how its files are read one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from plaudit.data.episode import Episode, EpisodeSource, EpisodeWriter
from plaudit.errors import DataError

FIELDS = ("label_source", "flags", "state", "actions", "rewards", "terminated", "truncated", "meta")
"""What an episode may have besides frames and labels, and a layout may have no place for."""


class EpisodeFormat(ABC):
    """One layout. All of it is class methods: there is nothing to keep.

    Attributes:
        name: As it is registered.
        about: One line for lists.
        holds: Which of `FIELDS` it has a place for.
        writer: Makes an `EpisodeWriter` from a path and options; `None` where the layout is only read.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    holds: ClassVar[frozenset[str]] = frozenset()
    writer: ClassVar[Callable[..., EpisodeWriter] | None] = None

    @classmethod
    @abstractmethod
    def matches(cls, path: Path) -> bool:
        """Whether what is there looks like this layout. Never raises, and reads little."""

    @classmethod
    @abstractmethod
    def read(cls, path: Path) -> EpisodeSource:
        """The episodes there, none of which is opened yet."""

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        """Why the layout cannot hold an episode at all, or `None` where it can."""
        return None

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        """What of an episode the layout has no place for, in words."""
        return [field for field in FIELDS if field not in cls.holds and _is_given(getattr(episode, field))]


def _is_given(value: Any) -> bool:
    return bool(value) and value != "unknown" if isinstance(value, (Mapping, str)) else value is not None


class Notes(Sequence[str]):
    """What a reader of the data should know, each thing once; grows while episodes are read."""

    def __init__(self, *texts: str) -> None:
        self._texts = dict.fromkeys(texts)

    def add(self, text: str) -> None:
        """Adds a note, if it is a new one."""
        self._texts[text] = None

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        return list(self._texts)[index]


class FileSource(EpisodeSource):
    """Episodes with a file (or a folder) each.

    Args:
        path: Where they are.
        files: The id and the place of each.
    """

    def __init__(self, path: Path, files: Sequence[tuple[str, Path]], *notes: str) -> None:
        self.path, self.files = path, files
        self.notes: Notes = Notes(*notes)

    @abstractmethod
    def parse(self, file: Path, id: str) -> Episode:
        """The episode in a file. Any error at all becomes a `DataError` with the file's name."""

    def read(self, index: int) -> Episode:
        id, file = self.files[index]
        with parsing(file, self.format):
            episode = self.parse(file, id)
        return episode.check(file)

    def __len__(self) -> int:
        return len(self.files)


class LoadedSource(EpisodeSource):
    """Episodes of which nothing is known before the whole file is read: then they are all kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._episodes: list[Episode] | None = None
        self._notes = Notes()

    @abstractmethod
    def load(self) -> list[Episode]:
        """All episodes; adds to `_notes`."""

    @property
    def episodes(self) -> list[Episode]:
        """All of them, read at the first call."""
        if self._episodes is None:
            self._episodes = self.load()
        return self._episodes

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """Known once the file is read."""
        return self._notes if self.episodes else ()

    def read(self, index: int) -> Episode:
        return self.episodes[index]

    def __len__(self) -> int:
        return len(self.episodes)


@contextmanager
def parsing(file: Path | str, format: str) -> Iterator[None]:
    """Content of the wrong kind becomes a `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{file}: is not as '{format}' files are: {error}.") from None
    except Exception as error:
        # The content is anybody's; what it breaks when it is of the wrong kind cannot be foreseen.
        raise DataError(f"{file}: is not as '{format}' files are ({type(error).__name__}: {error}).") from None
