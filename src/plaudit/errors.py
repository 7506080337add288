"""One exception tree. A message says what was wrong, where, what was expected, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlauditError(Exception):
    """Base of every error that Plaudit raises on purpose. `exit_code` is what the CLI ends with."""

    exit_code = 1


class ConfigError(PlauditError):
    """A config that cannot work: unknown key, wrong type, missing value, impossible combination."""

    exit_code = 2


class RegistryError(ConfigError):
    """A name that nothing is registered under, or that is registered twice."""


class EnvError(PlauditError):
    """An environment broke its contract or was used against it."""


class NonFiniteError(EnvError):
    """A NaN or an infinity where there must be a number."""


class CheckpointError(PlauditError):
    """A checkpoint that is missing, damaged, or belongs to another model."""


class DataError(PlauditError):
    """Episodes that cannot be read, do not fit together, or must not be loaded."""


class OutputError(PlauditError):
    """A folder that cannot be written, or a disk without room."""


class MissingDependencyError(PlauditError):
    """A library that this feature needs is not installed; the message says how to get it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that helps after a wrong word: " Did you mean 'x'?" or the known words.

    Args:
        word: What the user wrote.
        known: What would have been valid.
    """
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(words)}." if words else ""


def listed(word: str, known: Iterable[str]) -> str:
    """What there is, and then what was meant: "eye, render. Did you mean 'eye'?", or "none."."""
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"{', '.join(words) or 'none'}.{f' Did you mean {close[0]!r}?' if close else ''}"
