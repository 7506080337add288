"""Examines a data set before a fit does: what is broken, mislabelled or leaking, where, and what to do about it."""

from plaudit.data.doctor.checks import Diagnosis, diagnose
from plaudit.data.doctor.issues import KINDS, LOOK, SPOILS, Finding, Spot

__all__ = ["KINDS", "LOOK", "SPOILS", "Diagnosis", "Finding", "Spot", "diagnose"]
