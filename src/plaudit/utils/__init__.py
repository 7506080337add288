"""Shared helpers for every other package: files, threads, processes, random state."""
