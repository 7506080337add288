#!/usr/bin/env bash
# Fits a reward model to the episodes that process_realworld_data.py has made of a robot's:
#   bash examples/reward/run_reward_training.sh --data /path/to/collected_data [key=value ...]
# PYTHON=... names another Python than the one in the PATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "${PYTHON:-python}" -m plaudit fit --config "$here/config/reward_training.yaml" "$@"
