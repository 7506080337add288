"""Worker process: runs simulations of one env each, by commands from a pipe and shared arrays.

Started by `plaudit.envs.maniskill.process_pool` as a program of its own, without the threads and script of its parent.
Its only knowledge of ManiSkill is the class of its simulations, which the parent sends as `module:Class`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch

from plaudit.errors import PlauditError
from plaudit.registry import load

Array: TypeAlias = np.ndarray[Any, Any]

Shapes: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of each array, by name."""

CLOSE = "close"
"""Command that stops the worker."""

DONE, FAILED = "done", "failed"
"""Kinds of answers: a result, or a traceback. Plaudit's own errors are answered with class name and message."""


class SharedArrays(dict[str, Array]):
    """Named arrays in memory that processes share.

    The memory has no name, only descriptors: it is freed with the last process that holds one, however that ends.

    Args:
        handle: Descriptor of the memory.
        shapes: Dtypes and shapes of the arrays, in their order in memory.
    """

    def __init__(self, handle: int, shapes: Shapes) -> None:
        super().__init__()
        self._memory = mmap.mmap(handle, self.size(shapes))
        offset = 0
        for name, (dtype, shape) in shapes.items():
            self[name] = np.ndarray(shape, dtype, self._memory, offset)
            offset += _room(dtype, shape)

    @staticmethod
    def size(shapes: Shapes) -> int:
        """Return the bytes of all arrays together, at least 1."""
        return max(1, sum(_room(dtype, shape) for dtype, shape in shapes.values()))


def _room(dtype: str, shape: tuple[int, ...]) -> int:
    """Return an array's bytes, rounded up so that the next one starts a new cache line."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // 64) * 64


class SimulationWorker:
    """Simulations of one process. Each public method is a command.

    Args:
        connection: Connection to the parent process.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arrays: Mapping[str, Array] = {}
        self.sims: dict[int, Any] = {}
        self.studio: Any = None

    def build(self, argument: tuple[str, dict[str, Any], Sequence[int], bool]) -> Any:
        """Build the simulations and return the layout of one.

        Args:
            argument: Class of the simulations as `module:Class`, its keyword arguments, the envs' indices in the pool
                (rows of the shared arrays), and whether images are observations, which are rendered with every step.
        """
        target, arguments, rows, self.draws = argument
        kind = load(target)
        self.make: Callable[[], Any] = lambda: kind(**arguments)
        self.sims = {row: self.make() for row in rows}
        self.layout = next(iter(self.sims.values())).layout
        return self.layout

    def share(self, shapes: Shapes) -> None:
        """Map the shared memory, whose descriptor follows on the connection."""
        handle = reduction.recv_handle(self.connection)
        self.arrays = SharedArrays(handle, shapes)
        os.close(handle)

    def start(self, begun: Sequence[tuple[int, int]]) -> None:
        """Start episodes, given pairs of a row and a seed."""
        for row, seed in begun:
            self.sims[row].start([0], [seed])
            self._show(row)

    def advance(self, _: None) -> None:
        """Step all envs with the actions in shared memory."""
        for row in self.sims:
            self._advance(row, self.arrays["action"][row])
            self._show(row)

    def replay(self, parts: Sequence[tuple[int, int, Array]]) -> None:
        """Start episodes and replay actions in them.

        Args:
            parts: Triples of a row, a seed, and the actions (n, action_dim).
        """
        for row, seed, actions in parts:
            self.sims[row].start([0], [seed])
            for action in actions:
                self._advance(row, action)
            self._show(row)

    def render(self, rows: Sequence[int]) -> None:
        """Render the current frames of some envs."""
        for row in rows:
            self._keep("frames", row, self.sims[row].frames())

    def portrait(self, rows: Sequence[int]) -> Array | None:
        """Return images for human viewers, uint8 (n, H, W, 3), or `None` without a camera."""
        images = [self.sims[row].portrait([0]) for row in rows]
        return None if images[0] is None else torch.cat(images).cpu().numpy()

    def expert(self, parts: Sequence[tuple[int, Array]]) -> Array:
        """Return the expert's actions for displaced goals, float32 (n, action_dim).

        Args:
            parts: Pairs of a row and the displacement of its goal in metres, (3,).
        """
        actions = [self.sims[row].expert(torch.from_numpy(elsewhere[None])) for row, elsewhere in parts]
        return torch.cat(actions).cpu().numpy()

    def snapshot(self, _: None) -> None:
        """Write snapshots of all envs, from which `draw` can render this instant later."""
        for row, sim in self.sims.items():
            self.arrays["snapshot"][row] = sim.snapshot()[0].numpy()

    def draw(self, rows: Sequence[int]) -> None:
        """Render some snapshots.

        A separate env takes their states, since the envs with running episodes must not change.
        """
        if self.studio is None:
            self.studio = self.make()
        for row in rows:
            frames = self.studio.draw(torch.from_numpy(self.arrays["snapshot"][row : row + 1].copy()))
            self._keep("drawn", row, frames)

    def _advance(self, row: int, action: Array) -> None:
        """Step one env and write the results to shared memory."""
        sim = self.sims[row]
        sim.advance(torch.from_numpy(action[None].copy()))
        for name in ("reward", "terminated", "success"):
            self.arrays[name][row] = getattr(sim, name)[0].item()
        self.arrays["metrics"][:, row] = sim.metrics[:, 0].numpy()

    def _show(self, row: int) -> None:
        """Write the observation of one env to shared memory."""
        self.arrays["state"][row] = self.sims[row].state[0].numpy()
        if self.draws:
            self._keep("frames", row, self.sims[row].frames())

    def _keep(self, array: str, row: int, frames: Mapping[str, torch.Tensor]) -> None:
        """Write one env's frames to a shared array."""
        for camera, name in enumerate(self.layout.cameras):
            self.arrays[array][camera, row] = frames[name][0].cpu().numpy()  # A GPU may render a CPU simulation.


def serve(connection: Connection) -> None:
    """Answer commands until `CLOSE`; every answer carries its command's number."""
    worker = SimulationWorker(connection)
    while True:
        number, command, argument = connection.recv()
        if command == CLOSE:
            return
        try:
            connection.send((number, DONE, getattr(worker, command)(argument)))
        except PlauditError as error:
            connection.send((number, type(error).__name__, str(error)))
        except Exception:
            connection.send((number, FAILED, traceback.format_exc()))


def main() -> None:
    """Run the worker: `python -m plaudit.envs.maniskill.worker DESCRIPTOR`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C and then stops its workers.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # The parent requests a stack trace if the worker hangs.
    torch.set_num_threads(1)
    # These errors mean that the parent has exited.
    with torch.inference_mode(), contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)  # Skips the simulator's exit functions, which are slow and not needed.


if __name__ == "__main__":
    main()
