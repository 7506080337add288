"""Compare the reward model with the ground truth during training."""
