"""`manage.py evaluate`."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from detection.engine.policy import PRESETS
from development.measuring.quality import interval
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
    assert report["false_alarms"] == [["own", "alarmed", "repeat", "block"]]
    assert report["by_kind"]["repeat"] == {"caught": 1, "alarmed": 1, "blocked": 1}
    assert report["by_source"]["own"]["loops"] == 2


def test_calls_after_the_first_block_are_saved(files):
    assert json.loads(run(*files, "--json"))["calls_saved"] == 3


def test_every_share_has_a_confidence_interval(files):
    report = json.loads(run(*files, "--json"))

    # One of two: the interval of Wilson.
    assert report["intervals"]["caught"] == [0.0945, 0.9055]
    assert report["intervals"]["successes_alarmed"] is None
    assert f"{0.0945:.1%} to {0.9055:.1%}" in run(*files)


@pytest.mark.parametrize(
    ("part", "whole", "bounds"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (114, 125, (0.8493, 0.9502))],
)
def test_intervals_are_those_of_wilson(part, whole, bounds):
    assert interval(part, whole) == bounds


OUTCOMES = [True, 1, 1.0, "correct", 0, 0.5, False, None, "halted"]


def test_successful_runs_are_counted_whether_a_person_inspected_them_or_not(tmp_path):
    runs = [event(i, f"r{n}") for n in range(len(OUTCOMES)) for i in range(4)]
    told = [label(f"r{n}", None, origin="none") | {"outcome": one} for n, one in enumerate(OUTCOMES)]
    told[0] = label("r0", False) | {"outcome": True}
    given = ["--labels", write(tmp_path / "labels.jsonl", told), write(tmp_path / "e.jsonl", runs)]
    report = json.loads(run(*given, "--successes", "--json"))

    assert (report["successes"], report["successes_alarmed"], report["successes_blocked"]) == (4, 4, 4)
    assert (report["healthy"], report["loops"]) == (1, 0)
    assert json.loads(run(*given, "--json"))["successes"] == 0
    assert "4/4 100.0%" in run(*given, "--successes")


def test_two_policies_are_compared_run_by_run(files):
    report = json.loads(run(*files, "--compare", "observe", "--json"))

    assert (report["blocked"], report["compared"]["blocked"]) == (1, 0)
    assert report["differences"] == [
        {
            "source": "own",
            "session": "alarmed",
            "label": "healthy",
            "before": "block (repeat)",
            "after": "allow (outcome, repeat)",
        },
        {
            "source": "own",
            "session": "loop",
            "label": "loop",
            "before": "block (repeat)",
            "after": "allow (outcome, repeat, stagnation)",
        },
    ]
    text = run(*files, "--compare", "observe")
    assert "runs that differ: 2" in text
    assert "own  loop  loop: block (repeat) -> allow (outcome, repeat, stagnation)" in text
    assert json.loads(run(*files, "--compare", "standard", "--json"))["differences"] == []


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        (
            [
                "--min-recall",
                "0.5",
                "--max-alarms",
                "0.5",
                "--max-blocked",
                "0.5",
                "--max-success-alarms",
                "0",
            ],
            None,
        ),
        (["--min-recall", "0.6"], "caught 1/2 50.0%, at least 60.0% wanted"),
        (["--max-alarms", "0.4"], "alarmed 1/2 50.0%, at most 40.0% wanted"),
        (["--max-blocked", "0"], "blocked 1/2 50.0%, at most 0.0% wanted"),
    ],
)
def test_given_limits_must_be_kept(files, limits, broken):
    if broken is None:
        run(*files, *limits)
        return
    with pytest.raises(CommandError, match=re.escape(broken)) as error:
        run(*files, *limits)
    assert error.value.returncode == 1


def test_limits_hold_for_every_set_of_labels_by_itself(files, tmp_path):
    more = write(tmp_path / "c.jsonl", [event(i, "more", source="second") for i in range(6)])
    other = write(tmp_path / "other.jsonl", [label("more", True, 0, 5) | {"source": "second"}])
    with pytest.raises(CommandError) as error:
        run(*files, more, "--labels", other, "--min-recall", "0.6")

    # Together they would keep it: two of three.
    assert "labels.jsonl: caught 1/2" in str(error.value)
    assert "other.jsonl" not in str(error.value)


@pytest.mark.parametrize("share", ["2", "-1", "many"])
def test_a_limit_that_is_no_share_is_rejected(files, share):
    with pytest.raises(CommandError, match="min-recall"):
        run(*files, "--min-recall", share)


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


def test_several_label_sets_are_also_counted_by_themselves(files, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    more = write(tmp_path / "c.jsonl", [event(i, "more", source="second") for i in range(6)])
    other = write(folder / "labels.jsonl", [label("more", True, 0, 5) | {"source": "second"}])
    sets = json.loads(run(*files, more, "--labels", other, "--json"))["by_set"]

    assert {name: (one["loops"], one["caught"], one["healthy"]) for name, one in sets.items()} == {
        f"{tmp_path.name}/labels.jsonl": (2, 1, 2),
        "other/labels.jsonl": (1, 1, 0),
    }
    assert "other/labels.jsonl" in run(*files, more, "--labels", other)
