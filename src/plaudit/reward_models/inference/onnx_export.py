"""A reward model as an ONNX graph: bytes in, logits out, for any number of frames."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from plaudit.reward_models.model import RewardModel

OPSET = 18
_TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir")


class _Graph(nn.Module):
    """A model that takes its cameras' frames one after the other."""

    def __init__(self, model: RewardModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *frames: torch.Tensor) -> torch.Tensor:
        """uint8 (n, H, W, 3) of each camera to logits (n, heads)."""
        logits: torch.Tensor = self.model(dict(zip(self.model.cameras, frames, strict=True)))
        return logits


def input_names(cameras: Sequence[str]) -> list[str]:
    """What the graph calls the frames of each camera. A camera's own name may be one that a graph cannot have."""
    return [f"frames_{index}" for index in range(len(cameras))]


def export(model: RewardModel) -> bytes:
    """The graph of a model in evaluation mode on the CPU, normalisation included.

    Raises:
        Exception: Of any kind, where torch cannot export the model: a user's own may do things that have no graph.
    """
    height, width = model.image_size
    # Two frames: of one, torch would conclude that there is always one.
    frames = tuple(torch.zeros(2, height, width, 3, dtype=torch.uint8) for _ in model.cameras)
    count = torch.export.Dim("n")
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            _Graph(model).eval(),
            frames,
            dynamo=True,
            dynamic_shapes=(tuple({0: count} for _ in frames),),
            input_names=input_names(model.cameras),
            output_names=["logits"],
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's own reports, of which none is about the user's model."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
