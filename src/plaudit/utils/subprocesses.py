"""Processes that work for this one: how they end, in words, and how they are seen off."""

from __future__ import annotations

import signal
import subprocess


def how_it_ended(code: int) -> str:
    """What an exit code means, as the end of a sentence that begins with the process."""
    if code >= 0:
        return f"ended with code {code}"
    perhaps = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{perhaps}"


def see_off(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits until a process is gone, and ends it by force after some seconds; returns whether it went by itself."""
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
