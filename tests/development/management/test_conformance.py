"""`manage.py conformance`."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

FOLDER = Path(__file__).parents[2] / "scenarios"


def run(*arguments):
    out = StringIO()
    code: Any = 0
    try:
        call_command("conformance", *map(str, arguments), stdout=out)
    except SystemExit as stop:
        code = stop.code
    return code, out.getvalue().splitlines()


def test_both_kinds_of_file_are_played_and_counted():
    code, lines = run(
        FOLDER / "seeds.json", FOLDER / "seeds_more.json", FOLDER / "agents.json", FOLDER / "patterns.json"
    )

    assert (code, lines) == (0, ["243 passed, 0 failed"])


def test_a_scenario_that_fails_is_named_with_the_reason_and_the_exit_code_is_one(tmp_path):
    document = json.loads((FOLDER / "seeds.json").read_text(encoding="utf-8"))
    scenario = next(one for one in document["scenarios"] if one["id"] == "000-26-max-repeats-two")
    scenario["expect"]["detections"][0]["count"] = 3
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"format": 1, "scenarios": [scenario]}), encoding="utf-8")

    code, lines = run(path)

    assert code == 1
    assert lines == ["000-26-max-repeats-two: call 1 count: expected 3, got 2", "0 passed, 1 failed"]


def test_what_each_scenario_got_can_be_written(tmp_path):
    report = tmp_path / "report.json"
    run(FOLDER / "agents.json", "--json", report)

    assert json.loads(report.read_text(encoding="utf-8"))["gemini-five-identical"]["passed"]


@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"format": "other/1", "scenarios": [{"id": 1}]}'])
def test_another_kind_of_file_is_rejected(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CommandError, match=r"other\.json"):
        run(path)
