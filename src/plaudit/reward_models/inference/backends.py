"""Who does the arithmetic of scoring: torch, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Literal, Protocol

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from plaudit.data.episode import Frames
from plaudit.reward_models.evaluation.scores import BATCH
from plaudit.reward_models.inference.onnx_export import input_names
from plaudit.reward_models.model import RewardModel

Precision = Literal["f32", "bf16"]

CHUNK = 32
"""Frames that go through ONNX Runtime together, at most: their maps fit into a cache, those of 256 do not."""


class Backend(Protocol):
    """Does the arithmetic of one model."""

    def logits(self, frames: Mapping[str, Frames]) -> NDArray[np.float32]:
        """Logits (n, heads) of frames, uint8 (n, H, W, 3) for each camera; n is at least 1."""


class TorchBackend:
    """Torch itself, in the batches of a fit, and with as many threads as it was given by whoever started the run.

    Args:
        model: In evaluation mode.
        device: Where to.
        precision: Of its arithmetic.
    """

    def __init__(self, model: RewardModel, device: torch.device, precision: Precision = "f32") -> None:
        self.model, self.device, self.precision = model.to(device).eval(), device, precision

    def logits(self, frames: Mapping[str, Frames]) -> NDArray[np.float32]:
        bf16 = self.precision == "bf16"
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
            parts = [self.model(self._moved(part)).float().cpu() for part in split(frames, BATCH)]
        joined: NDArray[np.float32] = torch.cat(parts).numpy()
        return joined

    def _moved(self, frames: Mapping[str, Frames]) -> dict[str, torch.Tensor]:
        # A copy where it is read-only, as memory-mapped frames are: torch has no such tensors, and warns.
        writable = {name: pixels if pixels.flags.writeable else pixels.copy() for name, pixels in frames.items()}
        return {name: torch.from_numpy(pixels).to(self.device) for name, pixels in writable.items()}


class OnnxBackend:
    """ONNX Runtime on the CPU.

    Every thread takes frames of its own. Threads that share one frame's work would wait for each other after every
    layer, and spin while they wait, at the cost of a simulator on the same cores.

    Args:
        content: The graph, as `onnx_export.export` makes it.
        cameras: In the order of the graph's inputs.
        threads: How many.
    """

    def __init__(self, content: bytes, cameras: Sequence[str], threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.inputs = dict(zip(input_names(cameras), cameras, strict=True))
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "plaudit-engine") if threads > 1 else None

    def logits(self, frames: Mapping[str, Frames]) -> NDArray[np.float32]:
        count = len(next(iter(frames.values())))
        parts = split(frames, min(CHUNK, -(-count // self.threads)))
        run = self.pool.map if self.pool is not None and count > 1 else map
        joined: NDArray[np.float32] = np.concatenate(list(run(self._run, parts)))
        return joined

    def _run(self, frames: Mapping[str, Frames]) -> NDArray[np.float32]:
        feed = {name: np.ascontiguousarray(frames[camera]) for name, camera in self.inputs.items()}
        logits: NDArray[np.float32] = self.session.run(None, feed)[0]
        return logits


def split(frames: Mapping[str, Frames], size: int) -> Iterator[dict[str, Frames]]:
    """The frames of all cameras, `size` at a time."""
    for start in range(0, len(next(iter(frames.values()))), size):
        yield {camera: pixels[start : start + size] for camera, pixels in frames.items()}
