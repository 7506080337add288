#!/usr/bin/env bash
# Fits a reward model to .npy trajectories.
#   bash examples/embodiment/train_reward_model.sh [--epochs 30 ...]                   by the arguments below; later ones win
#   bash examples/embodiment/train_reward_model.sh train_reward_model [key=value ...]  by a config of config/, and changes
# PYTHON=... names another Python than the one in the PATH.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python}"

if [[ $# -gt 0 && "$1" != -* ]]; then
    exec "$python" "$here/main_reward.py" --config-path "$here/config" --config-name "$1" "${@:2}"
fi

pretrained=()  # Bash before 4.4, which macOS has, takes an empty array for an unset one.
if [[ -f ./resnet10_pretrained.pt ]]; then
    pretrained=(--pretrained-encoder-path ./resnet10_pretrained.pt)
fi
exec "$python" -m plaudit.rewards.train_reward_model \
    --positive-dir ./reward_data/positive \
    --negative-dir ./reward_data/negative \
    --output-checkpoint ./checkpoints/reward_model.pt \
    ${pretrained[@]+"${pretrained[@]}"} \
    --image-key base_camera \
    --image-size 3 64 64 \
    --batch-size 128 \
    --epochs 30 \
    --lr 1e-4 \
    --hidden-dim 256 \
    --num-spatial-blocks 8 \
    "$@"
