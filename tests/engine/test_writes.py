"""Calls that write, send or start something: the identical one again counts by what it does."""

from __future__ import annotations

import json

import pytest

from detection.engine import Guard
from detection.engine.calls import Verdict
from detection.engine.presets import PRESETS

BLOCKED = ["allow", "allow", "warn", "block"]


def play(tool, arguments, answers, *, pause=1.0, **values) -> list[Verdict]:
    """The stricter verdict of each call and its answer; calls that are blocked get none."""
    guard, verdicts = Guard("standard", **values), []
    for number, answer in enumerate(answers):
        at = 1000 + number * pause
        verdict = guard.call(tool, arguments, call_id=f"c{number}", at=at)
        if verdict.decision in ("allow", "warn"):
            after = guard.result(f"c{number}", answer, False, at=at + 0.1)
            verdict = verdict if verdict.decision != "allow" else after
        verdicts.append(verdict)
    return verdicts


def decisions(*arguments, **options):
    return [one.decision for one in play(*arguments, **options)]


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("shop__place_order", {"sku": "B-9", "qty": 2}, '{{"order_id":"ORD-81{n}4","status":"confirmed"}}'),
        ("createTicket", {"subject": "Printer"}, "Ticket #9{n}31 was opened"),
        ("gmail_send_email", {"to": "bo@example.org"}, "Queued. Message-ID: <{n}f3a.77@example.org>"),
        (
            "charge_card",
            {"amount": 9},
            '{{"charge":"ch_3{n}Xq","captured":true,"at":"2026-03-0{n}T10:00:00Z"}}',
        ),
        ("start_training", {"model": "m"}, "Run kq-{n}0ab started"),
        ("http_request", {"method": "POST", "url": "https://x.example/a"}, '{{"id": {n}, "ok": true}}'),
        ("run_sql", {"query": "insert into t values (1)"}, "INSERT 0 1, row id {n}44"),
        ("bash", {"command": "gh issue create --title Broken"}, "https://github.com/a/b/issues/{n}7"),
        ("bash", {"command": "curl -s -X POST https://x.example/v1/orders -d a=1"}, '{{"id":"o-{n}"}}'),
        ("bash", {"command": "git commit --allow-empty -m x"}, "[main 4f{n}a91c] x"),
        ("trigger_workflow", {"file": "ci.yml"}, '{{"runRef":"{letters}"}}'),
    ],
)
def test_a_write_whose_receipts_differ_in_figures_alone_is_blocked_at_the_fourth(tool, arguments, answer):
    answers = [answer.format(n=n, letters="abcdef"[n - 1 :]) for n in range(1, 5)]
    assert decisions(tool, arguments, answers) == BLOCKED


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("next_page", {}, "page {n} of 30"),
        ("debugger", {"command": "step"}, "stopped at line {n}7"),
        ("step_over", {}, "main.c:{n}7"),
        ("increment_counter", {"by": 1}, "counter = {n}"),
        ("browser_click", {"element": "Next", "ref": "e12"}, "### Page {n} of 30\n- item {n}"),
        ("move", {"direction": "north"}, "You are at 0, {n}"),
        ("get_temperature", {"room": "attic"}, "{n}7 degrees"),
        ("create_uuid", {}, "7b{n}"),
        ("bash", {"command": "make > log; tail -1 log"}, "[{n}/980] Building"),
    ],
)
def test_where_the_content_moves_nothing_is_found(tool, arguments, answer):
    answers = [answer.format(n=n) for n in range(1, 13)]
    assert set(decisions(tool, arguments, answers)) == {"allow"}


@pytest.mark.parametrize("tool", ["dequeue", "claim_next_task", "queue.pop", "receive_message"])
def test_the_next_item_is_another_one(tool):
    items = [
        f"job {word}"
        for word in [
            "red",
            "blue",
            "green",
            "grey",
            "pink",
            "black",
            "white",
            "brown",
            "gold",
            "lime",
            "teal",
            "plum",
        ]
    ]
    assert set(decisions(tool, {"queue": "imports"}, items)) == {"allow"}
    assert decisions(tool, {"queue": "imports"}, ["the queue has no items"] * 4) == BLOCKED


