"""What the names of numpy and torch in a pickle stand for here: functions that check before they build.

The libraries' own functions trust their arguments; a dtype with the wrong state or a tensor over the wrong strides
reads memory that is not its own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|O8?|[SU]\d{1,4})")
"""What an array may consist of. Records are not among it: their layout in memory would be the file's to choose."""

_LARGEST_VIEW = 1 << 24
"""Elements of a tensor that repeats its storage (by a stride of 0), which costs nothing until it is copied."""


class Refused(Exception):
    """Something that is not plain data; the message is its name."""


class ArrayType:
    """Stands for `numpy.ndarray`."""


class Dtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, spec: Any, align: Any = False, copy: Any = False) -> None:
        if not isinstance(spec, str) or not _PLAIN.fullmatch(spec):
            raise Refused(f"numpy.dtype({spec!r:.40})")
        self.real: np.dtype[Any] = np.dtype(spec)

    def restore(self, state: Any) -> None:
        """Takes the byte order from a pickled state, which must hold nothing else."""
        _, order, subarray, names, fields, *_ = state
        if any(part is not None for part in (subarray, names, fields)):
            raise Refused("numpy.dtype with fields")
        if order in ("<", ">"):
            self.real = self.real.newbyteorder(order)


def size_of(shape: Any) -> int:
    """The number of elements in an array of some shape."""
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 16:
        raise ValueError(f"{shape!r:.80} is not the shape of an array")
    return math.prod(shape)


def reconstruct(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Stands for `numpy.core.multiarray._reconstruct`: an empty array, for `fill`."""
    if kind is not ArrayType:
        raise Refused(f"numpy.core.multiarray._reconstruct of {kind!r:.40}")
    return np.empty(0, np.int8)


def fill(array: NDArray[Any], state: Any) -> None:
    """Gives an array from `reconstruct` its content."""
    shape, dtype, fortran, data = state[-4:]
    count, real = size_of(shape), _real(dtype)
    if real.hasobject:
        if type(data) is not list or len(data) != count:
            raise ValueError(f"an array of {count} objects holds something else")
    elif type(data) is not bytes or len(data) != count * real.itemsize:
        raise ValueError(f"an array of shape {shape} is cut short")
    array.__setstate__((1, shape, real, bool(fortran), data))  # type: ignore[arg-type]


def from_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> NDArray[Any]:
    """Stands for `numpy.core.numeric._frombuffer`."""
    array = np.frombuffer(data, _real(dtype))
    if array.size != size_of(shape):
        raise ValueError(f"an array of shape {shape} is cut short")
    if order == "K" and axes is not None:
        return array.reshape(shape).transpose(axes)
    return array.reshape(shape, order=order)


def scalar(dtype: Any, data: Any) -> Any:
    """Stands for `numpy.core.multiarray.scalar`."""
    return np.frombuffer(data, _real(dtype), 1)[0]


def _real(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, Dtype):
        raise ValueError(f"an array of {dtype!r:.40}")
    return dtype.real


@dataclass(frozen=True)
class StorageType:
    """Stands for `torch.FloatStorage` and its like: what numpy calls the numbers in it."""

    spec: str
    is_bfloat16: bool = False


@dataclass(eq=False)
class Storage:
    """The numbers that tensors are views of."""

    kind: StorageType
    numbers: NDArray[Any]


STORAGE_TYPES = {
    "BFloat16Storage": StorageType("<u2", is_bfloat16=True),
    "BoolStorage": StorageType("b1"),
    "ByteStorage": StorageType("u1"),
    "CharStorage": StorageType("i1"),
    "DoubleStorage": StorageType("<f8"),
    "FloatStorage": StorageType("<f4"),
    "HalfStorage": StorageType("<f2"),
    "IntStorage": StorageType("<i4"),
    "LongStorage": StorageType("<i8"),
    "ShortStorage": StorageType("<i2"),
}


def tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> NDArray[Any]:
    """Stands for `torch._utils._rebuild_tensor_v2`: a view of a storage."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    size, stride, numbers = tuple(size), tuple(stride), storage.numbers
    count = size_of(size)
    size_of((offset, *stride))  # Whole numbers, none of them negative.
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if (count and last >= len(numbers)) or count > max(len(numbers), _LARGEST_VIEW):
        raise ValueError(f"a tensor of shape {size} does not fit its storage of {len(numbers)} numbers")
    if not count:
        return np.zeros(size, np.float32 if storage.kind.is_bfloat16 else numbers.dtype)
    steps = [step * numbers.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(numbers[offset:], size, steps, writeable=False)
    if storage.kind.is_bfloat16:  # The upper half of a float32.
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view
