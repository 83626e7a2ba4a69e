"""Every number that decides something in the engine says where it comes from: in a line beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "detection" / "engine"
FILES = sorted(ENGINE.rglob("*.py"))
SETTINGS = {"number": 1, "ratio": 1, "Field": 2}
"""Functions that declare a setting, and the place of its default."""
NO_LIMITS = (0, 1)
"""Defaults that turn something off or change nothing."""
COMMENT = re.compile(r"(?:^|  )# (?!fmt:|noqa|type:)")


def unexplained(text: str) -> Iterator[str]:
    """Return the constants of a module, and the defaults of its settings, without a line that explains them."""
    lines, module = text.splitlines(), ast.parse(text)
    for at, node in enumerate(module.body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_number(node.value):
            after = module.body[at + 1] if at + 1 < len(module.body) else None
            has_docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if not (has_docstring or _has_comment(lines, node)):
                yield f"{node.lineno}: {ast.unparse(node)}"
    for part in ast.walk(module):
        if isinstance(part, ast.Call) and _has_limit(part) and not _has_comment(lines, part):
            yield f"{part.lineno}: {ast.unparse(part)[:60]}"


def _is_number(value: ast.expr) -> bool:
    """Return whether a value is a number, or is made of numbers alone."""
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return bool(value.elts) and all(map(_is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _has_limit(call: ast.Call) -> bool:
    place = SETTINGS.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if place is None or len(call.args) <= place or not isinstance(call.args[0], ast.Constant | ast.JoinedStr):
        return False
    default = call.args[place]
    return _is_number(default) and ast.literal_eval(default) not in NO_LIMITS


def _has_comment(lines: list[str], node: ast.stmt | ast.expr) -> bool:
    """Return whether a comment stands above a node, or behind it; one for a tool explains nothing."""
    above = lines[node.lineno - 2].lstrip() if node.lineno > 1 else ""
    return bool(COMMENT.match(above) or COMMENT.search(lines[(node.end_lineno or node.lineno) - 1]))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ENGINE)) for file in FILES])
def test_every_constant_says_where_it_comes_from(file):
    assert list(unexplained(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "MAX = 4",
        "MAX: int = 4",
        "A, B = 4, 5",
        "SIZE = 32 * 1024",
        "LOW = -1",
        "MAX = 4  # noqa: N816",
        "# fmt: off\nMAX = 4",
        "# Of the one above.\nA = 4\nB = 5",
        "number('limit', 4, 2, 100)",
        "x = (\n    ratio('share', 0.7, 'Share'),\n)",
        "Field('share', 'float', 0.8)",
    ],
)
def test_a_constant_without_a_line_is_found(text):
    assert len(list(unexplained(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "# As the proxy.\nMAX = 4",
        "MAX = 4  # as the proxy",
        "MAX = 4\n'''As the proxy.'''",
        "NAME = 'four'",
        "SIZE = len(NAME)",
        "x = (\n    # As the proxy.\n    number('limit', 4, 2, 100),\n)",
        "number('limit', 0, 0, 100)",
        "def function():\n    count = 4",
    ],
)
def test_what_is_explained_or_no_constant_is_not(text):
    assert list(unexplained(text)) == []
