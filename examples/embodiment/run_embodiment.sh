#!/usr/bin/env bash
# Runs a config of config/, or a shipped recipe, by its name:
#   bash examples/embodiment/run_embodiment.sh maniskill_train_resnet_reward [key=value ...]
# Configs that fit a reward model or collect data say so in their names; all others train a policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export EMBODIED_PATH="${EMBODIED_PATH:-$here}"
name="${1:?usage: run_embodiment.sh CONFIG [key=value ...]}"
config="$here/config/$name.yaml"
[[ -f "$config" ]] || config="$name"

case "$name" in
    *train*reward*) command=fit ;;
    *collect*) command=collect ;;
    *) command=train ;;
esac
exec "${PYTHON:-python}" -m plaudit "$command" "$config" "${@:2}"
