"""The graphs of an artifact: made once, compared with torch, and kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from plaudit.data.episode import Frames
from plaudit.errors import DataError, PlauditError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.inference.backend_parity import loss_of
from plaudit.reward_models.inference.backends import OnnxBackend
from plaudit.reward_models.inference.onnx_cache import cached_graph
from plaudit.reward_models.inference.onnx_export import export
from plaudit.reward_models.inference.quantize import quantise
from plaudit.reward_models.inference.winograd import rewritten

logger = logging.getLogger("plaudit")

PARITY = 1e-3
"""How far a probability may be from torch's."""

_PROBES = 16


class GraphError(PlauditError):
    """A model that has no graph, or one whose graph says something else."""


def graph(artifact: RewardArtifact) -> bytes:
    """The graph of an artifact's model, in f32; one that is kept was compared with torch when it was made.

    Raises:
        GraphError: If torch cannot export the model, or the graph's probabilities differ by more than `PARITY`.
    """
    return cached_graph(artifact, "f32", lambda: _checked(artifact))


def int8_graph(artifact: RewardArtifact) -> bytes:
    """The graph of an artifact's model in 8-bit integers, made with every other one of its sample frames.

    Raises:
        DataError: If it has no sample.
        GraphError: If torch cannot export the model.
    """
    sample = artifact.sample
    if sample is None or len(sample.labels) < 2:
        raise DataError(
            f"backend 'onnx_int8' is made with sample frames, of which the reward model '{artifact.path}' has none: "
            "use backend 'onnx'."
        )
    some = {camera: sample.frames[camera][::2] for camera in artifact.cameras}

    def make() -> bytes:
        with _explained():
            return quantise(export(artifact.model()), some)

    return cached_graph(artifact, "int8", make)


def _checked(artifact: RewardArtifact) -> bytes:
    logger.info("exporting the reward model to ONNX; this takes some seconds, once.")
    with _explained():
        content = export(rewritten(artifact.model()))
        loss = loss_of(artifact, OnnxBackend(content, artifact.cameras, 1), _probes(artifact))
    if not loss.largest <= PARITY:
        raise GraphError(f"its probabilities differ from torch's by up to {loss.largest:.2g}")
    logger.info("the exported reward model is within %.1g of torch's probabilities.", loss.largest)
    return content


@contextmanager
def _explained() -> Iterator[None]:
    """Torch and ONNX Runtime raise whatever they like about what they cannot do."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GraphError(f"it cannot be exported ({reason})") from error


def _probes(artifact: RewardArtifact) -> dict[str, Frames]:
    """Frames to compare by: the artifact's own, or where it has none, noise of several grains."""
    if artifact.sample is not None:
        return dict(artifact.sample.frames)
    random = np.random.default_rng(0)
    height, width = artifact.image_size
    probes = {}
    for camera in artifact.cameras:
        pictures = []
        for index in range(_PROBES):
            grain = 2 ** (index % 5)
            coarse = random.integers(0, 256, (-(-height // grain), -(-width // grain), 3), np.uint8)
            pictures.append(coarse.repeat(grain, 0).repeat(grain, 1)[:height, :width])
        probes[camera] = np.stack(pictures)
    return probes
