python examples/embodiment/process_realworld_data.py /path/to/your/input_data.pkl
