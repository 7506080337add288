"""Score frames with a trained reward model."""
