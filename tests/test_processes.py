"""How processes end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plaudit.utils.subprocesses import how_it_ended, see_off


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (3, "ended with code 3"),
        (-11, "was ended by SIGSEGV"),
        (-9, "was ended by SIGKILL, perhaps for want of memory"),
    ],
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


def test_who_does_not_go_is_ended_by_force() -> None:
    goes = subprocess.Popen([sys.executable, "-c", ""])
    assert see_off(goes, 60.0) and goes.returncode == 0
    stays = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not see_off(stays, -1.0) and stays.returncode == -9
    assert stays.stdin is not None
    stays.stdin.close()
