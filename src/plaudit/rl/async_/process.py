"""The learning process: started, spoken to, and ended by the acting one, which watches over it.

What passes through the pipe is rare and must not keep an arm waiting: the acting side sends from a thread of its own,
and listens only to what is there already.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import logging.handlers
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from plaudit.errors import PlauditError
from plaudit.rl.async_.learner import Learner, LearnerSpec, Save
from plaudit.rl.async_.shared_memory import Place, SharedMemory
from plaudit.rl.checkpoint import NUMBERED
from plaudit.utils.realtime import give_way, keep_freed_memory
from plaudit.utils.subprocesses import how_it_ended, see_off
from plaudit.utils.threads import claim_threads

logger = logging.getLogger("plaudit")

PAUSE = 0.001
"""Seconds that learning waits before it looks again, where no gradient step is owed."""

LEAVE = 60.0
"""Seconds that the process has to write what it was asked to, once it is to end."""

CODE = "from plaudit.rl.async_.process import work; work({}, {})"


@dataclass(frozen=True)
class Begin:
    """The first thing that the process is sent.

    Attributes:
        job: What it is to do.
        places: Of the tensors in the shared memory.
        imports: Modules to import first.
        path: Where they are looked for.
        level: Of the log.
    """

    job: LearnerSpec
    places: dict[str, Place]
    imports: Sequence[str]
    path: list[str]
    level: int


@dataclass(frozen=True)
class Saved:
    """A checkpoint is written."""


@dataclass(frozen=True)
class LearnerFailure:
    """The process cannot go on.

    Attributes:
        reason: Why.
        trace: Where, if that says more.
    """

    reason: str
    trace: str = ""


class LearningProcess:
    """The process, as the acting side sees it.

    Args:
        job: What it is to do.
        memory: What both see.
        imports: Modules that it imports first.

    Attributes:
        unsaved: Checkpoints that were asked for and are not written yet. The first is under way; the others wait here,
            one of a kind, for the disk may be slower than they are asked for.
    """

    def __init__(self, job: LearnerSpec, memory: SharedMemory, imports: Sequence[str] = ()) -> None:
        self.unsaved: list[Save] = []
        self._ended = self._said_slow = False
        self.pipe, theirs = Pipe()
        handles = theirs.fileno(), memory.handle
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE.format(*handles)],
            pass_fds=handles,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the acting process alone, which ends this one in good order.
        )
        theirs.close()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sender.start()
        begin = Begin(job, memory.places, imports, sys.path, logger.getEffectiveLevel())
        self._outbox.put(pickle.dumps(begin))

    def save(self, wish: Save) -> None:
        """Asks for a checkpoint, and does not wait for it. It takes the place of what it `replaces`, if that waits."""
        if not self.unsaved:
            self._ask(wish)
        under_way, waiting = self.unsaved[:1], self.unsaved[1:]
        numbered = [older.name for older in waiting if wish.replaces(older) and older.name.startswith(NUMBERED)]
        if numbered and not self._said_slow:
            self._said_slow = True
            logger.warning(
                "the disk is too slow for so many checkpoints: '%s' is not written, as '%s' is due, and so it may be "
                "with others. Raise runtime.save_freq.",
                numbered[0],
                wish.name,
            )
        self.unsaved = [*under_way, *(older for older in waiting if not wish.replaces(older)), wish]

    def listen(self, seconds: float = 0.0) -> None:
        """Takes in what the process has to say, if need be after waiting for it; raises what ended it."""
        while self.pipe.poll(seconds):
            seconds = 0.0
            try:
                message = pickle.loads(self.pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                self._ended = True
                raise PlauditError(self._died()) from None
            if isinstance(message, logging.LogRecord):
                logger.handle(message)
            elif isinstance(message, LearnerFailure):
                self._ended = True
                if message.trace:
                    logger.error("%s", message.trace)
                raise PlauditError(f"the learning process failed: {message.reason}")
            else:
                del self.unsaved[0]
                for wish in self.unsaved[:1]:
                    self._ask(wish)

    def flush(self) -> None:
        """Returns once all checkpoints that were asked for are written."""
        while self.unsaved:
            self.listen(1.0)

    def close(self) -> None:
        """Sees that the process is gone: asked, once it has written what it was to, and by force if it does not go.

        What goes wrong meanwhile is told, and not raised: there may be another error on its way.
        """
        until = time.monotonic() + LEAVE
        try:
            self._hear_out(until)
            self._outbox.put(None)
            if not see_off(self.process, until - time.monotonic()):
                logger.warning("the learning process did not end within %.0f s, and was ended by force.", LEAVE)
        finally:
            self.process.kill()
            self.process.wait()
            self._outbox.put(None)  # Where that was interrupted.
            self._sender.join()
            self.pipe.close()
            if self.unsaved:
                names = ", ".join(dict.fromkeys(wish.name for wish in self.unsaved))
                logger.error("not written, though asked for: %s. The checkpoints of before are kept.", names)

    def _hear_out(self, until: float) -> None:
        """Waits, until some time at most, for the checkpoints that were asked for."""
        try:
            while self.unsaved and not self._ended and (left := until - time.monotonic()) > 0:
                self.listen(left)
        except PlauditError as error:
            logger.error("%s", error)

    def _ask(self, wish: Save) -> None:
        self._outbox.put(pickle.dumps(wish))

    def _send(self) -> None:
        """Passes on what is put into the outbox, in a thread of its own: it may have to wait until it is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It is gone, which `listen` finds out.
            while (message := self._outbox.get()) is not None:
                self.pipe.send_bytes(message)
            self.pipe.send_bytes(pickle.dumps(None))

    def _died(self) -> str:
        how = how_it_ended(self.process.wait())
        return f"the learning process {how}. Go on from the run's latest checkpoint with plaudit train --resume."


