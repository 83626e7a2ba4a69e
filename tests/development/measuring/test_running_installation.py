"""The written scenarios on a running installation: through its interfaces, by the command that people run."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command

from detection.engine.scopes import PROJECT
from detection.models import GatewayBackend, Override, Project
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from detection.services.policies import overrides
from development.measuring import report_scenarios as reports
from loopguard_site.supervisor.addresses import free_port
from tests.reliability.installation import Installation
from tests.support.closed_port import closed_port

FOLDER = Path(__file__).parents[2] / "scenarios"
FILES = ("seeds.json", "seeds_more.json", "agents.json")
SKIPPED = {
    "000-17-disabled-tracks-nothing": "asks how many calls the engine remembers",
    "000-22-chance-shorthand": "needs an installation with the settings mode=chance_then_break",
    "000-29-env-parsing": "needs an installation with the settings enabled=True, max_repeats=6, mode=break",
    "001-23-callback-overrides": "asks a callback",
    "001-24-callback-can-stop-early": "asks a callback",
    "002-11-log-record": "asks for a line of the log",
    "003-13-signatures-are-independent": "asks for counts of calls",
}
"""What is skipped through the guard where nothing is set, and why. Those of the environment have a test of their own."""
ENVIRONMENTS = {
    "000-22-chance-shorthand": {"TOOL_LOOP_MODE": "chance"},
    # LoopGuard does not start with a variable that it cannot read; the original system ignored that of the time window.
    "000-29-env-parsing": {
        "TOOL_LOOP_DETECTION_ENABLED": " On ",
        "TOOL_LOOP_MAX_REPEATS": "6",
        "TOOL_LOOP_MODE": "BREAK",
    },
}


class Place:
    """A project on an installation with a test clock, and the command that plays on it."""

    def __init__(self, folder: Path) -> None:
        self.project = Project.objects.create(slug="scenarios", name="Scenarios")
        self.key = create_key(self.project, "test", SYSTEM)[1]
        self.folder, self.clock = folder, folder / "clock"
        self.judge_port, self.model_port = free_port(), free_port()
        self.clock.write_text(str(int(time.time())))
        self.installation: Installation | None = None
        self.url = ""

    def start(self, *, has_worker: bool = False, has_gateway: bool = False, **environment: str) -> None:
        self.installation = Installation(
            os.environ["REDIS_URL"],
            self.folder,
            LOOPGUARD_TEST_CLOCK=str(self.clock),
            LOOPGUARD_JUDGE_URL=f"http://127.0.0.1:{self.judge_port}/v1",
            LOOPGUARD_JUDGE_MODEL="scenario",
            LOOPGUARD_JUDGE_ANSWERS="words",
            LOOPGUARD_KEY_REQUESTS_PER_SECOND="0",
            LOOPGUARD_GATEWAY_UPSTREAMS=f"http://127.0.0.1:{self.model_port}/v1",
            LOOPGUARD_ALERT_ALLOWED_NETWORKS="127.0.0.0/8",
            **environment,
        )
        if has_worker:
            self.installation.start_worker()
        if has_gateway:
            self.installation.start_live()  # before `web`, which names its address
        self.installation.start_web()
        self.url = self.installation.url

    def play(self, *files: Path, **options: str) -> tuple[dict, str, int]:
        """Run the command; return its report, its output and its exit status."""
        written, out, status = self.folder / "report.json", io.StringIO(), 0
        given = {"url": self.url, "key": self.key, "clock": str(self.clock), "json": str(written)}
        words = [
            f"--{name.replace('_', '-')}={value}" for name, value in {**given, **options}.items() if value
        ]
        try:
            call_command("conformance", *map(str, files), *words, stdout=out)
        except SystemExit as end:
            status = int(end.code or 0)
        return json.loads(written.read_text()), out.getvalue(), status


@pytest.fixture
def place(transactional_db: None, tmp_path: Path):
    place = Place(tmp_path)
    yield place
    if place.installation is not None:
        place.installation.stop()


def scenario(file: str, name: str) -> dict:
    rows = json.loads((FOLDER / file).read_text(encoding="utf-8"))["scenarios"]
    return next(row for row in rows if row["id"] == name)


def failed(report: dict) -> dict:
    return {name: one["problems"] for name, one in report.items() if not one.get("passed", True)}


def written(folder: Path, *scenarios: dict) -> Path:
    file = folder / "own.json"
    file.write_text(json.dumps({"scenarios": scenarios}))
    return file


@pytest.mark.timeout(300)  # two thousand requests, and as many commits
def test_all_scenarios_but_a_few_pass_through_the_guard(place):
    place.start(has_worker=True)
    report, out, status = place.play(*(FOLDER / name for name in FILES), judge_port=str(place.judge_port))

    skipped = {name: one["skipped"] for name, one in report.items() if "skipped" in one}
    assert failed(report) == {}
    assert status == 0
    assert skipped.keys() == SKIPPED.keys()
    for name, reason in SKIPPED.items():
        assert skipped[name].startswith(reason)
        assert name in out
    assert len(report) == sum(len(json.loads((FOLDER / name).read_text())["scenarios"]) for name in FILES)
    assert f"{len(report) - len(SKIPPED)} passed, 0 failed, {len(SKIPPED)} skipped" in out
    assert not Override.objects.exists(), "what was set for a scenario is removed"


@pytest.mark.long
def test_the_other_scenarios_pass_through_the_guard_but_those_of_silence(place):
    place.start(has_worker=True)
    files = ("patterns.json", "sessions.json", "families.json", "endings.json", "silence.json")
    report, _, status = place.play(*(FOLDER / name for name in files))

    silent = {one["id"] for one in json.loads((FOLDER / "silence.json").read_text())["scenarios"]}
    assert failed(report) == {}
    assert status == 0
    assert {name for name, one in report.items() if "skipped" in one} == silent


def test_reported_calls_become_the_findings_that_the_scenarios_name(place):
    place.start(has_worker=True)
    rows = json.loads((FOLDER / "seeds.json").read_text(encoding="utf-8"))["scenarios"]
    few = [row for row in rows if row["system"] != "004"]  # those are long, and wait for a judge
    report, _, status = place.play(written(place.folder, *few), through="events")

    reasons = [one["skipped"].partition(",")[0] for one in report.values() if "skipped" in one]
    assert failed(report) == {}
    assert status == 0
    assert len(report) - len(reasons) >= 35
    assert "needs a decision before a call runs" in reasons


@pytest.mark.long
def test_all_scenarios_that_need_no_decision_pass_as_reports(place):
    place.start(has_worker=True)
    report, _, status = place.play(*(FOLDER / name for name in FILES), through="events")

    assert failed(report) == {}
    assert status == 0
    assert sum("passed" in one for one in report.values()) >= 140


def test_a_sample_passes_through_the_gateway(place):
    place.start(has_gateway=True)
    report, _, status = place.play(
        FOLDER / "seeds.json", FOLDER / "seeds_more.json", through="gateway", model_port=str(place.model_port)
    )

    played = {name for name, one in report.items() if "passed" in one}
    assert failed(report) == {}
    assert status == 0
    assert len(played) >= 40
    # A stop with its error, a chance, time windows, commands, scopes, and the end of a budget of rounds.
    assert {name[:6] for name in played} > {
        "000-01",
        "000-12",
        "000-19",
        "000-33",
        "000-30",
        "003-10",
        "003-16",
    }
    assert not GatewayBackend.objects.exists(), "backends are removed"

    wrong = {**scenario("seeds_more.json", "000-01-break-default-fires-on-4th")}
    wrong["expect"] = {
        "first": 3,
        "detections": [{**wrong["expect"]["detections"][0], "finish_reason": "stop"}],
    }
    late = {**scenario("seeds.json", "000-02-three-is-fine"), "config": {"max_repeats": 3}}
    report, _, status = place.play(
        written(place.folder, wrong, late), through="gateway", model_port=str(place.model_port)
    )
    assert status == 1
    assert failed(report) == {
        wrong["id"]: ["finish_reason: expected stop, got error"],
        late["id"]: ["first call that does not reach the agent: expected None, got 2"],
    }


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_scenario_of_the_environment_passes_on_an_installation_that_has_it(place, name):
    place.start(**ENVIRONMENTS[name])
    other = scenario("seeds.json", "000-02-three-is-fine")
    own = next(
        one
        for file in ("seeds.json", "seeds_more.json")
        for one in json.loads((FOLDER / file).read_text())["scenarios"]
        if one["id"] == name
    )
    report, _, status = place.play(written(place.folder, own, other))

    assert status == 0
    assert report[name]["passed"]
    assert report[other["id"]]["skipped"] == "needs an installation without settings in its environment"


BY_PEOPLE = {"c1", "c2"}


@pytest.mark.timeout(300)  # four thousand requests
def test_what_users_reported_comes_out_as_an_expert_would_want(place):
    place.start(has_worker=True, has_gateway=True)
    report, out, _ = place.play(FOLDER / "reports.json", model_port=str(place.model_port))

    assert failed(report) == {}
    assert {name for name, one in report.items() if "skipped" in one} == BY_PEOPLE
    assert "is judged by a person: c1, c2" in out
    assert not Override.objects.exists(), "settings of a case are removed"
    assert not GatewayBackend.objects.exists()


STUCK = {
    "tool": "read_file",
    "args": {"path": "/srv/report.txt"},
    "content": "Error: no such file",
    "is_error": True,
    "times": 10,
}
EXPECTATIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"warn_by": 3, "block_by": 4, "stop_by": 10, "no_warn_before": 3, "no_block_before": 4, "runs": [3]},
        "",
    ),
    ({"incident": {"kind": ["talk", "repeat"], "not_kind": "talk", "at_most": 1}, "reacts_at_least": 99}, ""),
    ({"message_has": ["IDENTICAL"], "message_has_not": ["nobody says this"], "warns_at_most": 1}, ""),
    ({"warn_by": 2}, "expected warn by call 2, got 3 of 8"),
    ({"block_by": 3}, "expected block by call 3, got 4 of 8"),
    ({"stop_by": 4}, "expected stop by call 4, got "),
    ({"no_warn_before": 4}, "expected no warn before call 4, got one at 3"),
    ({"no_block_before": 5}, "expected no block before call 5, got one at 4"),
    ({"never": "finding"}, "expected no finding, got warn at 3"),
    ({"never": "block"}, "expected no block, got one at 4"),
    ({"warns_at_most": 0}, "expected at most 0 warnings, got 1"),
    ({"runs": [3, 4]}, "expected call 4 to run"),
    ({"incident": {"kind": "talk"}}, "expected an incident talk, got repeat"),
    ({"incident": {"not_kind": "repeat"}}, "expected no incident repeat, got repeat"),
    ({"incident": {"at_most": 0}}, "expected at most 0 incidents, got repeat"),
    ({"message_has": ["nobody says this"]}, "expected a message with 'nobody says this'"),
    ({"message_has_not": ["IDENTICAL"]}, "expected no message with 'IDENTICAL'"),
    ({"colour": "red"}, "unknown expectation 'colour'"),
]
"""Of a call that is warned about at the third time, blocked from the fourth on and ends the run at the eighth; and how it differs."""


def reported(name: str, expect: dict, *steps: dict, **more: object) -> dict:
    return {"id": name, "door": "guard", "agent": "a", "steps": [*steps] or [STUCK], "expect": expect, **more}


def test_each_expectation_of_a_reported_run_is_compared_through_every_entry_point(place):
    place.start(has_worker=True)
    cases = [reported(f"e{number}", expect) for number, (expect, _) in enumerate(EXPECTATIONS)]
    claude = {"door": "hooks/claude-code"}
    quiet = {"reacts_at_least": 1}, {**STUCK, "times": 2}
    resumed = {"api": ["POST", "/sessions/{session}/resume", {}]}
    cases += [
        reported("hooks", {"warn_by": 3, "block_by": 4}, **claude),
        reported("hooks-wrong", {"never": "finding"}, **claude),
        reported("events", {"incident": {"kind": "repeat"}}, door="events"),
        reported("events-wrong", {"incident": {"kind": "talk"}}, door="events"),
        reported("quiet", *quiet),
        # Stopped at the eighth call, an agent sends nothing more; resumed, it does.
        reported("stopped", {"runs": [9]}, STUCK, {"tool": "other", "args": {}}),
        reported("resumed", {"runs": [9]}, STUCK, resumed, {"tool": "other", "args": {}}),
        reported("set", {"never": "finding"}, setup=[["PUT", "/tool-rules/read_*", {"exempt": True, "note": "n"}]]),
    ]  # fmt: skip
    report, _, status = place.play(written(place.folder, *cases))

    assert status == 1
    for number, (_, problem) in enumerate(EXPECTATIONS):
        problems = report[f"e{number}"]["problems"]
        assert [one[: len(problem)] for one in problems] == ([problem] if problem else []), number
    names = {"hooks-wrong", "events-wrong", "quiet", "stopped"}
    assert failed(report).keys() - {f"e{number}" for number in range(len(EXPECTATIONS))} == names
    assert report["quiet"]["problems"] == ["expected 1 warnings or a block, got 0 of 2"]


def test_a_reported_run_that_cannot_be_played_says_why(place):
    place.start()
    rule = ["PUT", "/agent-overrides/a", {"values": {"max_repeats": 9}}]
    long = reported("long", {}, {"wait": 3}, STUCK)
    cases = [
        long,
        reported("gateway", {}, door="gateway"),
        reported("otlp", {}, door="otlp"),
        reported("set", {}, setup=[rule]),
        reported("people", {}, manual=True),
    ]
    httpx.put(
        f"{place.url}/api/v1{rule[1]}", json=rule[2], headers={"Authorization": f"Bearer {place.key}"}
    ).raise_for_status()
    report, _, status = place.play(written(place.folder, *cases), clock="", longest="2")

    assert status == 0
    assert {name: one["skipped"].partition(",")[0].partition(":")[0] for name, one in report.items()} == {
        "long": "takes longer than --longest without a test clock",
        "gateway": "needs a model server",
        "otlp": "comes in through otlp",
        "set": "makes settings",
        "people": "is judged by a person",
    }


def test_a_call_that_runs_after_its_session_is_said_to_be_stopped_is_a_difference():
    case = reported("a", {"stopped_means_stopped": True})
    said = reports.ReportReaction(2, "stop", "Session stopped: the limit is reached.")
    runs = [reports.ReportRun(3, [1, 2], [said]), reports.ReportRun(3, [1, 3], [said])]

    assert [reports.compared(case, run, []).problems for run in runs] == [
        (),
        ("the message of call 2 says that the session is stopped, but call 3 ran",),
    ]


WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("seeds.json", "000-02-three-is-fine", {"expect": {"first": 2, "detections": []}}, "first: expected 2, got None"),
    ("seeds.json", "000-12-ttl-drops-old-entries", {"config": {"ttl_seconds": 3600}}, "detections at [] expected"),
    ("agents.json", "gemini-five-identical", {"ideal": "quiet"}, "expected nothing, got"),
    ("agents.json", "roo-paging-offset-distinct", {"ideal": "fire"}, "expected at least a warning, got nothing"),
]  # fmt: skip


def test_a_difference_fails_and_what_cannot_be_played_says_why(place):
    place.start()
    for file, name, change, problem in WRONG:
        report, out, status = place.play(written(place.folder, {**scenario(file, name), **change}))
        assert status == 1
        assert any(problem in one for one in report[name]["problems"])
        assert f"{name}: " in out

    short, long = scenario("seeds.json", "000-26-max-repeats-two"), scenario("seeds.json", WRONG[1][1])
    report, _, status = place.play(written(place.folder, short, long), clock="", longest="2")
    assert (status, report[short["id"]]["passed"]) == (0, True), "a second passes between the two calls"
    assert report[long["id"]]["skipped"] == "takes longer than --longest without a test clock"

    own = written(place.folder, scenario("seeds.json", "000-02-three-is-fine"))
    reader = create_key(place.project, "reader", SYSTEM, scopes=["read", "guard", "ingest"])[1]
    another = place.folder / "another-clock"
    with closed_port() as closed:
        for options, words in (
            ({"key": "lg_none_" + "0" * 60}, "does not accept the key"),
            ({"key": reader}, "The key may not PUT overrides; it needs all scopes"),
            ({"url": f"http://127.0.0.1:{closed}"}, "No LoopGuard answers at"),
            ({"clock": str(another)}, "does not read this test clock"),
        ):
            with pytest.raises(CommandError, match=words) as caught:
                place.play(own, **options)
            assert caught.value.returncode == 2
    overrides.save_override(place.project.pk, PROJECT, {"max_repeats": 9}, SYSTEM, "for the test")
    with pytest.raises(CommandError, match=r"settings of its own: max_repeats \(project\)"):
        place.play(own)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url=http://127.0.0.1:1"], "--url and --key belong together"),
        (["--key=lg_x"], "--url and --key belong together"),
        (["--clock=/tmp/clock"], "--clock needs --url and --key"),
        (["--judge-port=9"], "--judge-port needs --url and --key"),
        (["--through=guard"], "--through needs --url and --key"),
        (["--url=http://127.0.0.1:1", "--key=lg_x"], "No LoopGuard answers at http://127.0.0.1:1"),
        (["--url=nonsense", "--key=lg_x"], "nonsense"),
    ],
)
def test_options_that_do_not_fit_are_rejected(options, words):
    with pytest.raises(CommandError, match=words) as caught:
        call_command("conformance", str(FOLDER / "endings.json"), *options, stdout=io.StringIO())
    assert caught.value.returncode == 2
