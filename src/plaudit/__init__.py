"""Plaudit trains robots from what success looks like."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

# Imported when first asked for, so that `import plaudit` and `plaudit --help` stay fast.
_PUBLIC = {
    "Config": "plaudit.config.schema",
    "ConfigError": "plaudit.errors",
    "PlauditError": "plaudit.errors",
    "load_config": "plaudit.config.loader",
    "load_episodes": "plaudit.data.formats",
}

__all__ = ["Config", "ConfigError", "PlauditError", "__version__", "load_config", "load_episodes"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'plaudit' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
