"""Checked replacements for the numpy and torch functions that pickles refer to.

The libraries' own functions trust their arguments: a dtype with the wrong state or a tensor with the wrong strides
reads memory out of bounds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|O8?|[SU]\d{1,4})")
"""Admitted dtypes. Records are excluded, since the file would determine their layout in memory."""

_MOST_TIMES = 64
"""Limit on the total size of a file's tensors, as a multiple of the size of the file."""

_ALWAYS = 1 << 26
"""Total size in bytes that the tensors of any file may have, however small the file is."""


class Refused(Exception):
    """Raised for an object that is not plain data; the message is its name."""


def shown(value: Any) -> str:
    """Describe a value from a file for a message: strings by content, others by type.

    The `repr` of a few bytes of nested lists, each referenced twice, would be practically endless, even if only its
    beginning were shown.
    """
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


class Budget:
    """Limit on the total size in bytes of the tensors of one file.

    Tensors are views. Any number of them may share the same numbers, or repeat one number (with a stride of 0), which
    takes no space in the file, and no memory here until they are copied.

    Args:
        size: Size of the file in bytes.
    """

    def __init__(self, size: int) -> None:
        self.left = self.whole = max(_MOST_TIMES * size, _ALWAYS)

    def spend(self, size: int) -> None:
        """Subtract `size` bytes, or raise an error if the budget is exceeded."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"its tensors come to more than {self.whole / 1e6:,.0f} MB, far more than the file holds")


class ArrayType:
    """Replacement for `numpy.ndarray`."""


class Dtype:
    """Replacement for `numpy.dtype`."""

    def __init__(self, spec: Any, align: Any = False, copy: Any = False) -> None:
        if not isinstance(spec, str) or not _PLAIN.fullmatch(spec):
            raise Refused(f"numpy.dtype({shown(spec)})")
        self.real: np.dtype[Any] = np.dtype(spec)

    def restore(self, state: Any) -> None:
        """Set the byte order from a pickled state, which must not define any fields."""
        _, order, subarray, names, fields, *_ = state
        if any(part is not None for part in (subarray, names, fields)):
            raise Refused("numpy.dtype with fields")
        if order in ("<", ">"):
            self.real = self.real.newbyteorder(order)


def size_of(shape: Any) -> int:
    """Return the number of elements in an array of a shape, after checking the shape."""
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 16:
        raise ValueError(f"the shape of an array should be a tuple of at most 16 sizes, not {shown(shape)}")
    return math.prod(shape)


def reconstruct(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Replacement for `numpy.core.multiarray._reconstruct`: an empty array for `fill`."""
    if kind is not ArrayType:
        raise Refused(f"numpy.core.multiarray._reconstruct of {shown(kind)}")
    return np.empty(0, np.int8)


def fill(array: NDArray[Any], state: Any) -> None:
    """Set the content of an array from `reconstruct`."""
    shape, dtype, fortran, data = state[-4:]
    count = size_of(shape)
    real = _real(dtype)

    # numpy would read beyond the end of data that is too short.
    if real.hasobject:
        if type(data) is not list or len(data) != count:
            raise ValueError(f"an array of {count} objects holds something else")
    elif type(data) is not bytes or len(data) != count * real.itemsize:
        raise ValueError(f"an array of shape {shape} is cut short")

    array.__setstate__((1, shape, real, bool(fortran), data))  # type: ignore[arg-type]


def from_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> NDArray[Any]:
    """Replacement for `numpy.core.numeric._frombuffer`."""
    array = np.frombuffer(data, _real(dtype))
    if array.size != size_of(shape):
        raise ValueError(f"an array of shape {shape} is cut short")
    if order == "K" and axes is not None:
        return array.reshape(shape).transpose(axes)
    return array.reshape(shape, order=order)


def scalar(dtype: Any, data: Any) -> Any:
    """Replacement for `numpy.core.multiarray.scalar`."""
    return np.frombuffer(data, _real(dtype), 1)[0]


def _real(dtype: Any) -> np.dtype[Any]:
    """Return the numpy dtype of a `Dtype`."""
    if not isinstance(dtype, Dtype):
        raise ValueError(f"an array of {shown(dtype)}")
    return dtype.real


@dataclass(frozen=True)
class StorageType:
    """Replacement for `torch.FloatStorage` and similar types.

    Attributes:
        spec: Name of the numpy dtype of the numbers.
        is_bfloat16: Whether the numbers are bfloat16, which numpy does not have.
    """

    spec: str
    is_bfloat16: bool = False


@dataclass(eq=False)
class Storage:
    """Numbers that tensors are views of."""

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
    """Replacement for `torch._utils._rebuild_tensor_v2`: a view of a storage."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    size = tuple(size)
    stride = tuple(stride)
    numbers = storage.numbers
    count = size_of(size)
    size_of((offset, *stride))  # Checks that they are integers and not negative.

    # The last element must be within the storage, since `as_strided` does not check that.
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if count and last >= len(numbers):
        raise ValueError(f"a tensor of shape {size} does not fit its storage of {len(numbers)} numbers")

    # bfloat16 is converted to float32, which has 4 bytes.
    budget.spend(count * (4 if storage.kind.is_bfloat16 else numbers.itemsize))
    if not count:
        return np.zeros(size, np.float32 if storage.kind.is_bfloat16 else numbers.dtype)

    steps = [step * numbers.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided(numbers[offset:], size, steps, writeable=False)
    if storage.kind.is_bfloat16:  # A bfloat16 is the upper half of a float32.
        return (view.astype(np.uint32) << 16).view(np.float32)
    return view
