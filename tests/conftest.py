"""What every test begins with."""

from __future__ import annotations

import pytest

from plaudit.utils import threads


@pytest.fixture(autouse=True)
def nothing_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test's training claimed for our kernels would outlast it: they have as many threads as torch."""
    monkeypatch.setattr(threads, "_of_kernels", 0)
