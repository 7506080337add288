"""Report the available memory."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_memory() -> int | None:
    """Bytes that may be taken without swapping (a container's limit included); `None` where the system does not say."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        found.append(_numbers("/proc/meminfo")["MemAvailable:"] * 1024)
    with contextlib.suppress(OSError, KeyError, ValueError):
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text()) - _numbers(group / "memory.stat")["inactive_file"]
        found.append(int((group / "memory.max").read_text()) - used)
    return max(0, min(found)) if found else None


def _numbers(path: str | Path) -> dict[str, int]:
    """First words of the lines of a file to the numbers after them."""
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
