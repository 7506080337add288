"""Describe exit codes of child processes, and wait for them to end."""

from __future__ import annotations

import signal
import subprocess


def how_it_ended(code: int) -> str:
    """Describe an exit code, as the predicate of a sentence on the process."""
    if code >= 0:
        return f"ended with code {code}"
    cause = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{cause}"


def see_off(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until a process has ended, and kill it after `seconds`.

    Returns:
        Whether the process ended by itself.
    """
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
