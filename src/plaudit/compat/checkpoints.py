"""Load reward-model checkpoints that other systems wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from plaudit.errors import CheckpointError
from plaudit.reward_models.model import RewardModel, build_reward_model
from plaudit.vision.pretrained import first, load_weights, read_checkpoint, weights_of
from plaudit.vision.resnet import DEEP, LAYERS

logger = logging.getLogger("plaudit")

FILES = (
    "full_weights.pt",
    "model_state_dict/full_weights.pt",
    "actor/model_state_dict/full_weights.pt",
    "checkpoint.pt",
    "best_model.pt",
    "reward_model_best.pt",
)
"""Where a checkpoint is in its folder."""

BUFFERS = ("mean", "std", "_mean", "_std")
"""The normalisation of colours, which some versions saved."""

OVERRULED = ("use_pretrain", "pooling")
"""Keys in which the checkpoint is right where it and the config differ, as RLinf's workflow guide has it."""


def load_foreign(path: str | Path, given: Mapping[str, Any] | None = None) -> tuple[RewardModel, list[str]]:
    """Loads a reward model that another system trained.

    Args:
        path: The file, or the folder that it is in.
        given: Keys of `reward.model` that the user wrote. What the weights tell must agree with them, except
            `use_pretrain`, in which the weights win with a warning; what the weights do not tell is taken from here.

    Returns:
        The model, in evaluation mode, and what its user should know of it.
    """
    path = find_checkpoint(Path(path))
    weights = weights_of(read_checkpoint(path), path)
    found = read_layout({name: value for name, value in weights.items() if name not in BUFFERS}, path)
    config, notes = reconcile(found, dict(given or {}), path)
    model = build_reward_model(config, pretrained=False)
    load_weights(model, found.weights, path)
    return model.eval(), notes


def find_checkpoint(path: Path) -> Path:
    """The file itself, the known one in a folder, or that of the folder's last step."""
    if not path.is_dir():
        return path
    steps = [file for file in path.glob("step_*/checkpoint.pt") if file.parent.name.removeprefix("step_").isdigit()]
    steps.sort(key=lambda file: int(file.parent.name.removeprefix("step_")), reverse=True)
    found = [path / name for name in FILES if (path / name).is_file()] + steps
    if not found:
        raise CheckpointError(
            f"there is no checkpoint in the folder '{path}': looked for {', '.join(FILES)} and step_N/checkpoint.pt."
        )
    return found[0]


