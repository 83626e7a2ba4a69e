"""Every feature of the known systems has a row in `docs/conformance.md`, with a state and tests that exist."""

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
ROWS = re.findall(r"^\| (F\d{3}-\d{2}) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
UNFINISHED = ("partly", "missing")
STATES = ("works", "different on purpose", *UNFINISHED)
OWN_FILE = "api/test_known_systems.py"
ENTRY_POINTS = (
    "api/", "gateway/", "hosts/", "consumers/", "console/", "browser/", "admin/", "management/",
    "development/management/", "demo/", "supervisor/",
    "engine/test_library.py",
)  # fmt: skip
"""Where tests come in as clients and people do; the last one is the interface of the library."""


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


def problems_of(state: str, evidence: str) -> list[str]:
    """What a row says or names that is not so."""
    named = re.findall(r"`([^`]+)`", evidence)
    tests = [
        name if "::" in name else f"{OWN_FILE}::{name}" for name in named if re.search(r"\btest_\w+$", name)
    ]
    missing = [name for name in tests if name.split("::")[1] not in functions_of(name.split("::")[0])]
    missing += [name for name in named if re.fullmatch(r"\d{3}-\d{2}", name) and name not in scenarios()]
    if not any(name.startswith(ENTRY_POINTS) for name in tests):
        missing.append("no test that comes in as a client or a person does")
    if state not in STATES:
        missing.append(f"unknown state {state!r}")
    if state != "works" and not re.match(r"[A-Z][^`]{15}", evidence):
        missing.append("no reason")
    return missing


def test_every_feature_has_one_row_in_order():
    assert [row[0] for row in ROWS] == [
        f"{system}-{number:02}" for system, count in FEATURES.items() for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("feature", "state", "evidence"), ROWS)
def test_a_row_has_a_state_and_names_tests_that_exist(feature, state, evidence):
    assert problems_of(state, evidence) == []


def test_few_features_are_partly_there_or_missing():
    assert len([row for row in ROWS if row[1] in UNFINISHED]) <= 8


def test_every_scenario_shows_some_feature():
    assert scenarios() - set(re.findall(r"`(\d{3}-\d{2})`", PAGE)) == set()


HELP = "`test_help_names_every_documented_setting_and_a_wrong_command_what_is_allowed`"


@pytest.mark.parametrize(
    ("state", "evidence"),
    [
        ("works", ""),
        ("works", "later"),
        ("works", "`000-01`"),
        ("works", f"`000-99`, {HELP}"),
        ("works", f"`engine/test_fold.py::test_none`, {HELP}"),
        ("works", "`api/none.py::test_x`"),
        ("works", "`engine/test_snapshot.py::test_a_stored_session_continues_like_one_that_never_was`"),
        ("partly", HELP),
        ("missing", f"No. {HELP}"),
        ("nearly", HELP),
    ],
)
def test_a_row_that_is_not_so_is_noticed(state, evidence):
    assert problems_of("works", HELP) == problems_of("missing", f"This is an idea only. {HELP}") == []
    assert problems_of(state, evidence)
