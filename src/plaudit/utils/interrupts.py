"""Stop a run in good order on Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class GracefulInterrupt:
    """Context manager that turns the first Ctrl-C into a stop request.

    The first Ctrl-C only sets `requested`, so that the work can end in good order; the second one raises
    `KeyboardInterrupt`. SIGTERM, with which clusters and containers end their jobs, is handled in the same way.

    Args:
        message: Text to print on Ctrl-C, for an orderly stop that takes a while.

    Attributes:
        requested: Whether a signal has asked for a stop.
    """

    def __init__(self, message: str | None = None) -> None:
        self.requested = False
        self.message = message
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulInterrupt:
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.message is not None and number == signal.SIGINT:
            # Write to the file descriptor, not to `sys.stderr`: the signal may have interrupted a write to that stream.
            os.write(2, f"\nplaudit: {self.message}\n".encode())
