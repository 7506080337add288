"""Train a reward model."""
