python -m embodichain.agents.rl.train --config configs/agents/rl/push_cube/train_config.json
