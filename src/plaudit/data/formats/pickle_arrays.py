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

_MOST_TIMES, _ALWAYS = 64, 1 << 26
"""How many times its own size a file's tensors may be, and the bytes that even those of a tiny file may be."""


class Refused(Exception):
    """Something that is not plain data; the message is its name."""


def shown(value: Any) -> str:
    """What something from a file is, in a message: a text itself, anything else by its type.

    A few bytes of lists within lists, each there twice, have a `repr` without end, however much of it is cut off.
    """
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


class Budget:
    """The bytes that the tensors of one file may come to.

    They are views, of which any number may be of the same numbers, or repeat one (by a stride of 0): that costs nothing
    in the file, nor here until they are copied.

    Args:
        size: Of the file.
    """

    def __init__(self, size: int) -> None:
        self.left = self.whole = max(_MOST_TIMES * size, _ALWAYS)

    def spend(self, size: int) -> None:
        """Takes some of it; an error where there is no more."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"its tensors come to more than {self.whole / 1e6:,.0f} MB, far more than the file holds")


class ArrayType:
    """Stands for `numpy.ndarray`."""


class Dtype:
    """Stands for `numpy.dtype`."""

    def __init__(self, spec: Any, align: Any = False, copy: Any = False) -> None:
        if not isinstance(spec, str) or not _PLAIN.fullmatch(spec):
            raise Refused(f"numpy.dtype({shown(spec)})")
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
        raise ValueError(f"the shape of an array should be a tuple of at most 16 sizes, not {shown(shape)}")
    return math.prod(shape)


def reconstruct(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Stands for `numpy.core.multiarray._reconstruct`: an empty array, for `fill`."""
    if kind is not ArrayType:
        raise Refused(f"numpy.core.multiarray._reconstruct of {shown(kind)}")
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
        raise ValueError(f"an array of {shown(dtype)}")
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


def tensor(budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> NDArray[Any]:
    """Stands for `torch._utils._rebuild_tensor_v2`: a view of a storage."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    size, stride, numbers = tuple(size), tuple(stride), storage.numbers
    count = size_of(size)
    size_of((offset, *stride))  # Whole numbers, none of them negative.
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if count and last >= len(numbers):
        raise ValueError(f"a tensor of shape {size} does not fit its storage of {len(numbers)} numbers")
    budget.spend(count * (4 if storage.kind.is_bfloat16 else numbers.itemsize))
    if not count:
        return np.zeros(size, np.float32 if storage.kind.is_bfloat16 else numbers.dtype)
    steps = [step * numbers.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(numbers[offset:], size, steps, writeable=False)
    if storage.kind.is_bfloat16:  # The upper half of a float32.
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view
