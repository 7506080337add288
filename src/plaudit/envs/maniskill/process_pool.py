"""Pool of worker processes with the interface of one simulation.

Commands go through pipes; numbers and images go through shared memory.
"""

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

_EXIT_TIMEOUT = 3.0
"""Seconds that all workers together have to exit by themselves before they are killed."""


@dataclass
class _PoolProcess:
    """One worker process and its communication channels.

    Attributes:
        rows: Indices of the envs that it simulates.
        process: The process.
        pipe: The parent's end of the pipe.
        log: File that receives the worker's stdout and stderr.
    """

    rows: range
    process: subprocess.Popen[bytes]
    pipe: connection.Connection
    log: IO[bytes] = field(repr=False)

    def last_words(self) -> str:
        """Return the end of the worker's log for an error message, or an empty string."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return f"\nThe last that it wrote:\n{text[-3000:]}" if text else ""


class WorkerPool:
    """Worker processes that each simulate some envs, with the interface of one simulation.

    Args:
        kind: Class of the simulations, as `module:Class`; each instance simulates one env.
        arguments: Keyword arguments of that class.
        num_envs: Envs of all workers together.
        workers: Worker processes; at most one for each env is started.
        draws: Whether images are observations, which are then rendered with every step.
        size: Height and width of an image in pixels.
        patience: Seconds without any answer after which workers count as hanging.

    Attributes:
        layout: Layout of one env.
        state: float32 (num_envs, d), in shared memory: the next command overwrites it. The same holds for `reward`,
            `terminated`, `success`, `metrics` and `frames`, uint8 (num_envs, H, W, 3) for each camera.
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
        # Also stops the workers if the pool is never closed.
        self._end = weakref.finalize(self, _end, self._workers)

        workers = min(workers, num_envs)
        try:
            # Divide the envs evenly, in contiguous ranges, and the cores among the workers.
            for index in range(workers):
                rows = range(index * num_envs // workers, (index + 1) * num_envs // workers)
                self._workers.append(_start(rows, max(1, cores() // workers)))

            # An env takes about a second to build, and a worker answers only after its last one: wait longer.
            parts = {i: (kind, arguments, list(worker.rows), draws) for i, worker in enumerate(self._workers)}
            self.patience = patience * (1 + num_envs // workers / 10)
            self.layout = self._ask("build", parts)[0]
            self.patience = patience
            self._arrays = self._share(size)
        except BaseException:
            self.close()
            raise

        # Tensors that are views of the shared memory.
        views = {name: torch.from_numpy(array) for name, array in self._arrays.items()}
        self.state = views["state"]
        self.reward = views["reward"]
        self.metrics = views["metrics"]
        self.terminated = views["terminated"]
        self.success = views["success"]
        self.frames = dict(zip(self.layout.cameras, views["frames"], strict=True))

    def _share(self, size: tuple[int, int]) -> SharedArrays:
        """Allocate shared arrays for all envs and send them to every worker."""
        layout = self.layout
        n = self.num_envs
        shapes: Shapes = {
            "action": ("float32", (n, len(layout.low))),
            "state": ("float32", (n, layout.state)),
            "reward": ("float32", (n,)),
            "terminated": ("bool", (n,)),
            "success": ("bool", (n,)),
            "metrics": ("float32", (len(layout.metrics), n)),
            "snapshot": ("float32", (n, layout.snapshot)),
            "frames": ("uint8", (len(layout.cameras), n, *size, 3)),
            "drawn": ("uint8", (len(layout.cameras), n, *size, 3)),  # Snapshots: `frames` may be observations.
        }

        # The descriptor is closed afterwards; the mappings keep the memory alive.
        with _memory(SharedArrays.size(shapes)) as handle:
            arrays = SharedArrays(handle, shapes)
            self._ask("share", dict.fromkeys(range(len(self._workers)), shapes), handle)
        return arrays

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Start new episodes in some envs, with one seed each."""
        self._ask("start", self._parts(list(zip(ids, seeds, strict=True))))

    def advance(self, action: torch.Tensor) -> None:
        """Step all envs with actions, float32 (num_envs, action_dim)."""
        self._arrays["action"][:] = action.cpu().numpy()
        self._ask("advance", dict.fromkeys(range(len(self._workers))))

    def replay(self, seeds: Sequence[int], actions: Sequence[Array]) -> None:
        """Start an episode in every env and replay its actions, (n, action_dim)."""
        self._ask("replay", self._parts(list(zip(range(self.num_envs), seeds, actions, strict=True))))

    def render(self, ids: Sequence[int]) -> Frames:
        """Render the current frames of all configured cameras in some envs."""
        self._ask("render", {i: [row for (row,) in part] for i, part in self._parts([(row,) for row in ids]).items()})
        return {name: frames[list(ids)] for name, frames in self.frames.items()}

    def portrait(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Return images for human viewers, uint8 (n, H, W, 3), or `None` without a camera."""
        parts = {i: [row for (row,) in part] for i, part in self._parts([(row,) for row in ids]).items()}
        answers = self._ask("portrait", parts)

        # Answers are by worker; put the images into the order of `ids`.
        images: dict[int, Array] = {}
        for index, answer in answers.items():
            if answer is None:
                return None
            images |= dict(zip(parts[index], answer, strict=True))
        return torch.from_numpy(np.stack([images[row] for row in ids]))

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor:
        """Return the expert's actions for displaced goals, float32 (num_envs, action_dim).

        Args:
            elsewhere: Displacement of each env's goal in metres, (num_envs, 3).
        """
        parts = self._parts(list(zip(range(self.num_envs), elsewhere.numpy(), strict=True)))
        answers = self._ask("expert", parts)
        return torch.from_numpy(np.concatenate([answers[index] for index in sorted(answers)]))

    def snapshot(self) -> torch.Tensor:
        """Return states (num_envs, layout.snapshot) from which `draw` renders this instant."""
        self._ask("snapshot", dict.fromkeys(range(len(self._workers))))
        return torch.from_numpy(self._arrays["snapshot"].copy())

    def draw(self, snapshots: torch.Tensor) -> Frames:
        """Render the frames of snapshots (n, layout.snapshot)."""
        batches = []
        # The shared arrays have room for `num_envs` snapshots at a time.
        for batch in torch.split(snapshots, self.num_envs):
            self._arrays["snapshot"][: len(batch)] = batch.numpy()
            shares = np.array_split(np.arange(len(batch)), len(self._workers))
            self._ask("draw", {i: share.tolist() for i, share in enumerate(shares) if len(share)})
            batches.append(torch.from_numpy(self._arrays["drawn"][:, : len(batch)].copy()))
        return dict(zip(self.layout.cameras, torch.cat(batches, dim=1), strict=True))

    def close(self) -> None:
        """Stop the workers; a second call does nothing."""
        self._end()

    def _parts(self, items: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
        """Group tuples that begin with a row by the worker that simulates that row."""
        parts = {i: [item for item in items if item[0] in worker.rows] for i, worker in enumerate(self._workers)}
        return {i: part for i, part in parts.items() if part}

    def _ask(self, command: str, parts: Mapping[int, Any], handle: int | None = None) -> dict[int, Any]:
        """Send a command to some workers and wait for all their answers.

        Args:
            command: Name of a method of `SimulationWorker`.
            parts: Argument of the command for each worker, by the worker's index.
            handle: File descriptor to send after the command.

        Returns:
            Each worker's answer, by the worker's index.
        """
        if not self._end.alive:
            raise EnvError("the env was used after it was closed, or after it had failed; build a new one.")

        # Number the command, so that late answers to an interrupted one can be told apart.
        self._number += 1
        for index, part in parts.items():
            worker = self._workers[index]
            # If the worker has exited, the wait below reports it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.pipe.send((self._number, command, part))
                if handle is not None:
                    reduction.send_handle(worker.pipe, handle, worker.process.pid)

        # Collect the answers in the order in which they arrive.
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

                # An answer to an earlier command, the wait for which Ctrl-C interrupted.
                if number != self._number:
                    continue
                if kind != DONE:
                    self.close()
                    raise self._error(index, command, kind, answer)
                answers[index] = answer
        return answers

    def _error(self, index: int, command: str, kind: str, answer: str) -> PlauditError:
        """Return the exception for a worker's answer that reports an error."""
        # Plaudit's own errors arrive as class name and message.
        if kind != FAILED:
            error: PlauditError = getattr(errors, kind)(answer)
            return error
        return EnvError(f"{self._name(index)} failed in '{command}':\n{answer.strip()}")

    def _fail(self, index: int, command: str, hangs: bool = False) -> None:
        """Stop all workers and raise an error for one that exited or hangs."""
        worker = self._workers[index]
        if hangs:
            worker.process.send_signal(signal.SIGUSR1)  # Makes the worker write its stack trace to the log.
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(1.0)
            worker.process.kill()
            problem = f"has not answered '{command}' for {self.patience:g} s (env.cfg.worker_timeout), and was ended"
        else:
            problem = f"{how_it_ended(worker.process.wait())}, in '{command}'"

        log_end = worker.last_words()  # Read before `close` closes the log.
        self.close()
        raise EnvError(f"{self._name(index)} {problem}.{log_end}")

    def _name(self, index: int) -> str:
        """Return a worker's description for error messages."""
        rows = self._workers[index].rows
        return f"ManiSkill's worker {index + 1} of {len(self._workers)}, with envs {rows[0]} to {rows[-1]},"


def _start(rows: range, threads: int) -> _PoolProcess:
    """Start a worker process that waits for commands."""
    parent_end, worker_end = Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - stays open as long as the process runs

    # Mesa renders in its own threads, one for each core by default. 0 renders in the calling thread.
    environ = {"LP_NUM_THREADS": str(threads if threads > 1 else 0), "OMP_NUM_THREADS": "1", **os.environ}
    # A user's task module must be importable in the worker as it is here.
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))

    # The worker inherits its end of the pipe; the parent's copy is closed, so that the worker's exit closes the pipe.
    command = [sys.executable, "-m", "plaudit.envs.maniskill.worker", str(worker_end.fileno())]
    with worker_end:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[worker_end.fileno()], env=environ
        )
    return _PoolProcess(rows, process, parent_end, log)


def _end(workers: list[_PoolProcess]) -> None:
    """Stop worker processes: ask first, then force.

    As a finalizer, it also runs when the interpreter exits and the pool was not closed.
    """
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.pipe.send((0, CLOSE, None))
        worker.pipe.close()

    deadline = time.monotonic() + _EXIT_TIMEOUT
    for worker in workers:
        see_off(worker.process, deadline - time.monotonic())
        worker.log.close()


@contextlib.contextmanager
def _memory(size: int) -> Any:
    """Yield the descriptor of new anonymous memory, closed on exit.

    If the system has no `memfd_create`, it is an unnamed temporary file.
    """
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
