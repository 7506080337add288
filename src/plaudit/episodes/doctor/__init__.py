"""Examines a data set before a fit does: what is broken, mislabelled or leaking, where, and what to do about it."""

from plaudit.episodes.doctor.examine import Diagnosis, diagnose
from plaudit.episodes.doctor.findings import KINDS, LOOK, SPOILS, Finding, Spot

__all__ = ["KINDS", "LOOK", "SPOILS", "Diagnosis", "Finding", "Spot", "diagnose"]
