"""Processes a raw data.pkl of a real robot: python examples/embodiment/process_realworld_data.py /path/input_data.pkl.

Steps in which the robot stands still are left out. The episodes go to `collected_data/` beside the input.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from plaudit.errors import PlauditError
from plaudit.pipelines import process_realworld

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} /path/to/input_data.pkl")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        process_realworld(Path(sys.argv[1]))
    except PlauditError as error:
        sys.exit(f"error: {error}")
