"""Every promise has a row in `docs/promises.md`, and every test that a row names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
PROMISES = {"REL": 39, "SEC": 40, "J": 9}
ROWS = re.findall(r"^\| ([A-Z]+-\d{2}) \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / file if file.startswith("clients/") else ROOT / "tests" / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def problems_of(evidence: str) -> list[str]:
    """What a cell names that does not exist, or that it names nothing."""
    tests = [name.split("::") for name in re.findall(r"`([^`]+::[^`]+)`", evidence)]
    missing = [f"{file}::{test}" for file, test in tests if test not in functions_of(file)]
    if not tests and not re.match(r"Not tested: .{20}", evidence):
        missing.append("neither a test nor a reason")
    return missing


def test_every_promise_has_one_row_in_order():
    assert [row[0] for row in ROWS] == [
        f"{kind}-{number:02}" for kind, count in PROMISES.items() for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("promise", "evidence"), ROWS)
def test_a_promise_names_tests_that_exist_or_says_why_there_is_none(promise, evidence):
    assert problems_of(evidence) == []


@pytest.mark.parametrize("evidence", ["", "later", "Not tested: no", "`engine/test_fold.py::test_none`"])
def test_a_promise_without_evidence_is_noticed(evidence):
    assert problems_of(evidence)
