"""What every part of the config tree is written with."""

from __future__ import annotations

from typing import Any

REQUIRED: Any = "???"
"""Default of a key that the user must give (Hydra's and OmegaConf's spelling)."""


def require(ok: bool, key: str, why: str) -> None:
    """Raises the `ValueError("key: why")` that `convert.fill` turns into a message with file and dotted key."""
    if not ok:
        raise ValueError(f"{key}: {why}")
