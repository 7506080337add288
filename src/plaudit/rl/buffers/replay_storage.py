"""A replay on the disk: what is new of it at every checkpoint, or files that it lives in.

Beside a checkpoint, which says how many slots each env had filled, stand numbered files with the slots that were filled
between one checkpoint and the next. Each is written whole or not at all, so that a kill at any instant leaves all that
the last checkpoint needs, and each costs what is new and not what there is.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from plaudit.errors import CheckpointError, ConfigError, OutputError
from plaudit.rl.buffers.replay_buffer import NUMBER, Allocate, ReplayBuffer, bytes_of, check_room, layout_of, slots_of
from plaudit.rl.checkpoint import check_complete
from plaudit.rl.observations import ObsDim
from plaudit.rl.reward_source import Layout
from plaudit.utils.atomic_io import whole_file

logger = logging.getLogger("plaudit")

_ENV = "env"
"""Column of a file: of which env its rows are."""

SUFFIX = ".safetensors"

PARTS = ("heads", "rows", "size", "extras", "obs")
"""What a checkpoint says of any replay; see `filled`."""

LAST = "last"
"""What it says besides of one that is kept by what is new of it: the number of the newest file."""


class Keeper(Protocol):
    """Keeps a replay on the disk."""

    replay: ReplayBuffer

    def changed(self, *columns: str) -> None:
        """Takes note that columns have changed in all slots, the old ones too."""

    def save(self) -> None:
        """Brings to the disk what is not there yet."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must say of the replay."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Makes the replay what it was when the checkpoint with `state` was written."""


def open_replay(
    capacity: int,
    num_envs: int,
    obs_dim: ObsDim,
    action_dim: int,
    device: torch.device,
    *,
    extras: Layout | None = None,
    storage: Literal["memory", "disk"] = "memory",
    folder: Path | None = None,
    allocate: Allocate | None = None,
) -> tuple[ReplayBuffer, Keeper | None]:
    """Make a replay buffer in memory or in files, and its storage in `folder` (`None` if there is no folder).

    The other arguments are those of `ReplayBuffer`.
    """
    if storage == "disk" and folder is None:
        raise ConfigError("algorithm.cfg.storage is 'disk', but this run has no folder to keep it in.")
    layout, slots = layout_of(obs_dim, action_dim, extras), slots_of(capacity, num_envs)
    logger.info(
        "replay: room for %s transitions of %s bytes, %s MB of %s.",
        f"{slots:,}",
        f"{bytes_of(layout):,}",
        f"{slots * bytes_of(layout) / 1e6:,.0f}",
        storage,
    )
    dims = capacity, num_envs, obs_dim, action_dim
    if storage == "disk" and folder is not None:
        files = MappedFiles(folder)
        files.replay = ReplayBuffer(*dims, extras=extras, allocate=files.allocate, onto=device)
        return files.replay, files
    if allocate is not None:  # It is taken when it is written to, and so the replay itself does not ask for room.
        check_room(layout, slots, device)
    replay = ReplayBuffer(*dims, device, extras=extras, allocate=allocate)
    return replay, None if folder is None else ReplayLog(replay, folder)


class ReplayLog:
    """Keeps a replay in a folder, by what is new of it.

    Args:
        replay: The replay.
        folder: For the files.

    Attributes:
        last: Number of the newest file.
    """

    def __init__(self, replay: ReplayBuffer, folder: Path) -> None:
        self.replay, self.folder = replay, folder
        self.last = 0
        self._saved = torch.zeros_like(replay.heads)
        self._changed: set[str] = set()
        self._heads: dict[int, torch.Tensor] = {}
        self._outlived: list[Path] = []  # Files of a time after the checkpoint that was loaded.

    def __getstate__(self) -> dict[str, Any]:
        # Another process that goes on with it has a replay of its own.
        return {name: value for name, value in vars(self).items() if name != "replay"}

    def changed(self, *columns: str) -> None:
        self._changed.update(columns)

    def save(self) -> None:
        # Also lets those files go of which everything was overwritten when it was last called: the checkpoint of that
        # time is there by now, and until the next one is, it is what a killed run goes on from.
        before = self._saved
        for path in self._outlived:
            path.unlink(missing_ok=True)
        self._outlived = []
        if self._changed:
            self._write(self._rows(torch.zeros_like(self._saved)), sorted(self._changed))
            self._changed.clear()
        if not torch.equal(self._saved, self.replay.heads):
            # The slot that waits for an action is where the newest action led to: it is written now and once more.
            self._write(self._rows(self._saved), list(self.replay.columns))
            self._saved = self.replay.heads.clone()
        for number, heads in list(self._heads.items()):
            if bool((heads < before - self.replay.rows).all()):
                self._file(number).unlink(missing_ok=True)
                del self._heads[number]

    def state_dict(self) -> dict[str, Any]:
        return {LAST: self.last, **filled(self.replay)}

    def load(self, state: Mapping[str, Any]) -> None:
        _check_storage(state, "memory")
        # Files that were written after the checkpoint are left out, and go once there is something new: the run lives
        # through that time once more, but whoever only looks at an old checkpoint takes nothing from the newest.
        replay = self.replay
        _check_same(replay, state)
        for name in ("valid", NUMBER):
            replay.columns[name].zero_()
        self._outlived += self.folder.glob(f".*{SUFFIX}")  # What a kill left half-written.
        for path in sorted(self.folder.glob(f"[0-9]*{SUFFIX}")):
            number = int(path.stem)
            if number > state[LAST]:
                self._outlived.append(path)
                continue
            content = _read(path, replay)
            envs = content.pop(_ENV)
            self._heads[number] = _newest(content[NUMBER], envs, replay.num_envs)
            slots = replay.slot(content[NUMBER], envs).to(replay.device)
            # What changed later is of no use where the file is gone that holds the rest of it.
            whole = "valid" in content
            there = whole | (replay.columns[NUMBER][slots] == content[NUMBER].to(replay.device))
            for name, values in content.items():
                replay.columns[name][slots[there]] = values.to(replay.device)[there]
        replay.heads.copy_(state["heads"])
        _forget(replay)
        _tell_missing(replay, state, self.folder)
        self.last, self._saved = int(state[LAST]), replay.heads.clone()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}{SUFFIX}"

    def _rows(self, since: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers and envs of the slots that each env has filled since then, and of the one that waits."""
        heads = self.replay.heads
        first = torch.maximum(since, heads - self.replay.rows + 1)
        parts = [torch.arange(int(a), int(b) + 1) for a, b in zip(first, heads, strict=True)]
        envs = [torch.full_like(part, env) for env, part in enumerate(parts)]
        return torch.cat(parts), torch.cat(envs)

    def _write(self, rows: tuple[torch.Tensor, torch.Tensor], columns: Sequence[str]) -> None:
        numbers, envs = rows
        slots = self.replay.slot(numbers, envs)
        content = {name: self.replay.columns[name][slots].cpu() for name in columns}
        content |= {NUMBER: numbers, _ENV: envs}
        self.replay.reread()
        there = self.replay.columns["valid"][slots].cpu()
        if "valid" in content:
            content["valid"] = there
        else:  # Of what was overwritten while it was read, nothing is known.
            content = {name: values[there] for name, values in content.items()}
        self.last += 1
        path = self._file(self.last)
        with whole_file(path) as temporary:
            try:
                save_file(content, temporary)
            except SafetensorError as error:
                raise OutputError(f"cannot write the replay '{path}': {error}. Is the disk full?") from error
        self._heads[self.last] = self.replay.heads.clone()


