"""Frames to probabilities of success, as fast as this machine can without changing them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.errors import ConfigError, nearest
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.inference.backend_parity import Loss, Scored, loss_of, scored
from plaudit.reward_models.inference.backends import Backend, OnnxBackend, Precision, TorchBackend
from plaudit.reward_models.inference.frame_validation import AnyFrames, take_in
from plaudit.reward_models.inference.onnx_graphs import GraphError, graph, int8_graph
from plaudit.reward_models.training.bf16_probe import bf16_works
from plaudit.utils.threads import scoring_threads

logger = logging.getLogger("plaudit")

BackendName: TypeAlias = Literal["auto", "torch", "onnx", "onnx_int8"]
"""auto is ONNX Runtime on a CPU, and torch elsewhere."""


class RewardEngine:
    """Scores frames with a reward artifact.

    Args:
        artifact: The artifact, or where it is.
        backend: Who does the arithmetic. Where ONNX Runtime cannot, or does not say what torch says, torch does, with a
            warning.
        device: Where torch calculates.
        threads: Of ONNX Runtime; 0 for all cores. They sleep between calls. Torch has what it was given.
        precision: `bf16` is of torch alone, and used only if a trial in another process shows that it works here.

    Attributes:
        backend: Who does the arithmetic in fact.
        loss: What `onnx_int8` loses on those sample frames that it was not made with; `None` for the others.
    """

    def __init__(
        self,
        artifact: RewardArtifact | str | Path,
        backend: BackendName = "auto",
        *,
        device: str | torch.device = "cpu",
        threads: int = 0,
        precision: Precision = "f32",
    ) -> None:
        self.artifact = artifact if isinstance(artifact, RewardArtifact) else RewardArtifact.load(artifact)
        self.device, self.threads = torch.device(device), scoring_threads(threads)
        self.backend, usable = _choose(backend, self.device, precision)
        self.loss: Loss | None = None
        self._backend = self._torch(usable) if self.backend == "torch" else self._onnx()

    def score(self, frames: AnyFrames) -> Scored:
        """Scores frames; `take_in` says what they may be. There may be none at all."""
        batch = take_in(frames, self.artifact.cameras, self.artifact.image_size)
        if not len(next(iter(batch.values()))):
            return Scored(np.zeros(0, np.float32), np.zeros(0), np.zeros(0, np.float32))
        return scored(self.artifact, self._backend, batch)

    def loss_on(self, frames: AnyFrames, labels: NDArray[np.integer[Any]] | None = None) -> Loss:
        """What this engine loses against torch with f32 on some frames; arguments as `score`'s and `loss_of`'s."""
        batch = take_in(frames, self.artifact.cameras, self.artifact.image_size)
        return loss_of(self.artifact, self._backend, batch, labels)

    def _torch(self, precision: Precision) -> Backend:
        return TorchBackend(self.artifact.model(), self.device, precision)

    def _onnx(self) -> Backend:
        """ONNX Runtime, or torch where that cannot be."""
        make = graph if self.backend == "onnx" else int8_graph
        try:
            backend = OnnxBackend(make(self.artifact), self.artifact.cameras, self.threads)
        except GraphError as error:
            logger.warning("the reward model '%s' is scored by torch, not ONNX: %s.", self.artifact.path, error)
            self.backend = "torch"
            return self._torch("f32")
        sample = self.artifact.sample
        if self.backend == "onnx_int8" and sample is not None:
            others = {camera: sample.frames[camera][1::2] for camera in self.artifact.cameras}
            self.loss = loss_of(self.artifact, backend, others, sample.labels[1::2])
            logger.info("int8: %s.", self.loss)
        return backend


def _choose(backend: BackendName, device: torch.device, precision: Precision) -> tuple[BackendName, Precision]:
    """The backend to try and the precision that works here, if the settings fit together."""
    if backend not in get_args(BackendName):
        raise ConfigError(f"unknown backend '{backend}'.{nearest(backend, get_args(BackendName))}")
    if precision not in get_args(Precision):
        raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}.")
    if backend not in ("auto", "torch") and (device.type != "cpu" or precision != "f32"):
        raise ConfigError(f"backend '{backend}' is for device 'cpu' and precision 'f32'; use backend 'torch'.")
    usable: Precision = "bf16" if precision == "bf16" and bf16_works(device.type) else "f32"
    if backend == "auto":
        backend = "onnx" if device.type == "cpu" and usable == "f32" else "torch"
    return backend, usable
