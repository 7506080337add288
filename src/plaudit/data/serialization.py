"""An episode as one safetensors file: written whole, read by mapping it into memory."""

from __future__ import annotations

import json
import math
import mmap
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import Episode
from plaudit.errors import DataError

SCHEMA = 1
"""Of the files and the manifest. A reader refuses newer ones."""

_DTYPES = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "F32": np.float32, "BOOL": np.bool_}
_CODES = {np.dtype(kind): code for code, kind in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000
"""As in the format's specification."""

FRAMES, _FLAGS = "frames.", "flags."
_STEPWISE = ("state", "actions", "rewards", "terminated", "truncated")


class TensorLocation(NamedTuple):
    """Where a tensor begins in its file, in bytes, and what it is."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def encode(episode: Episode) -> bytes:
    """The content of an episode's file."""
    tensors: dict[str, NDArray[Any]] = {"labels": episode.labels, "frame_index": episode.frame_index}
    tensors |= {FRAMES + name: pixels for name, pixels in episode.frames.items()}
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
    return _serialize(tensors, {"plaudit": json.dumps(about)})


def _serialize(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file. The library's own function copies all pixels three times; here they are copied once."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    # As the library does: wide types first, so that all of them are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    offset = 0
    for name in names:
        value = tensors[name]
        places = [offset, offset + value.nbytes]
        header[name] = {"dtype": _CODES[value.dtype], "shape": value.shape, "data_offsets": places}
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(_bytes(tensors[name]) for name in names)])


def _bytes(value: NDArray[Any]) -> memoryview:
    """What is in an array, which must be in one piece, without copying it."""
    return value.reshape(-1).view(np.uint8).data


def checksum(tensors: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 over all tensors, by name."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(_bytes(np.ascontiguousarray(tensors[name])), value)
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


def places(path: str | Path) -> dict[str, TensorLocation]:
    """Where the tensors are in a file, for whoever reads a few bytes of many files and cannot keep them all mapped."""
    with _map(Path(path)) as mapped, _named(Path(path)):
        return _parse(mapped)[0]


def _open(path: Path) -> tuple[Episode, dict[str, NDArray[Any]], dict[str, Any]]:
    mapped = _map(path)
    with _named(path):
        found, about = _parse(mapped)
        tensors = {
            name: np.frombuffer(mapped, place.dtype, math.prod(place.shape), place.start).reshape(place.shape)
            for name, place in found.items()
        }
        episode = _assemble(tensors, about)
    return episode.check(path), tensors, about


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file's content, the message names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: is not a whole episode file ({error}). Delete it, or restore it.") from None


def _parse(mapped: mmap.mmap) -> tuple[dict[str, TensorLocation], dict[str, Any]]:
    """Where the tensors are in a safetensors file, and our metadata."""
    size = int.from_bytes(mapped[:8], "little")
    if not 2 <= size <= min(len(mapped) - 8, _LONGEST_HEADER):
        raise ValueError("its header is longer than the file")
    header = json.loads(mapped[8 : 8 + size])
    about = json.loads(header.pop("__metadata__")["plaudit"])
    if about["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer version of Plaudit, schema {about['schema']}")
    found = {}
    for name, entry in header.items():
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        shape = tuple(entry["shape"])
        wanted = math.prod(shape) * dtype.itemsize
        if min(shape, default=1) < 0 or end - start != wanted or not 8 + size <= start <= end:
            raise ValueError(f"the place of '{name}' makes no sense")
        if end > len(mapped):
            raise ValueError("the file was cut short")
        found[name] = TensorLocation(start, dtype, shape)
    return found, about


def _assemble(tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> Episode:
    def named(prefix: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return Episode(
        id=str(about["id"]),
        frames=named(FRAMES),
        labels=tensors["labels"],
        frame_index=tensors["frame_index"],
        length=int(about["length"]),
        success=about["success"],
        label_source=about["label_source"],
        flags=named(_FLAGS),
        meta=dict(about["meta"]),
        **{name: tensors.get(name) for name in _STEPWISE},
    )
