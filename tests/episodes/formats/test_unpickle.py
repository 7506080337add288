"""The restricted unpickler: plain data of every protocol is read, anything that could run code is refused."""

from __future__ import annotations

import collections
import functools
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
import torch
from layouts import LAYOUTS
from samples import make_episode

from plaudit.data.formats import load_episodes
from plaudit.data.formats import pickle_arrays as arrays
from plaudit.data.formats.safe_pickle import first_words, load_npy, load_pickle, load_torch
from plaudit.errors import DataError


class Calls:
    """Pickles as a call of some function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def torch_bytes(content: Any, *, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def attacks(victim: Path) -> dict[str, tuple[Any, str]]:
    """Things that create the file `victim` when they are unpickled, and the name that must be refused."""
    touch = Calls(os.system, f"touch {victim}")
    inside = Calls(torch.storage._load_from_bytes, pickle.dumps(touch))
    zipped = Calls(torch.storage._load_from_bytes, torch_bytes([touch], zipped=True))
    older = Calls(torch.storage._load_from_bytes, torch_bytes([touch], zipped=False))
    return {
        "system": (touch, "posix.system"),
        "eval": (Calls(eval, f"open({str(victim)!r}, 'w')"), "builtins.eval"),
        "getattr": (Calls(getattr, "text", "title"), "builtins.getattr"),
        "partial": (Calls(functools.partial, os.mkdir, str(victim)), "functools.partial"),
        "object": (Path("/"), "pathlib.PosixPath"),
        "numpy": (Calls(np.load, str(victim)), "numpy.load"),
        "torch": (Calls(torch.load, str(victim)), "torch.serialization.load"),
        "in torch's bytes": (inside, "posix.system"),
        "in torch's zip": (zipped, "posix.system"),
        "in torch's stream": (older, "posix.system"),
        "in an object array": (np.array([touch], object), "posix.system"),
    }


PLAIN: dict[str, Any] = {
    "numbers": [1, -(10**20), 2.5, True, None, 1j],
    "texts": ["ü", b"\x00\xff", bytearray(b"ab")],
    "containers": [(1,), {2}, frozenset([3]), {"a": [4]}, collections.OrderedDict(b=5)],
    "factory": collections.defaultdict(list, a=[1]),
}
ARRAYS: dict[str, Any] = {
    "big-endian": np.arange(6, dtype=">f4").reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "transposed": np.arange(24, dtype=np.uint8).reshape(2, 3, 4).transpose(1, 0, 2),
    "scalar": np.float32(3.5),
    "flag": np.bool_(True),
    "words": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 3), np.int16),
    "tensor": torch.arange(6).reshape(2, 3).T,
    "part": torch.arange(10, dtype=torch.uint8)[3:7],
    "half": torch.tensor([1.5, -2]).bfloat16(),
    "expanded": torch.ones(1).expand(3, 2),
    "nothing": torch.zeros(0, 4),
    "one": torch.tensor(True),
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "x.pkl"
    file.write_bytes(pickle.dumps({**PLAIN, **ARRAYS}, protocol))
    found = load_pickle(file)
    for name, value in PLAIN.items():
        assert found[name] == value, name
    for name, value in ARRAYS.items():
        expected = value.float().numpy() if name == "half" else np.asarray(value)
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
        assert np.asarray(found[name]).dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), name


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_without_torch(zipped: bool, tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    tensors = {name: value for name, value in ARRAYS.items() if isinstance(value, torch.Tensor)}
    file.write_bytes(torch_bytes(tensors, zipped=zipped))
    for name, value in load_torch(file).items():
        np.testing.assert_array_equal(value, tensors[name].float().numpy(), err_msg=name)


def test_older_and_newer_names_of_numpy(tmp_path: Path) -> None:
    content = pickle.dumps([np.arange(3), np.int8(4)], 2)
    assert b"numpy._core" in content
    for spelling in (b"numpy._core", b"numpy.core"):
        file = tmp_path / "x.pkl"
        file.write_bytes(content.replace(b"numpy._core", spelling))
        array, number = load_pickle(file)
        assert array.tolist() == [0, 1, 2] and number == 4


@pytest.mark.parametrize("attack", attacks(Path()))
@pytest.mark.parametrize("layout", ["npy", "episode_pkl", "realworld_raw", "realworld", "rlinf", "rlinf_pt", "hilserl"])
def test_every_reader_refuses_what_could_run_code(layout: str, attack: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    thing, name = attacks(victim)[attack]
    file = LAYOUTS[layout][1](tmp_path / "data", make_episode("e", success_at=2))
    if layout == "npy":
        np.save(file, np.array({"images": thing, "labels": np.zeros(3)}, object), allow_pickle=True)
    elif layout == "rlinf_pt":
        torch.save({"images": [thing], "labels": [1], "metadata": {}}, file)
    else:
        content = pickle.loads(file.read_bytes())
        (content[0] if isinstance(content, list) else content)["more"] = thing
        layouts.dump(file, content)
    source = load_episodes(tmp_path / "data", LAYOUTS[layout][0])
    with pytest.raises(DataError) as caught:
        list(source)
    assert file.name in str(caught.value) and f"'{name}'" in str(caught.value)
    assert not victim.exists()


def test_the_attacks_would_work_elsewhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    pickle.loads(pickle.dumps(attacks(victim)["system"][0]))
    assert victim.exists()


def built(name: bytes, state: bytes) -> bytes:
    """A pickle that gives a state to something: `name` is a global's module and name."""
    return b"\x80\x02c" + name + state + b"b."


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (built(b"numpy\ndtype\n", b"}U\x04realK\x01s"), "__setstate__"),
        (built(b"collections\nOrderedDict\n", b"}U\x01aK\x01s"), "__setstate__"),
        (b"\x80\x02cnumpy\ndtype\nU\x02V8\x89\x88\x87R.", "numpy.dtype('V8')"),
        (
            b"\x80\x02cnumpy\ndtype\nU\x02O8\x89\x88\x87R(K\x03U\x01|N(U\x01atNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb.",
            "fields",
        ),
        (b"\x80\x02\x82\x07.", "extension"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aU\x03rot\x86R.", "encode"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.", "_reconstruct"),
    ],
)
def test_admitted_names_cannot_be_turned_against_us(content: bytes, refused: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pkl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.pkl: not loaded") as caught:
        load_pickle(file)
    assert refused in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(0, (5,), (1,)), (1, (4,), (1,)), (0, (2, 2), (4, 1)), (-1, (2,), (1,)), (0, (2,), (-1,)), (0, (10**9,), (0,))],
)
def test_a_tensor_cannot_reach_beyond_its_storage(
    offset: int, size: tuple[int, ...], stride: tuple[int, ...], tmp_path: Path
) -> None:
    storage = torch.zeros(4).__reduce_ex__(2)[1][0]
    file = tmp_path / "x.pkl"
    file.write_bytes(pickle.dumps(Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {})))
    with pytest.raises(DataError, match=r"x\.pkl"):
        load_pickle(file)


