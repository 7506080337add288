"""Load pickles written by other systems without executing code from them."""

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
"""Maximum number of elements in the tuples nested in one tuple, each counted as often as it occurs."""

_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_PROTOCOL = 1001


def load_pickle(path: Path) -> Any:
    """Return the content of a pickle, with tensors as numpy arrays."""
    with _reading(path), path.open("rb") as file:
        return _load(file, _budget_of(file))


def load_npy(path: Path) -> Any:
    """Return the dict or list that `np.save` wrote to a `.npy` file.

    Tensors are returned as numpy arrays.
    """
    with _reading(path), path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the .npy format holds no such object")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if not dtype.hasobject:
            raise ValueError(f"it is an array of {dtype} {shape}, not a dict")

        # An object array is stored as a pickle after the header.
        content = _load(file, _budget_of(file))
        return content.item() if isinstance(content, np.ndarray) and content.ndim == 0 else content


def load_torch(path: Path) -> Any:
    """Return the content of a `torch.save` file, with tensors as numpy arrays.

    Both the current zip format and the older stream format are supported.
    """
    with _reading(path), path.open("rb") as file:
        return _load_torch(file, _budget_of(file))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert every error raised while reading a file to a `DataError` that names it."""
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
        # A damaged pickle is a damaged program, so it can raise any exception.
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path}: is damaged, or not what its name says ({reason}). Delete it, or restore it."
        ) from None


def _budget_of(file: BinaryIO) -> Budget:
    """Return the tensor budget for a file of this size."""
    return Budget(os.fstat(file.fileno()).st_size)


def _load(file: BinaryIO, budget: Budget) -> Any:
    """Load the only pickle of a file."""
    content = _Unpickler(file, budget).load()
    _expect_end(file)
    return content


def _expect_end(file: BinaryIO) -> None:
    """Raise an error if data follows; otherwise all but the first pickle would be ignored."""
    if file.read(1):
        raise ValueError("there is more behind its end")


class _Bounded:
    """File wrapper that raises `EOFError` on short reads.

    It never allocates memory for more bytes than the file has.
    """

    def __init__(self, file: BinaryIO) -> None:
        position = file.tell()
        self.file = file
        self.size = file.seek(0, io.SEEK_END)
        self.readline = file.readline
        file.seek(position)

    def read(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size else b""
        if len(data) < count:
            raise EOFError("it was cut short")
        return data


class _Unpickler(pickle._Unpickler):
    """Unpickler that builds plain data only and refuses every other class.

    It derives from the Python unpickler, since the faster C unpickler allocates as much memory as a damaged memo index
    asks for.

    Args:
        file: File that contains the pickle, at its current position.
        budget: Limit on the total size of the tensors.
        storage: Returns the storage of a tensor by type, key and size. Only torch files have such references.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]

    def __init__(
        self, file: BinaryIO, budget: Budget, storage: Callable[[StorageType, str, int], Storage] | None = None
    ) -> None:
        super().__init__(_Bounded(file))
        self._budget = budget
        self._storage = storage
        self._weights: dict[int, tuple[Any, int]] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins"}.get(module, module)  # The name in older pickle protocols.
        if (module, name) in _SPENDING:
            return functools.partial(_SPENDING[module, name], self._budget)
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise Refused(f"{module}.{name}") from None

    def persistent_load(self, reference: Any) -> Storage:
        tag, kind, key, _, count, *_ = reference
        is_torch_reference = isinstance(kind, StorageType) and isinstance(key, str) and type(count) is int
        if self._storage is None or tag != "storage" or not is_torch_reference:
            raise ValueError("it refers to something outside of itself")
        return self._storage(kind, key, count)

    def get_extension(self, code: int) -> NoReturn:
        """Refuse copyreg extension codes, which refer to a table of this process."""
        raise Refused(f"copyreg extension {code}")

    def load_build(self) -> None:
        """Set the state of an array or a dtype, which both check it, and refuse others."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, arrays.Dtype):
            target.restore(state)
        elif type(target) is np.ndarray and target.size == 0 and target.base is None:
            arrays.fill(target, state)
        else:
            raise Refused(f"{type(target).__module__}.{type(target).__name__}.__setstate__")

    def load_bytearray8(self) -> None:
        """Load a bytearray like the base class, but raise an error if it is cut short."""
        self.stack.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def weigh(self, made: Any) -> None:
        """Refuse a nested tuple or frozenset with too many elements in total.

        A few bytes can describe tuples nested almost without end, and hashing one visits every element.
        """
        if type(made) not in (tuple, frozenset) or not any(type(part) in (tuple, frozenset) for part in made):
            return

        nested = [part for part in made if type(part) in (tuple, frozenset)]
        weight = len(made) + sum(self._weights[id(p)][1] if id(p) in self._weights else len(p) for p in nested)
        if weight > _HEAVIEST:
            raise ValueError("it has tuples within tuples without end")

        # The reference to the object prevents that another object gets the same id.
        self._weights[id(made)] = made, weight

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _weighed(load: Callable[[_Unpickler], None]) -> Callable[[_Unpickler], None]:
    """Wrap an opcode handler so that it weighs the object it pushes on the stack."""

    def load_and_weigh(self: _Unpickler) -> None:
        load(self)
        self.weigh(self.stack[-1])

    return load_and_weigh


for _code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET, pickle.REDUCE):
    _Unpickler.dispatch[_code[0]] = _weighed(_Unpickler.dispatch[_code[0]])


def _load_torch(file: BinaryIO, budget: Budget) -> Any:
    """Load a torch file in the zip or the stream format, whichever it is."""
    is_zip = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    return _load_torch_zip(file, budget) if is_zip else _load_torch_stream(file, budget)


def _load_torch_zip(file: BinaryIO, budget: Budget) -> Any:
    """Load torch's current format: an uncompressed zip of a pickle and the storages.

    Each storage is a file of its own in the zip.
    """
    with zipfile.ZipFile(file) as archive:
        (pickle_name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = pickle_name.removesuffix("data.pkl")

        # A compressed entry could expand to far more than the size of the file.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("torch's files are not compressed, this one is")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != sys.byteorder.encode():
            raise ValueError("it comes from a machine with the other byte order")

        storages: dict[str, Storage] = {}

        def storage(kind: StorageType, key: str, count: int) -> Storage:
            if key not in storages:
                numbers = np.frombuffer(archive.read(f"{root}data/{key}"), kind.spec)
                if len(numbers) != count:
                    raise ValueError(f"storage {key} is cut short")
                storages[key] = Storage(kind, numbers)
            return storages[key]

        return _Unpickler(io.BytesIO(archive.read(pickle_name)), budget, storage).load()


def _load_torch_stream(file: BinaryIO, budget: Budget) -> Any:
    """Load torch's older format: several pickles, then the storages one after another.

    Tensors within a plain pickle are still stored in this format.
    """
    bounded = _Bounded(file)

    # The header consists of three pickles: magic number, protocol version and system information.
    if _Unpickler(file, budget).load() != _TORCH_MAGIC or _Unpickler(file, budget).load() != _TORCH_PROTOCOL:
        raise ValueError("it does not begin as torch's files do")
    if not _Unpickler(file, budget).load()["little_endian"]:
        raise ValueError("it comes from a machine with the other byte order")

    storages: dict[str, Storage] = {}

    # The numbers follow after the pickle, so storages are allocated now and filled later.
    def storage(kind: StorageType, key: str, count: int) -> Storage:
        if key not in storages:
            size = count * np.dtype(kind.spec).itemsize
            if not 0 <= size <= bounded.size:
                raise ValueError(f"storage {key} is cut short")
            budget.spend(size)
            storages[key] = Storage(kind, np.empty(count, kind.spec))
        return storages[key]

    start = file.tell()
    content = _Unpickler(file, budget, storage).load()

    # Fill the storages in the order of the list of keys that follows the content.
    for key in _Unpickler(file, budget).load():
        numbers = storages[key].numbers
        if int.from_bytes(bounded.read(8), "little") != len(numbers):
            raise ValueError(f"storage {key} is cut short")
        numbers[:] = np.frombuffer(bounded.read(numbers.nbytes), numbers.dtype)
    _expect_end(file)

    # numpy has no bfloat16: such tensors are converted copies, not views of the storage. They were made before the
    # storage was filled, so load the content again.
    if any(filled.kind.is_bfloat16 for filled in storages.values()):
        file.seek(start)
        content = _Unpickler(file, budget, storage).load()
    return content


def _storage_of_bytes(budget: Budget, data: Any) -> Storage:
    """Replacement for `torch.storage._load_from_bytes`."""
    storage = _load_torch(io.BytesIO(data), budget)
    if not isinstance(storage, Storage):
        raise ValueError("a tensor's storage is something else")
    return storage


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Replacement for `_codecs.encode`, which older protocols use to represent bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise Refused(f"_codecs.encode to {shown(encoding)}")
    return text.encode("latin1")


def _bytearray(data: Any = b"", encoding: Any = "latin1") -> bytearray:
    """Replacement for `bytearray`, which accepts bytes or latin-1 text only."""
    return bytearray(data if isinstance(data, bytes) else _encode(data, encoding))


def _no_bytes() -> bytes:
    """Replacement for `bytes`, which older protocols call to represent empty bytes."""
    return b""


def _no_factory(*_: Any) -> dict[Any, Any]:
    """Replacement for `defaultdict` that ignores the factory and keeps the content."""
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
"""Admitted functions that take the budget of the file as their first argument."""

for _name in ("list", "dict", "tuple", "int", "float", "bool", "str"):
    _ADMITTED["builtins", _name] = f"builtins.{_name}"  # The factory of a defaultdict, which is never called.
for _module in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_module}.multiarray", "_reconstruct"] = arrays.reconstruct
    _ADMITTED[f"{_module}.multiarray", "scalar"] = arrays.scalar
    _ADMITTED[f"{_module}.numeric", "_frombuffer"] = arrays.from_buffer


_OPERATIONS = 2000
_WORDS = 40


def first_words(path: Path) -> tuple[str, list[str]]:
    """Return the outermost container of a pickle and the first strings in it.

    The container is "list", "dict", or "" if it is neither. Nothing is executed, and only the beginning of a large file
    is read. A torch file is a zip that contains a pickle.
    """
    container: str = ""
    words: list[str] = []

    # Errors are reported when the file is loaded, not when its format is detected.
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
    """Open a pickle, or the pickle within a torch zip file."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as file:
                yield file


def is_pickle_of(path: Path, container: str, *words: str) -> bool:
    """Return whether a file is a pickled list or dict that starts with these strings.

    The strings may stand in any order among the first strings of the pickle.
    """
    if path.suffix not in (".pkl", ".pickle") or not path.is_file():
        return False
    outermost, beginning = first_words(path)
    return outermost == container and set(words) <= set(beginning)
