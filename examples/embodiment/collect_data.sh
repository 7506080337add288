#!/usr/bin/env bash
# Collects episodes as transitions in logs/<timestamp>/data.pkl, which process_realworld_data.py reads.
#   bash examples/embodiment/collect_data.sh [CONFIG] [key=value ...]
# CONFIG is one of config/, by default the simulated peg_insertion with its scripted experts.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name=peg_insertion
if [[ $# -gt 0 && "$1" != *=* && "$1" != -* ]]; then
    name="$1"
    shift
fi
config="$here/config/$name.yaml"
[[ -f "$config" ]] || config="$name"
keys=reward.data_collection
exec "${PYTHON:-python}" -m plaudit collect "$config" \
    "$keys.save_dir=logs/$(date +%Y%m%d-%H%M%S)" "$keys.format=realworld_raw" "$keys.frames_per_episode=null" \
    "$keys.max_positive_trajectories=20" "$keys.max_negative_trajectories=20" "$@"