class _Alone(Exception):
    """The acting process is gone."""


class _Line:
    """The learning process' end of the pipe.

    Args:
        handle: Its descriptor.
    """

    def __init__(self, handle: int) -> None:
        self.pipe: Connection[Any, Any] = Connection(handle)
        self.parent = os.getppid()

    def send(self, message: Any) -> None:
        """Says something to the acting process."""
        try:
            self.pipe.send_bytes(pickle.dumps(message))
        except (BrokenPipeError, ConnectionResetError):
            raise _Alone from None

    def receive(self) -> Any:
        """The next message."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise _Alone from None

    def waits(self, seconds: float = 0.0) -> bool:
        """Whether there is a message."""
        if os.getppid() != self.parent:  # Others may hold the other end of the pipe too, and outlive it.
            raise _Alone
        return self.pipe.poll(seconds)


class _LogLine(logging.handlers.QueueHandler):
    """Has log records shown by the acting process."""

    def __init__(self, line: _Line) -> None:
        super().__init__(queue.SimpleQueue())
        self.line = line

    def enqueue(self, record: logging.LogRecord) -> None:
        self.line.send(record)


def work(pipe: int, memory: int) -> None:
    """What the process runs."""
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The acting process is told too, and says what is saved before the end.
    line = _Line(pipe)
    try:
        begin: Begin = line.receive()
        logger.setLevel(begin.level)
        logger.propagate = False
        logger.addHandler(_LogLine(line))
        sys.path[:] = begin.path
        for module in begin.imports:
            importlib.import_module(module)
        claim_threads(begin.job.threads)
        keep_freed_memory()
        if begin.job.steps_back:
            give_way()
        _serve(Learner(begin.job, SharedMemory(memory, begin.places)), line)
    except _Alone:
        logger.handlers = [logging.StreamHandler()]
        logger.error("plaudit: the acting process is gone, and learning ends. Go on with plaudit train --resume.")
        os._exit(1)
    except PlauditError as error:
        line.send(LearnerFailure(str(error)))
    except Exception as error:
        line.send(LearnerFailure(f"{type(error).__name__}: {error}", traceback.format_exc()))


def _serve(learner: Learner, line: _Line) -> None:
    """Learns and writes what it is asked to, until it is told to end."""
    exchange = learner.exchange
    while True:
        while line.waits():
            wish = line.receive()
            if wish is None:
                return
            learner.save(wish)
            line.send(Saved())
        if not learner.learn():
            started = time.perf_counter()
            line.waits(PAUSE)
            if exchange.updates and not exchange.resting:
                exchange.idle += time.perf_counter() - started