def doubled(times: int, pair: bytes) -> bytes:
    """The opcodes of an empty tuple or list in a pair of itself, and so on: twice as large with each few bytes."""
    return b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + pair for i in range(times))


TUPLES = b")" + doubled(60, b"\x86")
LISTS = b"]" + b"".join(b"q" + bytes([i]) + b"0]h" + bytes([i]) + b"ah" + bytes([i]) + b"a" for i in range(60))


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\ndtype\n" + TUPLES + b"\x85R.",
        b"cnumpy\ndtype\n" + LISTS + b"\x85R.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00a" + LISTS + b"\x86R.",
        b"cnumpy.core.multiarray\n_reconstruct\n" + LISTS + b"K\x00\x85U\x01b\x87R.",
        b"cnumpy.core.multiarray\nscalar\n" + LISTS + b"C\x01a\x86R.",
        b"cnumpy.core.numeric\n_frombuffer\n(C\x01acnumpy\ndtype\nU\x02u1\x85R" + LISTS + b"U\x01CtR.",
        b"}" + TUPLES + b"Ns.",  # A key is hashed.
        b"cbuiltins\nset\n]" + TUPLES + b"a\x85R.",
    ],
)
def test_a_few_bytes_are_no_order_for_time(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.pkl"
    file.write_bytes(b"\x80\x03" + content)
    with pytest.raises(DataError, match=r"x\.pkl"):
        load_pickle(file)


@pytest.mark.parametrize("views", [{"stride": (0,), "size": (1 << 23,)}, {"stride": (1,), "size": (1 << 23,)}])
@pytest.mark.parametrize("zipped", [True, False])
def test_all_views_of_a_file_share_one_budget(
    views: dict[str, tuple[int]], zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.zeros(1 if views["stride"] == (0,) else 1 << 23, dtype=torch.uint8)
    monkeypatch.setattr(arrays, "_MOST_TIMES", 1)
    file = tmp_path / "x.pt"
    for count, fits in ((2, True), (9, False)):
        file.write_bytes(torch_bytes([torch.as_strided(whole, **views) for _ in range(count)], zipped=zipped))
        if fits:
            assert [view.shape for view in load_torch(file)] == [(1 << 23,)] * count
        else:
            with pytest.raises(DataError, match=r"x\.pt.*more than 67 MB"):
                load_torch(file)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04r\xff\xff\xff\x7f.",  # A place in the memo that would take 32 GiB.
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",  # Bytes that are not there.
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",  # A bytearray that is not there.
        b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"N.",  # A frame that is not there.
        b"(" * 100_000,
    ],
)
def test_damage_is_no_order_for_memory(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.pkl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.pkl: is damaged"):
        load_pickle(file)


def test_an_array_that_is_not_a_dict(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"x\.npy.*an array of float64 \(2, 3\), not a dict"):
        load_npy(tmp_path / "x.npy")


def test_first_words_execute_nothing_and_survive_garbage(tmp_path: Path) -> None:
    file = tmp_path / "x.pkl"
    file.write_bytes(pickle.dumps([{"transitions": Calls(os.system, f"touch {tmp_path / 'victim'}")}]))
    container, words = first_words(file)
    assert container == "list" and words[0] == "transitions" and not (tmp_path / "victim").exists()
    file.write_bytes(b"\x00garbage")
    assert first_words(file) == ("", [])
