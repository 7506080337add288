bash examples/embodiment/collect_data.sh
