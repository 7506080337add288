"""The task that docs/tasks.md writes as an example works."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from plaudit.envs import build_env
from plaudit.envs.testing import check_saved_state, check_spaces, check_steps

DOCS = Path(__file__).parents[3] / "docs" / "tasks.md"


def test_own_task_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine_of_the_docs.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("mine_of_the_docs")
    for check in (check_spaces, check_steps, check_saved_state):
        check(lambda num_envs: build_env("LiftCube", {"num_envs": num_envs, "height": 0.15}, threads=1))


def test_pictures_of_the_docs_are_there_and_small() -> None:
    for name in re.findall(r"\]\((images/\w+\.png)\)", DOCS.read_text(encoding="utf-8")):
        assert 5_000 < (DOCS.parent / name).stat().st_size < 200_000
