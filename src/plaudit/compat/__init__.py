"""Adapters for RLinf's and EmbodiChain's config keys, checkpoints and class names."""
