"""Reward models: images in, success probability out."""
