"""Every promise has a row in `docs/promises.toml`, and tests that are marked with it or a reason why there are none.

That the page is written from both is a check of generated files.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8"))["promise"]
ROWS = re.findall(
    r"^\| ([A-Z]+-\d{2}) \|.*\| ([^|]+) \|$",
    (ROOT / "docs" / "promises.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_promises_are_numbered_without_gaps():
    numbers: dict[str, list[int]] = {}
    for one in PROMISES:
        kind, _, number = one["id"].partition("-")
        numbers.setdefault(kind, []).append(int(number))
    assert {kind: [*range(1, len(known) + 1)] for kind, known in numbers.items()} == numbers
    assert [one["id"] for one in PROMISES] == [row[0] for row in ROWS]


@pytest.mark.parametrize(("promise", "evidence"), ROWS)
def test_a_promise_has_tests_or_says_why_there_are_none(promise, evidence):
    assert re.search(r"`[^`]+::test_[^`]+`", evidence) or re.match(r"Not tested: .{20}", evidence)