def test_other_writes_with_the_same_receipt_are_other_work():
    guard = Guard("standard")
    for number in range(12):
        call = f"c{number}"
        assert guard.call("place_order", {"sku": f"B-{number}"}, call_id=call, at=number).decision == "allow"
        answer = json.dumps({"order_id": f"ORD-{number}", "status": "confirmed"})
        assert guard.result(call, answer, False, at=number).decision == "allow"


def test_the_message_says_what_was_done_so_far():
    answers = [json.dumps({"order_id": f"ORD-700{n}", "status": "confirmed"}) for n in range(4)]
    said = play("place_order", {"sku": "B-1", "qty": 1}, answers)[3].message
    assert "3 orders were placed; the last is ORD-7002" in said


def test_the_message_claims_no_more_than_the_receipts_show():
    cancelled = play("cancel_order", {"order": 7}, ['{"ok": true, "order_number": 7}'] * 4)[3].message
    assert "orders were" not in cancelled
    assert "it succeeded 3 times" in cancelled
    written = play("save_file", {"path": "a"}, ["Saved."] * 4)[3].message
    assert "files were" not in written
    keys = play("create_api_key", {}, [f'{{"token": "sk-live-{n}{n}"}}' for n in range(4)])[3].message
    assert "sk-live" not in keys


def test_pauses_do_not_lessen_the_count_of_writes_within_the_period():
    answers = [f"Payment p-{n} was made" for n in range(6)]
    assert decisions("make_payment", {"to": "ACME"}, answers, pause=900.0)[:4] == BLOCKED
    assert set(decisions("make_payment", {"to": "ACME"}, answers, pause=1300.0)) == {"allow", "warn"}
    assert set(decisions("make_payment", {"to": "ACME"}, answers, pause=3601.0)) == {"allow"}
    values = {"write_period_minutes": 300}
    assert decisions("make_payment", {"to": "ACME"}, answers, pause=3601.0, **values)[:4] == BLOCKED
    assert set(decisions("make_payment", {"to": "ACME"}, answers, pause=900.0, write_period_minutes=0)) == {
        "allow"
    }
    assert set(decisions("get_page", {"id": 7}, ["the page"] * 6, pause=900.0)) == {"allow"}


@pytest.mark.parametrize(
    "values", [{"once_per_round": False}, {"identity": "raw"}, {"outcome_method": "literal"}]
)
def test_settings_that_compare_literally_keep_their_counting(values):
    answers = [f"Ticket {n}31 was opened" for n in range(1, 6)]
    assert (
        decisions("create_ticket", {"subject": "a"}, answers, outcome_enabled=False, **values)[:5]
        == ["allow"] * 5
    )


def of_one_answer(tool, arguments, times=6, *, round="a", gap=0.0, **values):
    guard = Guard("standard", **values)
    return [
        guard.call(tool, arguments, call_id=f"c{number}", round=round, at=1000 + number * gap)
        for number in range(times)
    ]


WRITES = [
    ("place_order", {"sku": "B-1"}),
    ("submit_order", {}),
    ("send_email", {"to": "bo@example.org", "text": "Done."}),
    ("bash", {"command": "curl -s -X POST https://x.example/v1/orders -d a=1"}),
]


@pytest.mark.parametrize(("tool", "arguments"), WRITES)
def test_the_same_write_runs_once_in_an_answer(tool, arguments):
    verdicts = of_one_answer(tool, arguments, gap=5.0)
    assert [one.decision for one in verdicts] == ["allow"] + ["block"] * 5
    text = (
        f"The call was not run: the same answer calls '{tool}' with identical arguments before, and what changes "
        "something runs once. The result of that call is the result of this one, too. To do it again, call it in "
        "another answer."
    )
    assert {one.message for one in verdicts[1:]} == {text}
    assert not any(one.findings for one in verdicts)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("get_order", {"id": 7}),
        ("increment_counter", {"name": "runs"}),
        ("browser_click", {"text": "Next"}),
        ("bash", {"command": "make test"}),
        ("frobnicate", {"x": 1}),
        ("edit", {"file_path": ""}),
        ("place_order", {"sku": None, "lines": []}),
    ],
)
def test_calls_that_are_no_writes_all_run(tool, arguments):
    assert {one.decision for one in of_one_answer(tool, arguments)} == {"allow"}


