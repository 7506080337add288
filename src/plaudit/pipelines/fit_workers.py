"""The processes of a fit with `ddp` or `fsdp`: started, watched, and ended together.

Each is a Python of its own that does the same job from its own seat. They report through a pipe, which also tells each
end when the other is gone: a worker whose starter has died ends too. What one of them logs is logged here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from plaudit.errors import PlauditError
from plaudit.pipelines.builders import import_users_modules
from plaudit.pipelines.fit import FitJob, carry_out
from plaudit.utils.subprocesses import how_it_ended, see_off
from plaudit.utils.threads import wait_quietly

if TYPE_CHECKING:
    from plaudit.config.schema import FitConfig
    from plaudit.reward_models.training.distributed import Seat
    from plaudit.utils.interrupts import GracefulInterrupt

logger = logging.getLogger("plaudit")

ON_A_CPU = 2
"""Processes where there is no GPU and the config does not say."""

LOOK = 0.5
"""Seconds between looks at whether Ctrl-C was pressed."""

GRACE = 3.0
"""Seconds that the others have, after one has failed, to say why they did, and to end."""

LEAVE = 60.0
"""Seconds that they have to end once all is done: a logger may have something to send."""

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""What workers find in theirs, unless it is set: they are all on this machine, whatever its name stands for."""

CODE = "from plaudit.pipelines.fit_workers import work; work({})"


@dataclass(frozen=True)
class Done:
    """A worker has come to its end."""

    result: dict[str, Any]


@dataclass(frozen=True)
class WorkerFailure:
    """A worker cannot go on.

    Attributes:
        error: Why.
        trace: Where, if that says more than the error.
        weight: Of several failures that with the least is the cause: an error that we raised on purpose, then a sudden
            death; whoever only lost its connection to another has any other error.
        when: Of those with the same weight the first is, in seconds of a clock that all processes share.
    """

    error: BaseException
    trace: str = ""
    weight: int = 0
    when: float = field(default_factory=time.monotonic)


class FitProcess:
    """One process, as its starter sees it.

    Args:
        job: What it is to do.
        seat: Where it sits.
    """

    def __init__(self, job: FitJob, seat: Seat) -> None:
        self.seat = seat
        self.outcome: Done | WorkerFailure | None = None
        self.pipe, theirs = Pipe()
        with _interrupts_wait():
            self.process = _start(theirs.fileno(), shows=seat.rank == 0)
        theirs.close()
        with contextlib.suppress(BrokenPipeError):  # It has died, which `listen` finds out.
            self.pipe.send((job, seat, logger.getEffectiveLevel()))

    def listen(self) -> None:
        """Takes in one message: of its log, or how it ended."""
        try:
            message = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.outcome = WorkerFailure(self._died(), weight=1)
            return
        if isinstance(message, logging.LogRecord):
            logger.handle(message)
        else:
            self.outcome = message

    def _died(self) -> PlauditError:
        how = how_it_ended(self.process.wait())
        return PlauditError(
            f"process {self.seat.rank} of a fit in {self.seat.size} processes {how}. Go on from its last checkpoint, "
            "if it has written one, with plaudit fit --resume."
        )

    def end(self, deadline: float) -> None:
        """Sees that the process is gone, by force once the deadline has passed."""
        see_off(self.process, deadline - time.monotonic())
        self.pipe.close()


