"""The folder of one run."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plaudit.errors import OutputError

ROOM = 200 * 2**20
"""Bytes that must be free before a run starts."""


FOLDERS = ("logs", "checkpoints", "videos")
"""What the folder of a training run holds."""


@dataclass(frozen=True)
class RunFolder:
    """`logs/`, `checkpoints/` and `videos/` of one run, under `path`."""

    path: Path

    @classmethod
    def create(cls, output_dir: str | Path, exp_name: str, folders: Sequence[str] = FOLDERS) -> RunFolder:
        """Makes `<output_dir>/<exp_name>_<timestamp>`, after seeing that it can be written and has room."""
        stem = f"{exp_name}_{datetime.datetime.now():%Y%m%d-%H%M%S}"
        try:
            path = _make_unique(Path(output_dir), stem)
            run = cls.open(path, folders)
        except OSError as error:
            raise OutputError(
                f"cannot write to the output folder '{output_dir}': {error.strerror or error}. Choose another one with "
                "runtime.output_dir."
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path, folders: Sequence[str] = FOLDERS) -> RunFolder:
        """Takes an existing folder, to go on in it, after seeing that it can be written and has room."""
        run = cls(Path(path))
        try:
            for name in folders:
                (run.path / name).mkdir(parents=True, exist_ok=True)
            probe = run.path / ".write-test"
            probe.write_bytes(b"x")
            probe.unlink()
            free = shutil.disk_usage(run.path).free
        except OSError as error:
            raise OutputError(f"cannot write to the run folder '{path}': {error.strerror or error}.") from error
        if free < ROOM:
            raise OutputError(
                f"the disk of '{run.path}' has {free / 2**20:.0f} MB free, but a run needs {ROOM / 2**20:.0f} MB. Make "
                "room, or choose another disk with runtime.output_dir."
            )
        return run

    @property
    def logs(self) -> Path:
        """TensorBoard files and `metrics.jsonl`."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """`latest.pt`, `best.pt` and `step_<N>.pt`."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """What an algorithm remembers that is too large for a checkpoint."""
        return self.path / "replay"

    @property
    def videos(self) -> Path:
        """Films of evaluations."""
        return self.path / "videos"

    @property
    def latest(self) -> Path:
        """The checkpoint to resume from."""
        return self.checkpoints / "latest.pt"

    @property
    def best(self) -> Path:
        """The checkpoint with the best evaluation."""
        return self.checkpoints / "best.pt"


def _make_unique(parent: Path, stem: str) -> Path:
    """Makes `parent/stem`, with a number after it where that is taken."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise OutputError(f"'{parent}' already has a thousand runs named '{stem}'.")