def reconcile(found: Found, given: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """One config from what the weights tell and what the user gave, and notes on what neither did."""
    notes = ["It has no calibration: its threshold is 0.5 unless reward_threshold is given."]
    for key, value in found.told.items():
        wanted = given.get(key, value)
        if _plain(wanted) == _plain(value):
            continue
        if key not in OVERRULED:
            raise CheckpointError(
                f"{key} is {_plain(wanted)} in the config, but {_plain(value)} in the checkpoint '{path}'. Set it to "
                "that, or leave it out."
            )
        notes.append(f"{key} is {value}, as the shape of its pooling kernel shows, and not {wanted} as in the config.")
        logger.warning("%s: %s", path, notes[-1])
    _check_cameras(found, given, path)
    guesses = {key: value for key, value in found.guessed.items() if key not in given}
    notes += [f"{key} is taken to be {_plain(value)}: its weights do not tell." for key, value in guesses.items()]
    return {**guesses, **given, **found.told}, notes


def _check_cameras(found: Found, given: dict[str, Any], path: Path) -> None:
    """Whether as many cameras, and as many pixels, are asked for as the weights are for."""
    cameras = given.get("image_keys", ())
    if "image_keys" not in found.told and len(cameras) > 1:
        raise CheckpointError(f"image_keys has {len(cameras)} cameras, but the checkpoint '{path}' is for one.")
    size = given.get("image_size")
    if size is None or found.map_size is None:
        return
    if tuple(-(-pixels // STRIDE) for pixels in size[1:]) != found.map_size:
        fitting = [3, *(places * STRIDE for places in found.map_size)]
        raise CheckpointError(
            f"image_size is {_plain(size)} in the config, but the checkpoint '{path}' is for {fitting}, or up to "
            f"{STRIDE - 1} pixels less each way."
        )


def _plain(value: Any) -> Any:
    """Tuples as lists, so that values from files and ours compare."""
    return list(value) if isinstance(value, tuple) else value


Weights: TypeAlias = dict[str, torch.Tensor]

STRIDE = 32
"""Pixels, each way, for one place of the last map of their encoders."""


@dataclass(frozen=True)
class Found:
    """A reward model of another system.

    Attributes:
        told: Keys of `reward.model` that its weights tell.
        guessed: Keys that they do not tell, with what was usual there.
        weights: By our names.
        map_size: (h, w) of the encoder's map, where the weights tell it.
    """

    told: dict[str, Any]
    guessed: dict[str, Any]
    weights: Weights
    map_size: tuple[int, int] | None = None


class Part:
    """The weights under one prefix; asking for one that is not there is an error that names it.

    Args:
        weights: Of the whole checkpoint; this part is taken out of it.
        prefix: What its names start with.
        path: The file, for messages.
    """

    def __init__(self, weights: Weights, prefix: str, path: Path) -> None:
        self.prefix, self.path = prefix, path
        names = [name for name in weights if name.startswith(prefix)]
        self.weights = {name.removeprefix(prefix): weights.pop(name) for name in names}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.weights:
            raise CheckpointError(f"the checkpoint '{self.path}' lacks '{self.prefix}{name}'.")
        return self.weights[name]


def read_layout(weights: Weights, path: Path) -> Found:
    """Tells a reward model by its weights. What they hold beyond it is an error that names it."""
    rest = dict(weights)
    kind = next((name.partition(".")[0] for name in rest if name.startswith(tuple(READERS))), None)
    if kind is None:
        raise CheckpointError(
            f"the checkpoint '{path}' is of no reward model that Plaudit knows: it has {first(list(rest))}, but no "
            "'encoders.<camera>.' and no 'backbone.'. If it is an encoder alone, give it as pretrained_encoder_path."
        )
    try:
        found = READERS[f"{kind}."](rest, path)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(f"the checkpoint '{path}': its weights do not fit together: {error}") from error
    if rest:
        raise CheckpointError(f"the checkpoint '{path}' is of another network: it has {first(list(rest))}.")
    return found


def read_classifier(weights: Weights, path: Path) -> Found:
    """`BinaryRewardClassifier`. Without `use_pretrain` it took the mean of the map before the spatial embeddings, which
    then only scale each channel: they are folded into the linear layer that follows.
    """
    cameras = tuple(dict.fromkeys(name.split(".")[1] for name in weights if name.startswith("encoders.")))
    nets = [Part(weights, f"encoders.{camera}.resnet_backbone.", path) for camera in cameras]
    poolings = [Part(weights, f"encoders.{camera}.pooling_layer.", path) for camera in cameras]
    vectors = [Part(weights, f"encoders.{camera}.mlp.", path) for camera in cameras]
    head = Part(weights, "classifier.", path)
    width = nets[0]["conv1.weight"].shape[0]
    kernels = [channels_first(pooling["kernel"], 8 * width, path) for pooling in poolings]
    _, height, breadth, blocks = kernels[0].shape
    averaged, bottleneck = height == breadth == 1, bool(vectors[0].weights)
    own = encoder_weights(nets)
    if averaged:
        fold_in(kernels, vectors if bottleneck else [head])
    else:
        own["pooling.kernel"] = torch.stack(kernels).flatten(2, 3)
    if bottleneck:
        for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
            own[f"head.bottleneck.{name}"] = torch.stack([part[name] for part in vectors])
    # Where there is a Dropout before the LayerNorm there was a ReLU behind it; the older head had a Tanh and neither.
    norm, last = ("2", "4") if "2.weight" in head.weights else ("1", "3")
    own |= head_weights(head, {"0": "0", norm: "1", last: "4"})
    told = {
        "model_type": "binary_classifier",
        "image_keys": cameras,
        "heads": 1,
        "width": width,
        "stem": "7x7",
        "norm": "group",
        "encoder_stages": 4,
        "use_pretrain": not averaged,
        "pooling": "avg" if averaged else "spatial",
        "num_spatial_blocks": blocks,
        "hidden_dim": head["0.weight"].shape[0],
        "bottleneck": bottleneck,
        "activation": "relu" if norm == "2" else "tanh",
        **({"share_encoder": False} if len(cameras) > 1 else {}),
    }
    size = (3, 64, 64) if averaged else (3, height * STRIDE, breadth * STRIDE)
    guessed = {"image_size": size, "normalize": False}
    return Found(told, guessed, own, None if averaged else (height, breadth))


def channels_first(kernel: torch.Tensor, channels: int, path: Path) -> torch.Tensor:
    """A pooling kernel as (channels, h, w, blocks); HIL-SERL's order is (h, w, channels, blocks)."""
    if kernel.dim() == 4 and kernel.shape[0] == channels:
        return kernel
    if kernel.dim() == 4 and kernel.shape[2] == channels:
        return kernel.permute(2, 0, 1, 3)
    raise CheckpointError(
        f"the checkpoint '{path}': the pooling kernel is {tuple(kernel.shape)}; with this encoder it must be "
        f"({channels}, h, w, num_spatial_blocks)."
    )


def fold_in(kernels: list[torch.Tensor], parts: list[Part]) -> None:
    """Puts the scaling by kernels of one place, (C, 1, 1, blocks), into the linear layers that take its results.

    Args:
        kernels: One for each camera.
        parts: The layers of each camera, or those that take all cameras; the first of them is the linear one.
    """
    each = len(kernels) // len(parts)
    for index, part in enumerate(parts):
        scale = torch.cat([kernel.flatten() for kernel in kernels[index * each : (index + 1) * each]])
        weight = part["0.weight"] * scale  # (outputs, cameras * C * blocks)
        part.weights["0.weight"] = weight.reshape(len(weight), -1, kernels[0].shape[3]).sum(2)


def encoder_weights(nets: list[Part]) -> Weights:
    """The encoders' weights by our names, without the last layer that their class brought and never used."""
    return {
        f"encoder.nets.{index}.{name}": value
        for index, net in enumerate(nets)
        for name, value in net.weights.items()
        if not name.startswith("fc.")
    }


def head_weights(head: Part, names: dict[str, str]) -> Weights:
    """The head's weights by our names, from the numbers of its layers there to those here."""
    return {
        f"head.layers.{ours}.{kind}": head[f"{theirs}.{kind}"][None]
        for theirs, ours in names.items()
        for kind in ("weight", "bias")
    }


def read_resnet(weights: Weights, path: Path) -> Found:
    """`ResNetRewardModel`, of RLinf's ResNet guide and of today."""
    head = Part(weights, "classifier.", path)
    if head.weights:
        names = {"1": "0", "4": "3"}
    else:
        head, names = Part(weights, "backbone.fc.", path), {"0": "0", "3": "3"}
    net = Part(weights, "backbone.", path)
    if "weight" in head.weights:  # a single linear layer
        hidden = None
        own = {f"head.layers.0.{kind}": head[kind][None] for kind in ("weight", "bias")}
    else:
        own = head_weights(head, names)
        hidden = own["head.layers.0.weight"].shape[1]
    told = {
        "model_type": "resnet_reward",
        "arch": arch_of(net),
        "heads": 1,
        "encoder_stages": 4,
        "pooling": "avg",
        "hidden_dim": hidden,
    }
    guessed = {"image_keys": ("base_camera",), "image_size": (3, 128, 128), "normalize": True}
    return Found(told, guessed, own | encoder_weights([net]))


def arch_of(net: Part) -> str:
    """The architecture, told by how many blocks each stage has, of which kind, and by their normalisation."""
    blocks = tuple(
        len({name.split(".")[1] for name in net.weights if name.startswith(f"layer{stage}.")}) for stage in range(1, 5)
    )
    deep = "layer1.0.conv3.weight" in net.weights
    norm = "batch" if "bn1.running_mean" in net.weights else "group"
    for arch, layers in LAYERS.items():
        if layers == blocks and (arch in DEEP) == deep and norm == ("group" if arch == "resnet10" else "batch"):
            return arch
    raise CheckpointError(
        f"the checkpoint '{net.path}': stages of {blocks} {'bottleneck ' if deep else ''}blocks with {norm} "
        f"normalisation are none of {', '.join(LAYERS)}."
    )


READERS: dict[str, Callable[[Weights, Path], Found]] = {"encoders.": read_classifier, "backbone.": read_resnet}
"""What the names of a layout start with, and who reads it."""
