"""Helpers that every other package may use: files, threads, processes, random state."""
