"""Fits a reward model from a config file, with seed 003's arguments.

python examples/embodiment/main_reward.py --config-path examples/embodiment/config --config-name train_reward_model
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plaudit.cli import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-path", type=Path, default=Path(__file__).parent / "config", help="folder of configs")
    parser.add_argument("--config-name", default="train_reward_model", help="a config in it, without .yaml")
    args, rest = parser.parse_known_args()
    sys.exit(main(["fit", str(args.config_path / f"{args.config_name}.yaml"), *rest]))
