"""Simulations in worker processes, as one: commands through pipes, numbers and pictures through shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection, reduction
from typing import IO, Any

import numpy as np
import torch

from plaudit import errors
from plaudit.envs.base import Frames
from plaudit.envs.maniskill.worker import CLOSE, DONE, FAILED, Array, Shapes, SharedArrays
from plaudit.errors import EnvError, PlauditError
from plaudit.utils.subprocesses import how_it_ended, see_off
from plaudit.utils.threads import cores

_FAREWELL = 3.0
"""Seconds that workers have to end by themselves."""


@dataclass
class _PoolProcess:
    """One process.

    Attributes:
        rows: Which envs it has.
        process: The process.
        pipe: Our end of the pipe.
        log: What it writes to stdout and stderr.
    """

    rows: range
    process: subprocess.Popen[bytes]
    pipe: connection.Connection
    log: IO[bytes] = field(repr=False)

    def last_words(self) -> str:
        """The end of what it wrote."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return f"\nThe last that it wrote:\n{text[-3000:]}" if text else ""


class WorkerPool:
    """The same interface as one simulation of many envs, over processes that each have some of them.

    Args:
        kind: Class of the simulations, `module:Class`; each has one env.
        arguments: Of that class.
        num_envs: How many in all.
        workers: Processes; not more than envs.
        draws: Whether pictures are observations, which are then drawn with every step.
        size: Height and width of a picture.
        patience: Seconds without any answer after which workers count as hanging.

    Attributes:
        layout: What is in one env.
        state: float32 (num_envs, d), shared: the next command changes it. So are `reward`, `terminated`, `success` and
            `metrics`, and `frames`, uint8 (num_envs, H, W, 3) for each camera.
    """

    def __init__(
        self,
        kind: str,
        arguments: dict[str, Any],
        num_envs: int,
        workers: int,
        draws: bool,
        size: tuple[int, int],
        patience: float,
    ) -> None:
        self.num_envs = num_envs
        self._number = 0
        self._workers: list[_PoolProcess] = []
        self._end = weakref.finalize(self, _end, self._workers)
        workers = min(workers, num_envs)
        try:
            for index in range(workers):
                rows = range(index * num_envs // workers, (index + 1) * num_envs // workers)
                self._workers.append(_start(rows, max(1, cores() // workers)))
            parts = {i: (kind, arguments, list(worker.rows), draws) for i, worker in enumerate(self._workers)}
            # An env takes a second or so to build, and the answer comes after the last.
            self.patience = patience * (1 + num_envs // workers / 10)
            self.layout = self._ask("build", parts)[0]
            self.patience = patience
            self._arrays = self._share(size)
        except BaseException:
            self.close()
            raise
        views = {name: torch.from_numpy(array) for name, array in self._arrays.items()}
        self.state, self.reward, self.metrics = views["state"], views["reward"], views["metrics"]
        self.terminated, self.success = views["terminated"], views["success"]
        self.frames = dict(zip(self.layout.cameras, views["frames"], strict=True))

    def _share(self, size: tuple[int, int]) -> SharedArrays:
        """Memory for all envs, handed to every worker."""
        layout, n = self.layout, self.num_envs
        shapes: Shapes = {
            "action": ("float32", (n, len(layout.low))),
            "state": ("float32", (n, layout.state)),
            "reward": ("float32", (n,)),
            "terminated": ("bool", (n,)),
            "success": ("bool", (n,)),
            "metrics": ("float32", (len(layout.metrics), n)),
            "snapshot": ("float32", (n, layout.snapshot)),
            "frames": ("uint8", (len(layout.cameras), n, *size, 3)),
            "drawn": ("uint8", (len(layout.cameras), n, *size, 3)),  # Of snapshots: `frames` may be observations.
        }
        with _memory(SharedArrays.size(shapes)) as handle:
            arrays = SharedArrays(handle, shapes)
            self._ask("share", dict.fromkeys(range(len(self._workers)), shapes), handle)
        return arrays

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begins new episodes in some envs, a seed for each."""
        self._ask("start", self._parts(list(zip(ids, seeds, strict=True))))

    def advance(self, action: torch.Tensor) -> None:
        """One step of all envs, float32 (num_envs, action_dim)."""
        self._arrays["action"][:] = action.cpu().numpy()
        self._ask("advance", dict.fromkeys(range(len(self._workers))))

    def replay(self, seeds: Sequence[int], actions: Sequence[Array]) -> None:
        """Begins an episode in every env and plays its actions, (n, action_dim), in it."""
        self._ask("replay", self._parts(list(zip(range(self.num_envs), seeds, actions, strict=True))))

    def render(self, ids: Sequence[int]) -> Frames:
        """What every chosen camera sees now in some envs."""
        self._ask("render", {i: [row for (row,) in part] for i, part in self._parts([(row,) for row in ids]).items()})
        return {name: frames[list(ids)] for name, frames in self.frames.items()}

    def portrait(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Pictures for people, uint8 (n, H, W, 3), if there are any."""
        parts = {i: [row for (row,) in part] for i, part in self._parts([(row,) for row in ids]).items()}
        answers = self._ask("portrait", parts)
        pictures: dict[int, Array] = {}
        for index, answer in answers.items():
            if answer is None:
                return None
            pictures |= dict(zip(parts[index], answer, strict=True))
        return torch.from_numpy(np.stack([pictures[row] for row in ids]))

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor:
        """What the task's expert would do now, float32 (num_envs, action_dim), if goals were `elsewhere`, metres
        (num_envs, 3) from where they are.
        """
        parts = self._parts(list(zip(range(self.num_envs), elsewhere.numpy(), strict=True)))
        answers = self._ask("expert", parts)
        return torch.from_numpy(np.concatenate([answers[index] for index in sorted(answers)]))

    def snapshot(self) -> torch.Tensor:
        """Numbers (num_envs, layout.snapshot) from which the present can be drawn."""
        self._ask("snapshot", dict.fromkeys(range(len(self._workers))))
        return torch.from_numpy(self._arrays["snapshot"].copy())

    def draw(self, snapshots: torch.Tensor) -> Frames:
        """What the cameras saw at the instants of snapshots (n, k)."""
        drawn = []
        for part in torch.split(snapshots, self.num_envs):
            self._arrays["snapshot"][: len(part)] = part.numpy()
            shares = np.array_split(np.arange(len(part)), len(self._workers))
            self._ask("draw", {i: share.tolist() for i, share in enumerate(shares) if len(share)})
            drawn.append(torch.from_numpy(self._arrays["drawn"][:, : len(part)].copy()))
        return dict(zip(self.layout.cameras, torch.cat(drawn, dim=1), strict=True))

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        self._end()

    def _parts(self, things: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
        """Things that begin with a row, given to the workers that have it."""
        parts = {i: [thing for thing in things if thing[0] in worker.rows] for i, worker in enumerate(self._workers)}
        return {i: part for i, part in parts.items() if part}

    def _ask(self, command: str, parts: Mapping[int, Any], handle: int | None = None) -> dict[int, Any]:
        """Sends a command to some workers, each with its part (and a descriptor), and waits for all their answers."""
        if not self._end.alive:
            raise EnvError("the env was used after it was closed, or after it had failed; build a new one.")
        self._number += 1
        for index, part in parts.items():
            worker = self._workers[index]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It is gone: the wait below finds out.
                worker.pipe.send((self._number, command, part))
                if handle is not None:
                    reduction.send_handle(worker.pipe, handle, worker.process.pid)
        answers: dict[int, Any] = {}
        while missing := [index for index in parts if index not in answers]:
            pipes = {self._workers[index].pipe: index for index in missing}
            ready = connection.wait(list(pipes), self.patience)
            if not ready:
                self._fail(missing[0], command, hangs=True)
            for pipe in ready:
                index = pipes[pipe]  # type: ignore[index]
                try:
                    number, kind, answer = self._workers[index].pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._fail(index, command)
                if number != self._number:
                    continue  # To a command that Ctrl-C did not let us wait for.
                if kind != DONE:
                    self.close()
                    raise self._error(index, command, kind, answer)
                answers[index] = answer
        return answers

    def _error(self, index: int, command: str, kind: str, answer: str) -> PlauditError:
        if kind != FAILED:
            error: PlauditError = getattr(errors, kind)(answer)
            return error
        return EnvError(f"{self._name(index)} failed in '{command}':\n{answer.strip()}")

    def _fail(self, index: int, command: str, hangs: bool = False) -> None:
        """Ends all workers and says why: one of them is gone, or hangs."""
        worker = self._workers[index]
        if hangs:
            worker.process.send_signal(signal.SIGUSR1)  # Makes it write down where it is.
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(1.0)
            worker.process.kill()
            what = f"has not answered '{command}' for {self.patience:g} s (env.cfg.worker_timeout), and was ended"
        else:
            what = f"{how_it_ended(worker.process.wait())}, in '{command}'"
        said = worker.last_words()
        self.close()
        raise EnvError(f"{self._name(index)} {what}.{said}")

    def _name(self, index: int) -> str:
        rows = self._workers[index].rows
        return f"ManiSkill's worker {index + 1} of {len(self._workers)}, with envs {rows[0]} to {rows[-1]},"


def _start(rows: range, threads: int) -> _PoolProcess:
    """A process that waits for commands."""
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the process runs
    # Mesa draws in threads of its own, as many as there are cores, unless told. 0 draws in the caller's.
    environ = {"LP_NUM_THREADS": str(threads if threads > 1 else 0), "OMP_NUM_THREADS": "1", **os.environ}
    # A task of yours is found where its module was found here.
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "plaudit.envs.maniskill.worker", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()], env=environ
        )
    return _PoolProcess(rows, process, ours, log)


def _end(workers: list[_PoolProcess]) -> None:
    """Ends processes: asked first, then made to. Runs at the exit of those who forget, too."""
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.pipe.send((0, CLOSE, None))
        worker.pipe.close()
    until = time.monotonic() + _FAREWELL
    for worker in workers:
        see_off(worker.process, until - time.monotonic())
        worker.log.close()


@contextlib.contextmanager
def _memory(size: int) -> Any:
    """Descriptor of fresh memory without a name, or of a file without one where the system has no such thing."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("plaudit")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        os.ftruncate(handle, size)
        yield handle
    finally:
        os.close(handle)
