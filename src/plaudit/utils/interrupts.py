"""Stop a run in good order on Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class GracefulInterrupt:
    """While inside, the first Ctrl-C only sets `requested`, so that work can end in good order; the second one raises.

    SIGTERM, by which clusters and containers end their jobs, does the same.

    Args:
        message: Printed on Ctrl-C, if an orderly stop takes a while.
    """

    def __init__(self, message: str | None = None) -> None:
        self.requested = False
        self.message = message
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> GracefulInterrupt:
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self.message is not None and number == signal.SIGINT:
            # To stderr, but not through the stream: this may have interrupted whoever is writing to that.
            os.write(2, f"\nplaudit: {self.message}\n".encode())
