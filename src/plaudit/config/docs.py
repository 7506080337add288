"""The keys of a config dataclass, with what their comments say: documentation from the one place that has it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from dataclasses import dataclass
from typing import Any

from plaudit.config.structured import default_of, is_required, to_dict, type_hints, type_text


@dataclass(frozen=True)
class Key:
    """One key of a config dataclass.

    Attributes:
        key: Its name; `section.name` for one of a nested dataclass.
        type: Its type in words.
        default: Its default as plain data, `None` where it is required.
        required: Whether the user must give it.
        doc: The comment behind it in the source.
    """

    key: str
    type: str
    default: Any
    required: bool
    doc: str


def describe(cls: type) -> list[Key]:
    """All keys of the dataclass `cls` in their order; nested dataclasses are spread out."""
    hints, docs = type_hints(cls), comments(cls)
    rows: list[Key] = []
    for field in dataclasses.fields(cls):
        hint, default = hints[field.name], default_of(field)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            rows += [dataclasses.replace(row, key=f"{field.name}.{row.key}") for row in describe(hint)]
        elif field.init:
            required = is_required(default)
            value = None if required else to_dict(default)
            rows.append(Key(field.name, type_text(hint), value, required, docs.get(field.name, "")))
    return rows


def comments(cls: type) -> dict[str, str]:
    """Field name to the `# comment` on its line, parents' fields included; nothing where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # typed into an interpreter
            continue
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        lines = {t.start[0]: t.string.lstrip("# ").strip() for t in tokens if t.type == tokenize.COMMENT}
        body = ast.parse(source).body[0]
        for node in getattr(body, "body", []):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = lines.get(node.end_lineno or node.lineno, "")
    return found
