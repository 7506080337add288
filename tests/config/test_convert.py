"""Strict conversion between plain dicts and dataclasses."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from plaudit.config.docs import describe
from plaudit.config.schema import Config, RuntimeConfig
from plaudit.config.structured import REQUIRED, fill, to_dict, written
from plaudit.errors import ConfigError


@dataclass(frozen=True)
class Camera:
    """A nested section."""

    width: int = 64  # Pixels across.
    name: str = REQUIRED

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width: must be at least 1")
        if self.width > 99:
            raise ValueError(f"width: must be at most 99, not {self.width}")
        if self.name == "both":
            raise ValueError("one camera at a time")


@dataclass(frozen=True)
class Sample:
    """One field of every supported type."""

    count: int  # How many # there are.
    rate: float = 0.5
    on: bool = False
    kind: Literal["a", "bb", 3] = "a"
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[int, float] = (1, 2.0)
    names: list[str] = field(default_factory=list)
    limit: float | None = None
    either: int | str = 0
    extra: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    camera: Camera | None = None
    free: Any = None


def test_every_type_is_filled_and_goes_back_to_the_same_dict() -> None:
    data = {
        "count": 3,
        "rate": 2,
        "on": True,
        "kind": "bb",
        "sizes": [4, 5, 6],
        "pair": [7, 8],
        "names": ["x"],
        "limit": 1,
        "either": "text",
        "extra": {"a": [1, {"b": None}]},
        "weights": {"w": 1},
        "camera": {"width": 8, "name": "wrist"},
        "free": [1],
    }
    sample = fill(Sample, data)
    assert sample.sizes == (4, 5, 6) and sample.pair == (7, 8.0) and sample.names == ["x"]
    assert type(sample.rate) is float and type(sample.limit) is float and type(sample.weights["w"]) is float
    assert sample.camera == Camera(8, "wrist")
    assert to_dict(sample) == data
    assert fill(Sample, to_dict(sample)) == sample


class Colour(enum.Enum):
    """Something that plain data cannot say."""

    RED = 1


@dataclass(frozen=True)
class Odd:
    """Fields of types that YAML has not."""

    folder: Path = Path("a") / "b"
    colour: Colour = Colour.RED
    pair: Any = (1, 2)
    camera: Camera = Camera(name="wrist")
    level: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", Colour(self.level) if self.level else 0)


def test_what_is_written_has_all_defaults_and_reads_back_the_same() -> None:
    data = {"level": 1, "camera": {"name": "base"}}
    plain = written(fill(Odd, data), data)
    # The colour and the tuple under Any would not come back, and level is what the user said.
    assert plain == {"folder": "a/b", "camera": {"width": 64, "name": "base"}, "level": 1}
    assert fill(Odd, plain) == fill(Odd, data)
    assert fill(Odd, {"folder": "c"}).folder == Path("c")


def test_missing_keys_take_their_defaults() -> None:
    assert fill(Sample, {"count": 1}) == Sample(1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"rate": 1.0}, "f.yaml: top.count: missing required value (int)."),
        ({"count": "3"}, "f.yaml: top.count: expected int, got '3' (str)."),
        ({"count": True}, "f.yaml: top.count: expected int, got True (bool)."),
        ({"count": 3.0}, "f.yaml: top.count: expected int, got 3.0 (float). Write it as 3."),
        ({"count": None}, "f.yaml: top.count: expected int, got null."),
        ({"count": "???"}, "f.yaml: top.count: missing required value (int)."),
        ({"count": 1, "rate": "1e-3"}, "f.yaml: top.rate: expected float, got '1e-3' (str)."),
        ({"count": 1, "rate": float("nan")}, "f.yaml: top.rate: expected a number, got nan."),
        ({"count": 1, "rate": True}, "f.yaml: top.rate: expected float, got True (bool)."),
        ({"count": 1, "on": 1}, "f.yaml: top.on: expected bool, got 1 (int)."),
        ({"count": 1, "kind": "b"}, "expected one of 'a', 'bb', 3, got 'b' (str). Did you mean 'bb'?"),
        ({"count": 1, "kind": 3.0}, "expected one of 'a', 'bb', 3, got 3.0 (float)."),
        ({"count": 1, "sizes": [1, "2"]}, "f.yaml: top.sizes[1]: expected int, got '2' (str)."),
        ({"count": 1, "sizes": 64}, "f.yaml: top.sizes: expected list of int, got 64 (int)."),
        ({"count": 1, "pair": [1]}, "f.yaml: top.pair: expected list of 2: int, float, got [1] (list)."),
        ({"count": 1, "limit": "no"}, "f.yaml: top.limit: expected float or null, got 'no' (str)."),
        ({"count": 1, "either": 1.5}, "f.yaml: top.either: expected int or str, got 1.5 (float)."),
        ({"count": 1, "extra": [1]}, "f.yaml: top.extra: expected mapping, got [1] (list)."),
        ({"count": 1, "extra": {1: 2}}, "f.yaml: top.extra: keys must be text, got 1 (int)."),
        ({"count": 1, "weights": {"w": "x"}}, "f.yaml: top.weights.w: expected float, got 'x' (str)."),
        ({"count": 1, "camera": {"name": "x", "widht": 3}}, "top.camera.widht: unknown key, given 3 (int)."),
        ({"count": 1, "camera": {}}, "f.yaml: top.camera.name: missing required value (str)."),
        ({"count": 1, "camera": {"name": "x", "width": 0}}, "top.camera.width: must be at least 1, got 0 (int)."),
        ({"count": 1, "camera": {"name": "x", "width": 100}}, "top.camera.width: must be at most 99, not 100."),
        ({"count": 1, "camera": {"name": "both"}}, "f.yaml: top.camera: one camera at a time"),
        ([], "f.yaml: top: expected a mapping with keys such as 'count', got [] (list)."),
    ],
)
def test_what_does_not_fit_is_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fill(Sample, data, "top", "f.yaml")
    assert message in str(caught.value)


def test_unknown_key_suggests_the_nearest_and_the_section_that_has_it() -> None:
    with pytest.raises(ConfigError, match=r"^runtime.sede: .*Did you mean 'seed'\?$"):
        fill(Config, {"env": {"id": "X"}, "runtime": {"sede": 1}})
    with pytest.raises(ConfigError, match=r"^seed: .*Did you mean 'runtime.seed'\?$"):
        fill(Config, {"env": {"id": "X"}, "seed": 1})


def test_required_key_of_a_section_that_is_left_out() -> None:
    with pytest.raises(ConfigError, match=r"^env.id: missing required value"):
        fill(Config, {})


def test_annotations_out_of_reach_count_as_any() -> None:
    class Local:
        pass

    @dataclass(frozen=True)
    class Holder:
        value: Local | int = 1

    assert to_dict(fill(Holder, {"value": "x"})) == {"value": "x"}


def test_describe_lists_keys_with_types_defaults_and_comments() -> None:
    rows = {row.key: row for row in describe(Sample)}
    assert list(rows)[:2] == ["count", "rate"]
    assert rows["count"].required and rows["count"].doc == "How many # there are."
    assert (rows["rate"].default, rows["rate"].required, rows["rate"].doc) == (0.5, False, "")
    assert rows["sizes"].default == [1, 2] and rows["sizes"].type == "list of int"
    assert rows["limit"].type == "float or null"


def test_every_key_of_the_schema_is_documented() -> None:
    assert [row.key for row in describe(Config) if not row.doc] == []
    assert {row.key for row in describe(Config)} >= {"env.id", "runtime.seed", "algorithm.cfg"}


def test_describe_takes_comments_of_parent_classes() -> None:
    @dataclass(frozen=True)
    class Child(RuntimeConfig):
        more: int = 0  # Beyond the parent's.

    docs = {row.key: row.doc for row in describe(Child)}
    assert docs["more"] == "Beyond the parent's." and docs["seed"].startswith("Seed of everything")
    assert len(docs) == len(dataclasses.fields(RuntimeConfig)) + 1
