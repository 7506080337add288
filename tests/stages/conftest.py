"""What the tests of the audit share."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_samples import prepare


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose reward model is wrong; no curves are drawn, which takes longer than the run."""
    monkeypatch.setattr("plaudit.reporting.learning_curves.plot_curves", lambda *arguments: None)
    return prepare(tmp_path)
