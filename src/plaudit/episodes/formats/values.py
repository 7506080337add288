"""Labels, flags and vectors out of whatever other systems put into their files.

Every function raises a `ValueError` that names the thing, for the reader to put the file's name before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.episodes.formats.arrays import shown

MAIN_CAMERA = "main_images"
"""What several systems call their first camera in an observation."""

_STATES = ("states", "state")
_DEEPEST, _MOST = 8, 100_000


def entry(content: Any, key: str, what: str = "it") -> Any:
    """The value under a key of a dict."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{what} should be a dict, not {kind(content)}")
    if key not in content:
        raise ValueError(
            f"{what} has no '{key}', only {', '.join(shown(name) for name in list(content)[:8]) or 'nothing'}"
        )
    return content[key]


def items(value: Any, what: str) -> list[Any]:
    """The items of a list, a tuple or an array."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return list(value)
    raise ValueError(f"{what} should be a list, not {kind(value)}")


def number(value: Any, what: str) -> float:
    """One number; NaN where there is none."""
    if value is None:
        return math.nan
    array = numeric(value, what)
    if array.size != 1:
        raise ValueError(f"{what} should be one number, not {kind(value)}")
    return float(array.reshape(()))


def numeric(value: Any, what: str) -> NDArray[Any]:
    """A number, an array, or lists of them, as an array."""
    if isinstance(value, (list, tuple)) and not _is_small(value):
        raise ValueError(f"{what} has lists of more than {_MOST:,} numbers, or more than {_DEEPEST} deep")
    array = np.asarray(value) if isinstance(value, (bool, int, float, np.generic, np.ndarray, list, tuple)) else None
    if array is None or array.dtype.kind not in "buif":
        raise ValueError(f"{what} should be a number or an array of numbers, not {kind(value)}")
    return array


def label(value: Any, what: str) -> int:
    """`SUCCESS` from 0.5 on, `FAILURE` below; `UNKNOWN` where there is nothing, or NaN."""
    found = number(value, what)
    if math.isnan(found):
        return UNKNOWN
    if not 0 <= found <= 1:
        raise ValueError(f"{what} should be 0 or 1, not {found:g}")
    return SUCCESS if found >= 0.5 else FAILURE


def labels(values: Any, what: str) -> NDArray[np.int8]:
    """int8 (n,)."""
    return np.array([label(value, f"{what}[{i}]") for i, value in enumerate(items(values, what))], np.int8)


def numbers(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """float32 (n,), or `None` where nothing is known of any."""
    found = np.array([number(value, f"{what}[{i}]") for i, value in enumerate(values)], np.float32)
    return None if np.isnan(found).all() else found


def booleans(values: Sequence[Any], what: str) -> NDArray[np.bool_] | None:
    """As bool (n,), or `None` where some are not known."""
    found = numbers(values, what)
    return None if found is None or np.isnan(found).any() else found != 0


def vectors(values: Sequence[Any], what: str) -> NDArray[np.float32] | None:
    """float32 (n, k), NaN where one is not known; `None` where none is."""
    rows = {i: numeric(row, f"{what}[{i}]").reshape(-1) for i, row in enumerate(values) if row is not None}
    sizes = sorted({len(row) for row in rows.values()})
    if len(sizes) > 1:
        raise ValueError(f"{what} has entries of {' and '.join(map(str, sizes))} numbers")
    found = np.full((len(values), sizes[0] if sizes else 0), np.nan, np.float32)
    for i, row in rows.items():
        found[i] = row
    return None if np.isnan(found).all() else found


def pictures(observations: Sequence[Any], what: str) -> dict[str, list[NDArray[Any]]]:
    """Camera name to a picture of each observation. Pictures are the arrays with three axes or more."""
    for i, observation in enumerate(observations):
        if not isinstance(observation, Mapping):
            raise ValueError(f"{what}[{i}] should be a dict, not {kind(observation)}")
        if MAIN_CAMERA in observation and not is_picture(observation[MAIN_CAMERA]):
            raise ValueError(f"{what}[{i}]['{MAIN_CAMERA}'] should be a picture, not {kind(observation[MAIN_CAMERA])}")
    cameras = [str(key) for key, value in observations[0].items() if is_picture(value)] if observations else []
    if not cameras:
        raise ValueError(f"{what} has no pictures")
    found: dict[str, list[NDArray[Any]]] = {camera: [] for camera in cameras}
    for i, observation in enumerate(observations):
        for camera in cameras:
            if not is_picture(observation.get(camera)):
                raise ValueError(f"{what}[{i}] has no picture '{camera}', but {what}[0] has")
            found[camera].append(observation[camera])
    return found


def states(observations: Sequence[Mapping[str, Any]], what: str) -> NDArray[np.float32] | None:
    """float32 (n, k), or `None` where there are none."""
    return vectors([next((o[key] for key in _STATES if key in o), None) for o in observations], f"the states of {what}")


def plain(value: Any) -> Any:
    """JSON values; what cannot be one, or is too much of them, is left out, as `None`."""
    left = [_MOST]

    def convert(value: Any, depth: int) -> Any:
        left[0] -= 1
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= left[0]):
            value = value.tolist()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if depth == _DEEPEST or not isinstance(value, (Mapping, list, tuple)) or len(value) > left[0]:
            return None
        if isinstance(value, Mapping):
            return {str(key): convert(item, depth + 1) for key, item in value.items()}
        return [convert(item, depth + 1) for item in value]

    return convert(value, 0)


def kind(value: Any) -> str:
    """What something is, in a message."""
    return f"an array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def is_picture(value: Any) -> bool:
    """Whether something could be one: (H, W, C), perhaps with an axis before."""
    return isinstance(value, np.ndarray) and value.ndim >= 3


def _is_small(value: Any) -> bool:
    """Whether lists within lists come to an end soon: a few bytes may stand for more of them than there is memory."""
    level, left = [value], _MOST
    for _ in range(_DEEPEST):
        lists = [item for item in level if isinstance(item, (list, tuple))]
        left -= sum(map(len, lists)) + sum(item.size for item in level if isinstance(item, np.ndarray))
        if not lists or left < 0:
            return left >= 0
        level = [item for inner in lists for item in inner]
    return False