def test_different_writes_and_the_same_one_of_other_answers_run():
    guard = Guard("standard")
    for number in range(6):
        assert guard.call("place_order", {"sku": f"B-{number}"}, round="a", at=1000).decision == "allow"
    assert guard.call("place_order", {"sku": "B-0"}, round="b", at=1001).decision == "allow"


@pytest.mark.parametrize(
    ("content", "is_error", "decision"), [("opened", False, "block"), ("no sku", True, "allow")]
)
def test_a_write_that_failed_may_be_made_again_in_its_answer(content, is_error, decision):
    guard = Guard("standard")
    guard.call("place_order", {"sku": "B-1"}, call_id="a", round="a", at=1000)
    guard.result("a", content, is_error, at=1001)
    assert guard.call("place_order", {"sku": "B-1"}, call_id="b", round="a", at=1001).decision == decision


def test_calls_of_one_host_that_come_in_separate_requests_are_of_one_answer_for_a_moment():
    """An agent that was killed makes its call again later, which nobody has made for it."""

    def second(after):
        guard = Guard("standard")
        guard.call("get_order", {"id": 1}, call_id="g", round="seq-1", at=990)
        guard.result("g", "open", False, at=991)
        guard.call("place_order", {"sku": "B-1"}, call_id="a", round="seq-3", at=1000)
        return guard.call("place_order", {"sku": "B-1"}, call_id="b", round="seq-4", at=1000 + after).decision

    assert (second(0.1), second(60)) == ("block", "allow")


@pytest.mark.parametrize(
    "values",
    [
        {"writes_once": False},
        {"mode": "observe"},
        {"mode": "warn"},
        {"once_per_round": False},
        {"identity": "raw"},
        {"outcome_method": "literal"},
        {"result_aware": False},
        *({"preset": name} for name in PRESETS if name != "standard"),
    ],
)
def test_all_settings_but_those_of_standard_let_the_writes_of_an_answer_run_as_before(values):
    guard = Guard(**{"preset": "standard", **values})
    verdicts = [
        guard.call("place_order", {"sku": "B-1"}, call_id=f"c{n}", round="a", at=1000) for n in range(2)
    ]
    assert not any("the same answer calls" in one.message for one in verdicts)


COPY = "evt_" + "0a" * 16
"""As clients name a round for each call of which an identical one is open."""


@pytest.mark.parametrize(
    ("rounds", "second"),
    [
        (("r1", "r1"), "block"),
        (("r1", "r2"), "allow"),
        ((None, None), "block"),
        (("r1", None), "block"),
        ((None, "r2"), "block"),
        ((None, COPY), "block"),
        (("r1", COPY), "block"),
        ((COPY, "evt_" + "0b" * 16), "block"),
        (("evt_of_a_response", "evt_of_another"), "allow"),
    ],
    ids=[
        "of one answer", "of two answers", "unnamed", "the second is unnamed", "the first is unnamed", "a copy",
        "a copy of a named one", "two copies", "names that only begin like those of copies",
    ],
)  # fmt: skip
def test_two_identical_writes_at_one_time_are_of_one_answer_unless_their_rounds_name_two(rounds, second):
    guard = Guard("standard")
    decided = [
        guard.call("place_order", {"sku": "B-1"}, call_id=f"c{n}", round=name, at=7).decision
        for n, name in enumerate(rounds)
    ]
    assert decided == ["allow", second]


@pytest.mark.parametrize(
    ("first", "second", "decision"),
    [
        ({"idempotency_key": "k1"}, {"idempotency_key": "k2"}, "allow"),
        ({"idempotency_key": "k1"}, {"idempotency_key": "k1"}, "block"),
        ({"idempotency_key": "k1"}, {}, "allow"),
        ({"metadata": {"nonce": 1}}, {"metadata": {"nonce": 2}}, "allow"),
        ({"metadata": {"nonce": 1}}, {"metadata": {"nonce": 1}}, "block"),
    ],
)
def test_two_orders_of_one_answer_are_two_if_each_has_a_mark_of_its_own(first, second, decision):
    guard = Guard("standard")
    made = [
        guard.call("place_order", {"sku": "B-1", **marks}, call_id=f"c{n}", round="a", at=1000)
        for n, marks in enumerate((first, second))
    ]
    assert [one.decision for one in made] == ["allow", decision]
