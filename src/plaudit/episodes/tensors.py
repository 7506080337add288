"""An episode as one safetensors file: written whole, read by mapping it into memory."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import Episode
from plaudit.errors import DataError

SCHEMA = 1
"""Of the files and the manifest. A reader refuses newer ones."""

_DTYPES = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "F32": np.float32, "BOOL": np.bool_}
_LONGEST_HEADER = 100_000_000
"""As in the format's specification."""

_FRAMES, _FLAGS = "frames.", "flags."
_STEPWISE = ("state", "actions", "rewards", "terminated", "truncated")


def encode(episode: Episode) -> bytes:
    """The content of an episode's file."""
    from safetensors.numpy import save

    tensors: dict[str, NDArray[Any]] = {"labels": episode.labels, "frame_index": episode.frame_index}
    tensors |= {_FRAMES + name: pixels for name, pixels in episode.frames.items()}
    tensors |= {_FLAGS + name: values for name, values in episode.flags.items()}
    tensors |= {name: getattr(episode, name) for name in _STEPWISE if getattr(episode, name) is not None}
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    about = {
        "schema": SCHEMA,
        "id": episode.id,
        "length": episode.length,
        "success": episode.success,
        "label_source": episode.label_source,
        "checksum": checksum(tensors),
        "meta": dict(episode.meta),
    }
    return save(tensors, {"plaudit": json.dumps(about)})


def checksum(tensors: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 over all tensors, by name."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(np.ascontiguousarray(tensors[name]).data.cast("B"), value)
    return value


def read(path: str | Path) -> Episode:
    """The episode in a file, its arrays mapped: what is not looked at is not read."""
    return _open(Path(path))[0]


def verify(path: str | Path) -> Episode:
    """As `read`, but reads every byte and compares it with the checksum."""
    episode, tensors, about = _open(Path(path))
    if checksum(tensors) != about.get("checksum"):
        raise DataError(f"{path}: the content does not match its checksum; the file was damaged after it was written.")
    return episode


def _open(path: Path) -> tuple[Episode, dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None
    try:
        tensors, about = _parse(mapped)
        episode = _assemble(tensors, about)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: is not a whole episode file ({error}). Delete it, or restore it.") from None
    return episode.check(path), tensors, about


def _parse(mapped: mmap.mmap) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Tensors as views of a safetensors file, and our metadata."""
    size = int.from_bytes(mapped[:8], "little")
    if not 2 <= size <= min(len(mapped) - 8, _LONGEST_HEADER):
        raise ValueError("its header is longer than the file")
    header = json.loads(mapped[8 : 8 + size])
    about = json.loads(header.pop("__metadata__")["plaudit"])
    if about["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer version of Plaudit, schema {about['schema']}")
    tensors = {}
    for name, entry in header.items():
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        shape = tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if min(shape, default=1) < 0 or end - start != count * dtype.itemsize or not 8 + size <= start <= end:
            raise ValueError(f"the place of '{name}' makes no sense")
        if end > len(mapped):
            raise ValueError("the file was cut short")
        tensors[name] = np.frombuffer(mapped, dtype, count, start).reshape(shape)
    return tensors, about


def _assemble(tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> Episode:
    def named(prefix: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return Episode(
        id=str(about["id"]),
        frames=named(_FRAMES),
        labels=tensors["labels"],
        frame_index=tensors["frame_index"],
        length=int(about["length"]),
        success=about["success"],
        label_source=about["label_source"],
        flags=named(_FLAGS),
        meta=dict(about["meta"]),
        **{name: tensors.get(name) for name in _STEPWISE},
    )
