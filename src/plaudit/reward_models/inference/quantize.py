"""An ONNX graph with convolutions in 8-bit integers: quicker, and less exact."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from plaudit.data.episode import Frames
from plaudit.reward_models.inference.backends import split
from plaudit.reward_models.inference.onnx_export import input_names

_AT_A_TIME = 8


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands out frames, a few at a time."""

    def __init__(self, frames: Mapping[str, Frames]) -> None:
        names = input_names(list(frames))
        self.parts: Iterator[dict[str, Any]] = (
            dict(zip(names, part.values(), strict=True)) for part in split(frames, _AT_A_TIME)
        )

    def get_next(self) -> dict[str, Any] | None:
        """The next frames; `None` where there are no more."""
        return next(self.parts, None)


def quantise(content: bytes, frames: Mapping[str, Frames]) -> bytes:
    """A graph whose convolutions calculate with 8-bit integers.

    Weights have a scale for each channel and 7 bits: on CPUs without VNNI, sums of 8-bit products would overflow.

    Args:
        content: A graph in which nothing was rewritten: what is done to make it quicker needs exact numbers.
        frames: By camera, in the order of the graph's inputs. What range every map has is seen from them.
    """
    with tempfile.TemporaryDirectory(prefix="plaudit-") as folder, _quietly():
        exact, prepared, small = (Path(folder) / f"{name}.onnx" for name in ("exact", "prepared", "small"))
        exact.write_bytes(content)
        quant_pre_process(exact, prepared, skip_symbolic_shape=True)
        kinds = {node.op_type for node in onnx.load(prepared).graph.node}
        # GroupNorm needs floats: between it and the next convolution, integers would only be a detour.
        quantised = ["Conv"] if "InstanceNormalization" in kinds else ["Conv", "Add", "MaxPool"]
        quantize_static(
            prepared,
            small,
            _Reader(frames),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=quantised,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return small.read_bytes()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's advice, which it gives to the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
