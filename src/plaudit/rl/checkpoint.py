"""Checkpoints: written whole or not at all, holding tensors and plain containers only, read without pickle's powers."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plaudit.errors import CheckpointError, OutputError
from plaudit.utils.atomic_io import whole_file

VERSION = 1
LATEST = "latest.pt"
NUMBERED = "step_"
"""What the names of checkpoints begin with that are deleted once they are old."""

OF_ALGORITHM = ("algorithm_class", "algorithm")
"""What an algorithm adds to the content that the trainer gives it."""

_ARRAY = "__numpy__"


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a checkpoint: a kill at any instant leaves the old file or the new one."""
    packed = pack({"version": VERSION, **content})
    with _explained(path), whole_file(path) as temporary, temporary.open("wb") as file:
        torch.save(packed, file)


def link(source: Path, path: Path) -> None:
    """Gives a written checkpoint a second name, atomically and, where the disk can, without a second copy."""
    with _explained(path), whole_file(path) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Adds to an error what happened to the file that was there. torch reports a full disk as a RuntimeError."""
    try:
        yield
    except (OutputError, RuntimeError) as error:
        kept = " The previous one is kept." if path.exists() else ""
        raise OutputError(f"cannot write the checkpoint '{path}': {error} Is the disk full?{kept}") from error


def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Reads a checkpoint; a missing, damaged or foreign file is a `CheckpointError` that names it."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint '{path}'.")
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint '{path}' is damaged or is not one of Plaudit's: {reason}") from error
    if not isinstance(content, dict) or "policy" not in content or "version" not in content:
        raise CheckpointError(f"'{path}' is not a checkpoint of Plaudit: it holds no policy.")
    if content["version"] > VERSION:
        raise CheckpointError(
            f"the checkpoint '{path}' has format {content['version']}, this Plaudit reads up to {VERSION}; upgrade it."
        )
    unpacked: dict[str, Any] = _unpack(content)
    return unpacked


def load_policy(policy: torch.nn.Module, state: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Loads weights after seeing that they fit; the first field that differs is named."""
    own = policy.state_dict()
    for name, value in own.items():
        if name not in state:
            raise CheckpointError(f"the checkpoint '{path}' is of another policy: it lacks '{name}', which is here.")
        if state[name].shape != value.shape:
            raise CheckpointError(
                f"the checkpoint '{path}' is of another policy: '{name}' has shape {tuple(value.shape)} here and "
                f"{tuple(state[name].shape)} there."
            )
    for name in state:
        if name not in own:
            raise CheckpointError(f"the checkpoint '{path}' is of another policy: it has '{name}', which is not here.")
    policy.load_state_dict(dict(state))


def check_complete(state: Mapping[str, Any], names: Iterable[str], of: str) -> None:
    """Raises a `CheckpointError` where what a checkpoint keeps of something lacks one of some parts."""
    if missing := [name for name in names if name not in state]:
        raise CheckpointError(
            f"the checkpoint does not say '{missing[0]}' of {of}: an older Plaudit wrote it. Resume it with that one, "
            "or begin a new run with runtime.resume, which takes up the policy alone."
        )


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of a run.

    Attributes:
        path: Where they are.
        keep: How many numbered ones are kept; 0 keeps all.
    """

    path: Path
    keep: int

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a checkpoint. Whatever its name, it is the latest one too: an algorithm may let go of data that none
        but those before it need.
        """
        save(self.path / name, content)
        if name != LATEST:
            link(self.path / name, self.path / LATEST)
        if name.startswith(NUMBERED):
            prune(self.path, self.keep)


def prune(folder: Path, keep: int) -> None:
    """Deletes all numbered checkpoints but the `keep` newest; 0 keeps all."""
    numbered = sorted(folder.glob("step_*.pt"), key=lambda path: int(path.stem.removeprefix("step_")))
    for path in numbered[:-keep] if keep else []:
        path.unlink(missing_ok=True)


def pack(value: Any) -> Any:
    """A copy with only tensors (own storage, on the CPU) and plain containers and numbers."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(pack(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"a checkpoint holds tensors, arrays, numbers, text and containers of them, not {type(value)}.")


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return value[_ARRAY].cpu().numpy()
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unpack(item) for item in value)
    return value
