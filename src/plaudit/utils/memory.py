"""Report the available memory."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping.

    A container's limit is taken into account. The result is `None` if the system does not report its memory.
    """
    limits = []

    # The machine: Linux reports kibibytes.
    with contextlib.suppress(OSError, KeyError):
        limits.append(_numbers("/proc/meminfo")["MemAvailable:"] * 1024)

    # The container: the kernel drops inactive file pages under pressure, so that they do not count as used.
    with contextlib.suppress(OSError, KeyError, ValueError):
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text()) - _numbers(group / "memory.stat")["inactive_file"]
        limits.append(int((group / "memory.max").read_text()) - used)

    return max(0, min(limits)) if limits else None


def _numbers(path: str | Path) -> dict[str, int]:
    """Map the first word of each line of a file to the number after it."""
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
