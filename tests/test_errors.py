"""Words that help after a wrong word."""

from __future__ import annotations

from plaudit.errors import listed, nearest


def test_nearest() -> None:
    assert nearest("rendr", ["render", "eye"]) == " Did you mean 'render'?"
    assert nearest("xyz", ["render", "eye"]) == " Known: eye, render."
    assert nearest("xyz", []) == ""


def test_listed() -> None:
    assert listed("rendr", ("render", "eye")) == "render, eye. Did you mean 'render'?"
    assert listed("xyz", ("render", "eye")) == "render, eye."
    assert listed("xyz", ()) == "none."
