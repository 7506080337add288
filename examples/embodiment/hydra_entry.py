"""What the entry scripts beside this one have in common: Hydra's arguments, over our command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from plaudit.cli import main

HERE = Path(__file__).resolve().parent


def run(command: str, about: str, config_name: str | None = None) -> int:
    """Runs `plaudit <command>` with the config that Hydra's arguments name, and returns its exit code.

    Args:
        command: One of plaudit's.
        about: What the script says of itself.
        config_name: The config where none is named.
    """
    os.environ.setdefault("EMBODIED_PATH", str(HERE))
    more = f"All else is for 'plaudit {command}': key=value, --quiet, --json ..."
    parser = argparse.ArgumentParser(description=about, epilog=more, allow_abbrev=False)
    where = "folder of configs; default: the shipped recipes"
    parser.add_argument("--config-path", type=Path, default=HERE / "config", metavar="DIR", help=where)
    default = "" if config_name is None else f"; default: {config_name}"
    needed = config_name is None
    parser.add_argument(
        "--config-name", default=config_name, required=needed, metavar="NAME", help=f"one of them{default}"
    )
    args, rest = parser.parse_known_args()
    folder = args.config_path
    # The guides' own folder need not be there: its configs are recipes of ours.
    if not folder.is_dir() and folder.resolve() != HERE / "config":
        parser.error(f"--config-path: there is no folder '{folder}'")
    names = [args.config_name, *(f"{args.config_name}{suffix}" for suffix in (".yaml", ".yml", ".json"))]
    file = next((folder / name for name in names if (folder / name).is_file()), args.config_name)
    return main([command, str(file), *rest])
