"""Read pickles of other systems without running what they ask for."""

from __future__ import annotations

import functools
import io
import os
import pickle
import pickletools
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, ClassVar, NoReturn

import numpy as np

from plaudit.data.formats import pickle_arrays as arrays
from plaudit.data.formats.pickle_arrays import Budget, Refused, Storage, StorageType, shown
from plaudit.errors import DataError

_HEAVIEST = 1_000_000
"""The most that the tuples within one tuple may hold, each counted as often as it is there."""

_TORCH_MAGIC, _TORCH_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def load_pickle(path: Path) -> Any:
    """The content of a pickle; tensors come as arrays."""
    with _reading(path), path.open("rb") as file:
        return _load(file, _budget_of(file))


def load_npy(path: Path) -> Any:
    """The object in a `.npy` file that `np.save` wrote of a dict or a list; tensors come as arrays."""
    with _reading(path), path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the .npy format holds no such object")
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if not dtype.hasobject:
            raise ValueError(f"it is an array of {dtype} {shape}, not a dict")
        content = _load(file, _budget_of(file))
        return content.item() if isinstance(content, np.ndarray) and content.ndim == 0 else content


def load_torch(path: Path) -> Any:
    """The content of a file that `torch.save` wrote, today's kind or the older one; tensors come as arrays."""
    with _reading(path), path.open("rb") as file:
        return _load_torch(file, _budget_of(file))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong while reading a file becomes a `DataError` that names it."""
    try:
        yield
    except Refused as refused:
        raise DataError(
            f"{path}: not loaded, since it asks for '{refused}', which is not plain data and could run code. "
            "Only arrays, tensors, numbers, text and plain containers are admitted."
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        # A damaged pickle is a damaged program: any error at all may come out of it.
        why = str(error) or type(error).__name__
        raise DataError(f"{path}: is damaged, or not what its name says ({why}). Delete it, or restore it.") from None


def _budget_of(file: BinaryIO) -> Budget:
    return Budget(os.fstat(file.fileno()).st_size)


def _load(file: BinaryIO, budget: Budget) -> Any:
    content = _Unpickler(file, budget).load()
    _expect_end(file)
    return content


def _expect_end(file: BinaryIO) -> None:
    """Several pickles in one file would otherwise be read as the first alone."""
    if file.read(1):
        raise ValueError("there is more behind its end")


class _Bounded:
    """A file that gives what it is asked for or fails, and makes no room for more than there is."""

    def __init__(self, file: BinaryIO) -> None:
        here = file.tell()
        self.file, self.size, self.readline = file, file.seek(0, io.SEEK_END), file.readline
        file.seek(here)

    def read(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size else b""
        if len(data) < count:
            raise EOFError("it was cut short")
        return data


class _Unpickler(pickle._Unpickler):
    """The Python unpickler, since the faster one in C takes a damaged memo index as an order for that much memory.

    Args:
        file: Where the pickle is.
        budget: What the tensors may come to.
        storage: Finds the storage of a tensor by type, key and size; such references are torch's alone.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]

    def __init__(
        self, file: BinaryIO, budget: Budget, storage: Callable[[StorageType, str, int], Storage] | None = None
    ) -> None:
        super().__init__(_Bounded(file))
        self._budget, self._storage = budget, storage
        self._weights: dict[int, tuple[Any, int]] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins"}.get(module, module)  # As the older protocols call it.
        if (module, name) in _SPENDING:
            return functools.partial(_SPENDING[module, name], self._budget)
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise Refused(f"{module}.{name}") from None

    def persistent_load(self, reference: Any) -> Storage:
        word, kind, key, _, count, *_ = reference
        torch_made = isinstance(kind, StorageType) and isinstance(key, str) and type(count) is int
        if self._storage is None or word != "storage" or not torch_made:
            raise ValueError("it refers to something outside of itself")
        return self._storage(kind, key, count)

    def get_extension(self, code: int) -> NoReturn:
        """Short names from a table of this process; a data file has no business with them."""
        raise Refused(f"copyreg extension {code}")

    def load_build(self) -> None:
        """Gives an object its state: only arrays and dtypes have one, and both check it."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, arrays.Dtype):
            target.restore(state)
        elif type(target) is np.ndarray and target.size == 0 and target.base is None:
            arrays.fill(target, state)
        else:
            raise Refused(f"{type(target).__module__}.{type(target).__name__}.__setstate__")

    def load_bytearray8(self) -> None:
        """As in the base class, but not content with less than was promised."""
        self.stack.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def weigh(self, made: Any) -> None:
        """Refuses tuples within tuples without end, which a few bytes can ask for: to hash one would take as long."""
        if type(made) not in (tuple, frozenset) or not any(type(part) in (tuple, frozenset) for part in made):
            return
        nested = [part for part in made if type(part) in (tuple, frozenset)]
        weight = len(made) + sum(self._weights[id(p)][1] if id(p) in self._weights else len(p) for p in nested)
        if weight > _HEAVIEST:
            raise ValueError("it has tuples within tuples without end")
        self._weights[id(made)] = made, weight  # Kept, so that nothing else gets its number.

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _weighed(load: Callable[[_Unpickler], None]) -> Callable[[_Unpickler], None]:
    def load_and_weigh(self: _Unpickler) -> None:
        load(self)
        self.weigh(self.stack[-1])

    return load_and_weigh


for _code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET, pickle.REDUCE):
    _Unpickler.dispatch[_code[0]] = _weighed(_Unpickler.dispatch[_code[0]])


def _load_torch(file: BinaryIO, budget: Budget) -> Any:
    is_zip = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    return _load_torch_zip(file, budget) if is_zip else _load_torch_stream(file, budget)


def _load_torch_zip(file: BinaryIO, budget: Budget) -> Any:
    """Today's kind: a zip, not compressed, of one pickle and a file for each storage."""
    with zipfile.ZipFile(file) as archive:
        (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = pickled.removesuffix("data.pkl")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("torch's files are not compressed, this one is")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != sys.byteorder.encode():
            raise ValueError("it comes from a machine with the other byte order")
        known: dict[str, Storage] = {}

        def storage(kind: StorageType, key: str, count: int) -> Storage:
            if key not in known:
                numbers = np.frombuffer(archive.read(f"{root}data/{key}"), kind.spec)
                if len(numbers) != count:
                    raise ValueError(f"storage {key} is cut short")
                known[key] = Storage(kind, numbers)
            return known[key]

        return _Unpickler(io.BytesIO(archive.read(pickled)), budget, storage).load()


def _load_torch_stream(file: BinaryIO, budget: Budget) -> Any:
    """The older kind, which tensors within a plain pickle still are: pickles, then the storages one after another."""
    bounded = _Bounded(file)
    if _Unpickler(file, budget).load() != _TORCH_MAGIC or _Unpickler(file, budget).load() != _TORCH_PROTOCOL:
        raise ValueError("it does not begin as torch's files do")
    if not _Unpickler(file, budget).load()["little_endian"]:
        raise ValueError("it comes from a machine with the other byte order")
    known: dict[str, Storage] = {}

    def storage(kind: StorageType, key: str, count: int) -> Storage:
        if key not in known:
            size = count * np.dtype(kind.spec).itemsize
            if not 0 <= size <= bounded.size:
                raise ValueError(f"storage {key} is cut short")
            budget.spend(size)
            known[key] = Storage(kind, np.empty(count, kind.spec))
        return known[key]

    start = file.tell()
    content = _Unpickler(file, budget, storage).load()
    for key in _Unpickler(file, budget).load():
        numbers = known[key].numbers
        if int.from_bytes(bounded.read(8), "little") != len(numbers):
            raise ValueError(f"storage {key} is cut short")
        numbers[:] = np.frombuffer(bounded.read(numbers.nbytes), numbers.dtype)
    _expect_end(file)
    if any(filled.kind.is_bfloat16 for filled in known.values()):
        file.seek(start)  # Once more: what numpy has no type for is converted, not viewed, so it must be filled first.
        content = _Unpickler(file, budget, storage).load()
    return content


def _storage_of_bytes(budget: Budget, data: Any) -> Storage:
    """Stands for `torch.storage._load_from_bytes`."""
    storage = _load_torch(io.BytesIO(data), budget)
    if not isinstance(storage, Storage):
        raise ValueError("a tensor's storage is something else")
    return storage


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands for `_codecs.encode`, by which the older protocols spell bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise Refused(f"_codecs.encode to {shown(encoding)}")
    return text.encode("latin1")


def _bytearray(data: Any = b"", encoding: Any = "latin1") -> bytearray:
    return bytearray(data if isinstance(data, bytes) else _encode(data, encoding))


def _no_bytes() -> bytes:
    """Stands for `bytes`, by which the older protocols spell those of length 0."""
    return b""


def _no_factory(*_: Any) -> dict[Any, Any]:
    """Stands for `defaultdict`, of which only the content is wanted."""
    return {}


_ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): _no_factory,
    ("_codecs", "encode"): _encode,
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "bytes"): _no_bytes,
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("numpy", "dtype"): arrays.Dtype,
    ("numpy", "ndarray"): arrays.ArrayType,
    **{("torch", name): kind for name, kind in arrays.STORAGE_TYPES.items()},
}
_SPENDING: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): arrays.tensor,
    ("torch.storage", "_load_from_bytes"): _storage_of_bytes,
}
"""Those that also get the file's budget."""

