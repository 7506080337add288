"""Policies and their action distributions."""