class MappedFiles:
    """The files that a replay lives in, which the system reads and writes as it sees fit.

    Nothing needs to be written at a checkpoint. What is overwritten after it is lost to it: a run that is resumed from
    there goes on without its oldest transitions, as many as had come after.

    Args:
        folder: For the files.
    """

    replay: ReplayBuffer

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: list[np.memmap[Any, Any]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Another process that goes on with it maps the files itself: a map is sent by its content.
        return {"folder": self.folder, "_maps": []}

    def allocate(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """A column, with what it held where the file is there already."""
        path = self.folder / f"{name.replace('/', '.')}.bin"
        size = math.prod(shape) * kind.itemsize
        old = path.exists()
        if old and path.stat().st_size != size:
            raise CheckpointError(
                f"the replay '{path}' has {path.stat().st_size:,} bytes, but this run's would have {size:,}. Keep "
                "algorithm.cfg.capacity, the number of envs and what is observed as they were, or begin a new run with "
                "runtime.resume, which takes up the policy alone."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            if not old and size > free:
                raise OutputError(
                    f"algorithm.cfg.capacity: '{path}' needs {size / 1e9:.1f} GB, but the disk has {free / 1e9:.1f} GB "
                    "free. Set it lower, or runtime.output_dir to another disk."
                )
            if not old:
                _reserve(path, size)
            column = np.memmap(path, torch.empty(0, dtype=kind).numpy().dtype, "r+", shape=shape)
        except OSError as error:
            raise OutputError(f"cannot write the replay '{path}': {error.strerror or error}.") from error
        self._maps.append(column)
        return torch.from_numpy(column)

    def save(self) -> None:
        for column in self._maps:
            column.flush()

    def changed(self, *columns: str) -> None:
        pass  # The files are what was changed.

    def state_dict(self) -> dict[str, Any]:
        return filled(self.replay)

    def load(self, state: Mapping[str, Any]) -> None:
        _check_storage(state, "disk")
        _check_same(self.replay, state)
        self.replay.heads.copy_(state["heads"])
        _forget(self.replay)
        _tell_missing(self.replay, state, self.folder)


def _reserve(path: Path, size: int) -> None:
    """A file of zeros whose room on the disk is its own: where that ran out later, a write to the map would end the
    process without a word.
    """
    with path.open("wb") as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                path.unlink()
                raise


def filled(replay: ReplayBuffer) -> dict[str, Any]:
    """What a replay is and how far it was filled, for a checkpoint."""
    extras = {name: [list(shape), str(kind).removeprefix("torch.")] for name, (shape, kind) in replay.extras.items()}
    obs = {name: list(replay.columns[name].shape[1:]) for name in replay.obs_names}
    return {"heads": replay.heads.clone(), "rows": replay.rows, "size": len(replay), "extras": extras, "obs": obs}


def replay_for(
    state: Mapping[str, Any], obs_dim: ObsDim, action_dim: int, device: torch.device | str = "cpu"
) -> ReplayBuffer:
    """An empty replay with as much room as the one that a keeper's `state_dict` is of, for `load` to fill."""
    check_complete(state, PARTS, "the replay")
    return ReplayBuffer(
        state["rows"] * len(state["heads"]), len(state["heads"]), obs_dim, action_dim, device, extras=_extras(state)
    )


def _extras(state: Mapping[str, Any]) -> Layout:
    return {name: (tuple(shape), getattr(torch, kind)) for name, (shape, kind) in state["extras"].items()}


def _read(path: Path, replay: ReplayBuffer) -> dict[str, torch.Tensor]:
    """A file of a replay like this one: all columns of some slots, or those that have changed since."""
    try:
        content = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"the replay '{path}' is damaged ({error}). Resume from an earlier checkpoint, or delete the file to go on "
            "without what it holds."
        ) from error
    known, wanted = {_ENV, *replay.columns}, {_ENV, NUMBER}
    differs = (known if "valid" in content else wanted) - set(content) or set(content) - known
    if differs:
        name = min(differs)
        raise CheckpointError(
            f"the replay '{path}' has {'a' if name in content else 'no'} column '{name}', unlike this run's: another "
            "version wrote it. Resume the run with that one, or begin a new run with runtime.resume, which "
            "takes up the policy alone."
        )
    return content


def _newest(numbers: torch.Tensor, envs: torch.Tensor, num_envs: int) -> torch.Tensor:
    """The highest number of each env."""
    return torch.full((num_envs,), -1, dtype=torch.int64).scatter_reduce_(0, envs, numbers, "amax")


def _check_storage(state: Mapping[str, Any], ours: str) -> None:
    """Sees that a checkpoint keeps all of a replay that is to be known, and that it was kept in the same way."""
    check_complete(state, PARTS, "the replay")
    theirs = "memory" if LAST in state else "disk"
    if theirs != ours:
        raise CheckpointError(
            f"the replay of the checkpoint was kept with algorithm.cfg.storage={theirs}, but here it is {ours}. Keep "
            "it as it was, or begin a new run with runtime.resume, which takes up the policy alone."
        )


def _check_same(replay: ReplayBuffer, state: Mapping[str, Any]) -> None:
    if len(state["heads"]) != replay.num_envs or state["rows"] != replay.rows:
        raise CheckpointError(
            f"the replay of the checkpoint has {state['rows']} slots for each of {len(state['heads'])} envs, but here "
            f"are {replay.rows} for {replay.num_envs}. Keep algorithm.cfg.capacity and the number of envs as they were."
        )
    theirs = _extras(state)
    if theirs != replay.extras:
        name = next(name for name in {**theirs, **replay.extras} if theirs.get(name) != replay.extras.get(name))
        raise CheckpointError(
            "what rewards depend on is kept in the replay, but that of the checkpoint and this run's differ in "
            f"'{name}'. Keep reward.use_reward_model, and the cameras and sizes that the model looks at, as they were, "
            "or begin a new run with runtime.resume, which takes up the policy alone."
        )
    there, here = state["obs"], {name: list(replay.columns[name].shape[1:]) for name in replay.obs_names}
    if there != here:
        raise CheckpointError(
            f"the replay of the checkpoint keeps observations of the shapes {there}, but this run's are {here}. Keep "
            "what is observed as it was and, with a frozen encoder, algorithm.cfg.image_shift: at 0, what it sees is "
            "kept in the place of pictures."
        )


def _tell_missing(replay: ReplayBuffer, state: Mapping[str, Any], folder: Path) -> None:
    """Says how much of a replay was not found again; where that is all of it, going on would be another run."""
    kept, found = state["size"], len(replay)
    if kept and not found:
        raise CheckpointError(
            f"nothing is left of the {kept:,} transitions that the checkpoint was saved with: '{folder}' does not hold "
            "them. Put its files back, resume from a newer checkpoint, or begin a new run with runtime.resume, which "
            "takes up the policy alone."
        )
    if found < kept:
        logger.warning(
            "of the %s transitions that the checkpoint was saved with, '%s' holds %s: the run goes on with those. "
            "Files are missing, or newer transitions have taken the place of the others.",
            f"{kept:,}",
            folder,
            f"{found:,}",
        )


def _forget(replay: ReplayBuffer) -> None:
    """Leaves only those transitions whose slots hold what belongs there by the heads; counts them anew."""
    rows = torch.arange(replay.rows)[:, None]
    # The newest number up to the head's that lies in each row of each env.
    newest = replay.heads - (replay.heads - rows) % replay.rows
    held = replay.columns[NUMBER].cpu().view(replay.rows, replay.num_envs)
    replay.columns["valid"] &= ((held == newest) & (newest < replay.heads)).flatten().to(replay.device)
    replay.size = int(replay.columns["valid"].sum())