for _name in ("list", "dict", "tuple", "int", "float", "bool", "str"):
    _ADMITTED["builtins", _name] = f"builtins.{_name}"  # The factory of a defaultdict; never to be called.
for _module in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_module}.multiarray", "_reconstruct"] = arrays.reconstruct
    _ADMITTED[f"{_module}.multiarray", "scalar"] = arrays.scalar
    _ADMITTED[f"{_module}.numeric", "_frombuffer"] = arrays.from_buffer


_OPERATIONS, _WORDS = 2000, 40


def first_words(path: Path) -> tuple[str, list[str]]:
    """The outermost container of a pickle, "list" or "dict", and the first texts in it; "" where it is neither.

    Nothing is executed, and of a large file only the beginning is read. A file of torch is a zip with a pickle in it.
    """
    container: str = ""
    words: list[str] = []
    # Whatever is wrong with the file, reading it is the place to say so.
    with suppress(Exception), _open_pickle(path) as file:
        for opcode, argument, _ in islice(pickletools.genops(file), _OPERATIONS):
            if not container and opcode.name in ("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT"):
                container = opcode.name.removeprefix("EMPTY_").lower()
            if isinstance(argument, str) and "UNICODE" in opcode.name:
                words.append(argument)
                if len(words) == _WORDS:
                    break
    return container, words


@contextmanager
def _open_pickle(path: Path) -> Iterator[IO[bytes]]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as file:
                yield file


def is_pickle_of(path: Path, container: str, *words: str) -> bool:
    """Whether a file is a pickled list or dict in whose beginning these texts occur."""
    if path.suffix not in (".pkl", ".pickle") or not path.is_file():
        return False
    found, beginning = first_words(path)
    return found == container and set(words) <= set(beginning)
