"""Every feature of the known systems has a row in `docs/conformance.md`, and everything that the rows name exists."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "conformance.md").read_text(encoding="utf-8")
FEATURES = {"F000": 30, "F001": 27, "F002": 18, "F003": 21, "F004": 18}
ROWS = re.findall(r"^\| (F\d{3}-\d{2}) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)


@cache
def functions_of(file: str) -> frozenset[str]:
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def scenarios() -> frozenset[str]:
    files = (TESTS / "scenarios" / name for name in ("seeds.json", "seeds_more.json"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["scenarios"]]
    return frozenset(row["id"][:6] for row in rows)


def problems_of(evidence: str) -> list[str]:
    """What a cell names that does not exist, or that it names nothing."""
    named = re.findall(r"`([^`]+)`", evidence)
    tests = [name.split("::") for name in named if "::" in name]
    played = [name for name in named if re.fullmatch(r"\d{3}-\d{2}", name)]
    missing = [f"{file}::{test}" for file, test in tests if test not in functions_of(file)]
    missing += [name for name in played if name not in scenarios()]
    if not (tests or played or re.match(r"Missing: .{20}", evidence)):
        missing.append("neither a test nor a reason")
    return missing


def test_every_feature_has_one_row_in_order():
    assert [row[0] for row in ROWS] == [
        f"{system}-{number:02}" for system, count in FEATURES.items() for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("feature", "evidence"), [(row[0], row[2]) for row in ROWS])
def test_a_row_names_tests_that_exist_or_says_why_there_is_none(feature, evidence):
    assert problems_of(evidence) == []


def test_every_scenario_shows_some_feature():
    assert scenarios() - set(re.findall(r"`(\d{3}-\d{2})`", PAGE)) == set()


@pytest.mark.parametrize(
    "evidence",
    ["", "later", "Missing: no", "`000-99`", "`engine/test_fold.py::test_none`", "`engine/none.py::test_x`"],
)
def test_a_row_without_evidence_is_noticed(evidence):
    assert problems_of(evidence)
