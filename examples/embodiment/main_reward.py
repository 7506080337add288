"""Fits a reward model to .npy trajectories by a config.

python examples/embodiment/main_reward.py --config-path examples/embodiment/config --config-name train_reward_model
"""

from __future__ import annotations

import sys

from hydra_entry import run

if __name__ == "__main__":
    sys.exit(run("fit", "Fit a reward model by a config.", "train_reward_model"))
