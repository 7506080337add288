"""A worker process: some simulations of one env each, driven by commands through a pipe and by shared arrays.

Started by `plaudit.envs.maniskill.process_pool` as a program of its own, without the threads and the script of its
parent. It knows of ManiSkill only what the parent names: the class of its simulations, as `module:Class`.
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
"""Name of an array to its dtype and shape."""

CLOSE = "close"
"""The last command."""

DONE, FAILED = "done", "failed"
"""Kinds of answers: with a result, or with a traceback. Our own errors answer with their name, and their message."""


class SharedArrays(dict[str, Array]):
    """Arrays by name in memory that processes share.

    The memory has no name, only descriptors: it is gone with the last process that holds one, however that one ends.

    Args:
        handle: Descriptor of the memory.
        shapes: Of the arrays, in the order in which they lie there.
    """

    def __init__(self, handle: int, shapes: Shapes) -> None:
        super().__init__()
        self._memory = mmap.mmap(handle, self.size(shapes))
        begin = 0
        for name, (dtype, shape) in shapes.items():
            self[name] = np.ndarray(shape, dtype, self._memory, begin)
            begin += _room(dtype, shape)

    @staticmethod
    def size(shapes: Shapes) -> int:
        """Bytes of all of them."""
        return max(1, sum(_room(dtype, shape) for dtype, shape in shapes.values()))


def _room(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array, rounded up so that the next one begins in a cache line of its own."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // 64) * 64


class SimulationWorker:
    """The simulations of one process. Each public method is a command.

    Args:
        connection: Where the parent is.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arrays: Mapping[str, Array] = {}
        self.sims: dict[int, Any] = {}
        self.studio: Any = None

    def build(self, argument: tuple[str, dict[str, Any], Sequence[int], bool]) -> Any:
        """Makes the simulations and returns the layout of one.

        Args:
            argument: Their class as `module:Class`, its arguments, which envs of the whole they are (rows of the shared
                arrays), and whether pictures are observations, so that they are drawn with every step.
        """
        target, arguments, rows, self.draws = argument
        kind = load(target)
        self.make: Callable[[], Any] = lambda: kind(**arguments)
        self.sims = {row: self.make() for row in rows}
        self.layout = next(iter(self.sims.values())).layout
        return self.layout

    def share(self, shapes: Shapes) -> None:
        """Takes the shared memory, whose descriptor comes next."""
        handle = reduction.recv_handle(self.connection)
        self.arrays = SharedArrays(handle, shapes)
        os.close(handle)

    def start(self, begun: Sequence[tuple[int, int]]) -> None:
        """Begins episodes: pairs of a row and a seed."""
        for row, seed in begun:
            self.sims[row].start([0], [seed])
            self._show(row)

    def advance(self, _: None) -> None:
        """One step of all envs."""
        for row in self.sims:
            self._advance(row, self.arrays["action"][row])
            self._show(row)

    def replay(self, parts: Sequence[tuple[int, int, Array]]) -> None:
        """Begins episodes and plays actions (n, action_dim) in them: triples of a row, a seed, and the actions."""
        for row, seed, actions in parts:
            self.sims[row].start([0], [seed])
            for action in actions:
                self._advance(row, action)
            self._show(row)

    def render(self, rows: Sequence[int]) -> None:
        """Draws the present of some envs."""
        for row in rows:
            self._keep("frames", row, self.sims[row].frames())

    def portrait(self, rows: Sequence[int]) -> Array | None:
        """Pictures for people, uint8 (n, H, W, 3), if there are any."""
        pictures = [self.sims[row].portrait([0]) for row in rows]
        return None if pictures[0] is None else torch.cat(pictures).cpu().numpy()

    def expert(self, parts: Sequence[tuple[int, Array]]) -> Array:
        """What the task's expert would do, float32 (n, action_dim): pairs of a row, and where its goal is believed to
        be, metres (3,) beside the true one.
        """
        actions = [self.sims[row].expert(torch.from_numpy(elsewhere[None])) for row, elsewhere in parts]
        return torch.cat(actions).cpu().numpy()

    def snapshot(self, _: None) -> None:
        """Keeps what is needed to draw the present later."""
        for row, sim in self.sims.items():
            self.arrays["snapshot"][row] = sim.snapshot()[0].numpy()

    def draw(self, rows: Sequence[int]) -> None:
        """Draws some snapshots. An env of its own poses for them: those that play must not be touched."""
        if self.studio is None:
            self.studio = self.make()
        for row in rows:
            frames = self.studio.draw(torch.from_numpy(self.arrays["snapshot"][row : row + 1].copy()))
            self._keep("drawn", row, frames)

    def _advance(self, row: int, action: Array) -> None:
        sim = self.sims[row]
        sim.advance(torch.from_numpy(action[None].copy()))
        for name in ("reward", "terminated", "success"):
            self.arrays[name][row] = getattr(sim, name)[0].item()
        self.arrays["metrics"][:, row] = sim.metrics[:, 0].numpy()

    def _show(self, row: int) -> None:
        """Writes down the observation of one env."""
        self.arrays["state"][row] = self.sims[row].state[0].numpy()
        if self.draws:
            self._keep("frames", row, self.sims[row].frames())

    def _keep(self, array: str, row: int, frames: Mapping[str, torch.Tensor]) -> None:
        for camera, name in enumerate(self.layout.cameras):
            self.arrays[array][camera, row] = frames[name][0].cpu().numpy()  # A GPU may draw what a CPU simulates.


def serve(connection: Connection) -> None:
    """Answers commands until the parent says so. Every answer carries its command's number."""
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
    """The program: `python -m plaudit.envs.maniskill.worker DESCRIPTOR`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends us.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # The parent asks where we are when we do not answer.
    torch.set_num_threads(1)
    with torch.inference_mode(), contextlib.suppress(EOFError, ConnectionError):  # Those say that the parent is gone.
        serve(Connection(int(sys.argv[1])))
    os._exit(0)  # A simulator's exit functions take their time, and nothing here needs them.


if __name__ == "__main__":
    main()