def _start(handle: int, shows: bool) -> subprocess.Popen[bytes]:
    """Starts a worker, which has one end of a pipe. Only one of them shows something."""
    return subprocess.Popen(
        [sys.executable, *([] if shows else ["-W", "ignore"]), "-c", CODE.format(handle)],
        pass_fds=[handle],
        env={**ENVIRONMENT, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=_handle(sys.stdout) if shows else subprocess.DEVNULL,
        stderr=_handle(sys.stderr),
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on.
    )


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Holds Ctrl-C back. A process that is started meanwhile begins so too, until it is ready to be interrupted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(stream: TextIO) -> int | None:
    """What a child writes to in place of a stream of ours, which may be redirected."""
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def run_workers(job: FitJob) -> dict[str, Any]:
    """Does a job in several processes on this machine, and returns what the first of them does."""
    from plaudit.reward_models.training.distributed import Seat
    from plaudit.utils.interrupts import GracefulInterrupt

    size = processes(job.config)
    wait_quietly()
    workers: list[FitProcess] = []
    with tempfile.TemporaryDirectory(prefix="plaudit-fit-") as folder, GracefulInterrupt() as interrupt:
        try:
            # They meet at a file: a port might be taken.
            meeting = (Path(folder) / "meeting").as_uri()
            for rank in range(size):
                workers.append(FitProcess(job, Seat(meeting, rank, size, rank, size)))
            return _watch(workers, interrupt)
        finally:
            _end(workers)


def processes(config: FitConfig) -> int:
    """How many processes a fit takes."""
    given = config.reward.training.training_processes
    if given is not None:
        return given
    import torch

    return torch.cuda.device_count() if config.runtime.cuda and torch.cuda.is_available() else ON_A_CPU


def _watch(workers: Sequence[FitProcess], interrupt: GracefulInterrupt) -> dict[str, Any]:
    """Waits until all are done, or raises why one of them is not."""
    told, deadline = False, float("inf")
    while going := {worker.pipe: worker for worker in workers if worker.outcome is None}:
        for pipe in wait(list(going), LOOK):
            assert isinstance(pipe, Connection)
            going[pipe].listen()
        failures = [worker.outcome for worker in workers if isinstance(worker.outcome, WorkerFailure)]
        if failures:
            deadline = min(deadline, time.monotonic() + GRACE)
            if min(failure.weight for failure in failures) == 0 or time.monotonic() > deadline:
                break
        if interrupt.requested and not told:
            told = True
            workers[0].process.send_signal(signal.SIGINT)  # The first one lets the others know.
    _raise_cause(workers)
    first = workers[0].outcome
    assert isinstance(first, Done)
    return first.result


def _raise_cause(workers: Sequence[FitProcess]) -> None:
    """Raises the failure that the others came of, if there is any."""
    failed = [(worker, worker.outcome) for worker in workers if isinstance(worker.outcome, WorkerFailure)]
    if not failed:
        return
    worker, cause = min(failed, key=lambda pair: (pair[1].weight, pair[1].when))
    if cause.trace:
        logger.error("%s", cause.trace)
        seat = worker.seat
        raise PlauditError(f"process {seat.rank} of a fit in {seat.size} processes failed: {cause.error}")
    raise cause.error


def _end(workers: Sequence[FitProcess]) -> None:
    """Leaves no process behind."""
    for worker in workers:
        if not isinstance(worker.outcome, Done):
            worker.process.terminate()
    well = all(isinstance(worker.outcome, Done) for worker in workers)
    deadline = time.monotonic() + (LEAVE if well else GRACE)
    for worker in workers:
        worker.end(deadline)


class _ToStarter:
    """A queue for log records that leads to the starter."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self.pipe = pipe

    def put_nowait(self, record: logging.LogRecord) -> None:
        self.pipe.send(record)


def work(handle: int) -> None:
    """What a worker runs: the job that it is sent."""
    pipe: Connection[Any, Any] = Connection(handle)
    job, seat, level = pipe.recv()
    threading.Thread(target=_follow, args=(pipe,), daemon=True).start()
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(logging.handlers.QueueHandler(_ToStarter(pipe)))  # type: ignore[arg-type]
    pipe.send(_outcome(job, seat))


def _follow(pipe: Connection[Any, Any]) -> None:
    """Ends this process when its starter is gone, which sends nothing more."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)


def _outcome(job: FitJob, seat: Seat) -> Done | WorkerFailure:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        import_users_modules(job.config)
        return Done(carry_out(job, seat))
    except (PlauditError, KeyboardInterrupt) as error:
        return WorkerFailure(error)
    except Exception as error:
        return WorkerFailure(RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc(), weight=2)
