"""`manage.py evaluate`."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from detection.engine.policy import PRESETS
from tests.management.test_replay import event, write


def label(session, loop, start=None, end=None, origin="inspected"):
    return {
        "source": "own",
        "session": session,
        "loop": loop,
        "label_origin": origin,
        "loop_start_seq": start,
        "loop_end_seq": end,
    }


@pytest.fixture
def files(tmp_path):
    looping = [event(i, "loop") for i in range(6)]
    missed = [event(i, "missed", arguments={"q": i}, result=f"new {i}") for i in range(6)]
    healthy = [event(i, "healthy", arguments={"q": i}, result=f"new {i}") for i in range(6)]
    alarmed = [event(i, "alarmed") for i in range(4)]
    arguable = [event(i, "arguable") for i in range(4)]
    guessed = [event(i, "guessed") for i in range(4)]
    labels = [
        label("loop", True, 0, 5),
        label("missed", True, 0, 5),
        label("healthy", False),
        label("alarmed", False),
        label("arguable", None),
        label("guessed", True, 0, 3, origin="heuristic"),
    ]
    one = write(tmp_path / "a.jsonl", looping + healthy + arguable)
    other = write(tmp_path / "b.jsonl", missed + alarmed + guessed)
    return ["--labels", write(tmp_path / "labels.jsonl", labels), one, other]


def run(*arguments):
    out = StringIO()
    call_command("evaluate", *arguments, stdout=out)
    return out.getvalue()


def test_only_inspected_runs_with_a_yes_or_a_no_count(files):
    report = json.loads(run(*files, "--json"))

    assert {
        name: report[name]
        for name in ("loops", "caught", "healthy", "alarmed", "blocked", "median_delay_calls")
    } == {
        "loops": 2,
        "caught": 1,
        "healthy": 2,
        "alarmed": 1,
        "blocked": 1,
        "median_delay_calls": 2,
    }
    assert report["missed"] == [["own", "missed"]]
    assert report["false_alarms"] == [["own", "alarmed", "repeat", "stop"]]
    assert report["by_kind"]["repeat"] == {"caught": 1, "alarmed": 1, "blocked": 1}
    assert report["by_source"]["own"]["loops"] == 2


def test_calls_after_the_first_block_are_saved(files):
    assert json.loads(run(*files, "--json"))["calls_saved"] == 3


def test_a_policy_that_only_observes_finds_the_same_and_blocks_nothing(files, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"preset": "observe"}', encoding="utf-8")
    report = json.loads(run(*files, "--json", "--policy", str(policy)))

    assert (report["caught"], report["blocked"]) == (1, 0)


def test_people_get_a_table_with_the_biases_beside_it(files):
    text = run(*files)

    assert "1/2 50%" in text
    assert "missed:" in text
    assert text.count("Bias: ") == 4


def test_every_preset_is_measured_on_the_same_runs(files):
    report = json.loads(run(*files, "--json", "--presets"))

    assert report["by_preset"].keys() == PRESETS.keys()
    assert report["by_preset"]["standard"]["caught"] == report["caught"]
    assert (report["by_preset"]["observe"]["caught"], report["by_preset"]["observe"]["blocked"]) == (1, 0)
    assert "preset" not in run(*files)
    rows = {line.split()[0] for line in run(*files, "--presets").splitlines() if line}
    assert rows >= PRESETS.keys()


def test_recall_is_also_given_without_the_source_that_has_most_loops(files, tmp_path):
    source = {"source": "second"}
    more = write(tmp_path / "c.jsonl", [event(i, "more") | source for i in range(6)])
    told = write(
        tmp_path / "both.jsonl",
        [label("loop", True, 0, 5), label("missed", True, 0, 5), label("more", True, 0, 5) | source],
    )
    lines = run("--labels", told, *files[2:], more).splitlines()

    assert next(line for line in lines if line.startswith("all")).split()[1:3] == ["2/3", "67%"]
    assert next(line for line in lines if line.startswith("without own")).split()[2:4] == ["1/1", "100%"]
