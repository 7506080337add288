"""Measure a reward model on held-out episodes."""
