"""Carries out blocks of shell: by bash up to where Python begins, and from there on in this process."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plaudit.cli import main
from plaudit.rewards import train_reward_model

GUIDES = Path(__file__).parent
ROOT = GUIDES.parents[1]


@dataclass(frozen=True)
class Shell:
    """A checkout to work in. Its `python` only notes its arguments, which are then carried out in this process."""

    home: Path
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @classmethod
    def open(cls, home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
        """Makes the checkout, and goes there."""
        for folder in ("examples", "configs"):
            shutil.copytree(ROOT / folder, home / folder)
        python = home / "bin" / "python"
        python.parent.mkdir()
        python.write_text('#!/bin/sh\nprintf "%s\\0" "$PWD" "$@" > "$NOTES/$(ls "$NOTES" | wc -l)"\n')
        python.chmod(0o755)
        patch.setenv("EMBODIED_PATH", "")
        patch.delenv("EMBODIED_PATH")  # The scripts set it, and it goes again with the test.
        patch.chdir(home)
        return cls(home, patch, capsys)

    def noted(self, block: str, **replaced: str) -> list[list[str]]:
        """The folder and the arguments of each `python` that a block of shell starts."""
        notes = self.home / "notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        text = (GUIDES / block).read_text()
        for old, new in replaced.items():
            text = text.replace(f"/path/to/{old}", new)
        place = {"PATH": f"{self.home / 'bin'}:/usr/bin:/bin", "NOTES": str(notes)}
        subprocess.run(["bash", "-euc", text], cwd=self.home, env={"PYTHONPATH": "", **place}, check=True)
        return [file.read_text().split("\0")[:-1] for file in sorted(notes.iterdir())]

    def run(self, command: list[str], *words: str) -> dict[str, Any]:
        """Carries out one of them with words added, and returns what `--json` prints."""
        folder, first, *rest = command
        self.patch.chdir(folder)
        self.capsys.readouterr()
        if first == "-m":
            module, *rest = rest
            entry = train_reward_model.main if module.endswith("train_reward_model") else main
            start = ["train"] if module == "embodichain.agents.rl.train" else []
            code = entry([*start, *rest, *words])
        else:
            code = self._script(Path(first), [*rest, *words])
        self.patch.chdir(self.home)
        out, err = self.capsys.readouterr()
        assert code == 0, err
        return dict(json.loads(out.splitlines()[-1])) if "--json" in words else {}

    def _script(self, path: Path, words: list[str]) -> Any:
        self.patch.syspath_prepend(path.resolve().parent)
        self.patch.delitem(sys.modules, "hydra_entry", raising=False)
        self.patch.setattr(sys, "argv", [str(path), *words])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            return end.code
        return 0
