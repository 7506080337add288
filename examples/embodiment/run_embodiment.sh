#!/usr/bin/env bash
# Does what a config of config/ says, by its name; config/ are the recipes that come with Plaudit.
#   bash examples/embodiment/run_embodiment.sh maniskill_ppo_cnn [key=value ...]
# PYTHON=... names another Python than the one in the PATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name="${1:?usage: run_embodiment.sh CONFIG [key=value ...]}"
exec "${PYTHON:-python}" "$here/train_embodied_agent.py" --config-path "$here/config" --config-name "$name" "${@:2}"
