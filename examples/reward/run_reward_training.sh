#!/usr/bin/env bash
# Fits a reward model to real-world episodes, with seed 002's arguments:
#   bash examples/reward/run_reward_training.sh --data /path/to/collected_data [key=value ...]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "${PYTHON:-python}" -m plaudit fit --config "$here/config/reward_training.yaml" "$@"
