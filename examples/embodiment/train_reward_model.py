"""Fits a reward model to the episodes that maniskill_collect_reward_data has collected.

python examples/embodiment/train_reward_model.py --config-name maniskill_train_reward_model
"""

from __future__ import annotations

import sys

from hydra_entry import run

if __name__ == "__main__":
    sys.exit(run("fit", "Fit a reward model by a config.", "maniskill_train_reward_model"))
