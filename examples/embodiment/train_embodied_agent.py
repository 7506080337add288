"""Trains a policy by a config, or whatever else the config says: collects on the way, fits a reward model first.

python examples/embodiment/train_embodied_agent.py --config-name maniskill_ppo_cnn [key=value ...]
"""

from __future__ import annotations

import sys

from hydra_entry import run

if __name__ == "__main__":
    sys.exit(run("train", "Train a policy by a config."))
