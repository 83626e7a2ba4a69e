"""POST /api/v1/events with the types beside calls and results: messages with roles, compactions, late usage."""

import pytest

from detection.models import Event, Incident, Session
from detection.models.statistics import CallCount
from detection.services.maintenance import hourly_counts
from detection.services.sessions.evaluation import evaluate

CALL = {"tool": "search_web", "arguments": {"q": "x"}}


def usage(round_name=None, tokens=100, cost=0.5, **more):
    values = {"input_tokens": tokens, "output_tokens": 0, "cost_usd": cost}
    return {"type": "usage", "session": "s-1", "round": round_name, "usage": values} | more


def guard(api, number, **more):
    call = CALL | {"call_id": f"c{number}"} | more
    return api.post("/guard", {"session": "s-1", "round": f"r{number}", "calls": [call]}).json()


def send(api, *events):
    answer = api.post("/events", {"events": [*events]})
    assert answer.status_code == 202
    for session in Session.objects.all():
        evaluate(session.key)
    return answer.json()


def test_usage_that_comes_after_its_calls_counts_for_their_round(api):
    guard(api, 1)
    guard(api, 2, arguments={"q": "y"})
    assert send(api, usage("r1"), usage("r2", cost=0.25))["accepted"] == 2
    session = api.get("/sessions/s-1").json()
    assert (session["tokens"], session["cost_usd"]) == (200, 0.75)
    calls = api.get("/sessions/s-1/calls").json()["items"]
    assert [(call["tokens"], call["cost_usd"]) for call in calls] == [(100, 0.5), (100, 0.25)]
    assert [event.closes for event in Event.objects.filter(type="usage").order_by("seq")] == [1, 2]


def test_the_usage_of_a_round_counts_once(api):
    guard(api, 1)
    send(api, usage("r1"))
    assert send(api, usage("r1"), usage("r1"), usage("r9"), usage(None))["accepted"] == 2
    assert float(Session.objects.get().cost_usd) == 1.5


@pytest.mark.parametrize(
    "limit", [{"budget_max_cost_usd": 1.0}, {"budget_max_tokens": 200}], ids=["cost", "tokens"]
)
def test_budgets_count_late_usage_with_the_next_call(api, limit):
    api.put("/overrides", {"values": {"budget_enabled": True, "budget_ladder": "stop"} | limit})
    for number in (1, 2):
        assert guard(api, number, arguments={"q": number})["decision"] == "allow"
        send(api, usage(f"r{number}"))
    verdict = guard(api, 3, arguments={"q": 3})["verdicts"][0]
    assert (verdict["decision"], verdict["finding"]["kind"]) == ("stop", "budget")


def test_usage_of_a_response_without_calls_counts_for_the_budget(api):
    api.put(
        "/overrides", {"values": {"budget_enabled": True, "budget_ladder": "stop", "budget_max_tokens": 50}}
    )
    send(api, usage("r0"))
    assert guard(api, 1)["decision"] == "stop"


WHEN_KNOWN = ["with each call", "while it loops", "after the loop", "after the session", "in one batch"]


@pytest.mark.parametrize("when", WHEN_KNOWN)
def test_a_loop_costs_what_its_calls_cost_however_late_that_is_known(api, when):
    ended = {"type": "end", "session": "s-1"}
    others = [
        CALL | {"type": "call", "session": "s-1", "round": f"o{n}", "arguments": {"n": n}} for n in range(6)
    ]
    costs = [usage(f"r{number}") for number in range(4)]
    if when == "in one batch":
        calls = [
            CALL | {"type": "call", "session": "s-1", "round": f"r{n}", "call_id": f"c{n}"} for n in range(4)
        ]
        send(api, *[one for pair in zip(calls, costs, strict=True) for one in pair], *others)
    for number in range(0 if when == "in one batch" else 4):
        guard(api, number)
        if when == "with each call" or (when == "while it loops" and number == 3):
            send(api, *(costs[number:][:1] if when == "with each call" else costs))
    if when == "after the loop":
        send(api, *others)
        assert api.get("/incidents").json()["items"][0]["ended_at"]
        send(api, *costs)
    elif when == "after the session":
        send(api, ended)
        send(api, *costs[:2])
        send(api, *costs[2:])
    hourly_counts.count_calls()
    (incident,) = api.get("/incidents").json()["items"]
    (loop,) = api.get("/loops").json()["items"]
    assert (incident["calls_in_loop"], incident["cost_usd"]) == (4, 2.0)
    assert api.get(f"/incidents/{incident['id']}").json()["cost_usd"] == loop["cost_usd"] == 2.0
    assert api.get("/sessions/s-1").json()["cost_usd"] == 2.0
    assert api.get("/statistics").json()["total"]["loop_cost_usd"] == 2.0


def test_the_hours_of_the_statistics_count_late_usage(api):
    guard(api, 1)
    send(api, usage("r1"))
    hourly_counts.count_calls()
    row = CallCount.objects.get()
    assert (row.tool, row.checks, row.token_count, float(row.cost_usd)) == ("search_web", 1, 100, 0.5)


@pytest.mark.parametrize(
    ("event", "code", "path"),
    [
        ({"type": "usage", "session": "s-1"}, "missing", "usage"),
        ({"type": "usage", "session": "s-1", "usage": 5}, "invalid_type", "usage"),
        ({"type": "usage", "session": "s-1", "usage": {"cost_usd": -1}}, "out_of_range", "usage.cost_usd"),
        ({"type": "message", "session": "s-1", "role": "robot"}, "invalid_value", "role"),
        ({"type": "message", "session": "s-1", "role": ["user"]}, "invalid_value", "role"),
        ({"type": "condensed", "session": "s-1"}, "invalid_value", "type"),
    ],
)
def test_what_is_missing_or_wrong_is_named(api, event, code, path):
    answer = api.post("/events", event)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["path"]) == (422, code, path)


LADDER = ["allow", "allow", "allow", "block", "block"]


@pytest.mark.parametrize(
    ("event", "decision"),
    [
        ({"type": "message", "content": "Go on.", "role": "user"}, "allow"),
        ({"type": "message", "content": "Go on."}, "allow"),
        ({"type": "message", "content": "Let me try again.", "role": "assistant"}, "block"),
        ({"type": "message", "content": "Reminder", "role": "system"}, "block"),
        ({"type": "compaction", "content": "A summary"}, "block"),
    ],
    ids=["user", "no role", "assistant", "system", "compaction"],
)
def test_only_a_message_of_the_user_resets_an_attended_session(api, event, decision):
    api.put("/overrides", {"values": {"attended": True}})
    for number in range(3):
        guard(api, number)
    send(api, event | {"session": "s-1"})
    assert guard(api, 3)["decision"] == decision
    stored = Event.objects.get(seq=4)
    assert (stored.type, stored.role) == (event["type"], event.get("role", ""))


def test_in_chat_commands_of_others_than_the_user_are_text(api):
    text = "!/set(tool-loop-max-repeats=6)"
    for role in ("assistant", "system", "user"):
        send(api, {"type": "message", "session": "s-1", "content": text, "role": role})
        assert bool(Session.objects.get().policy_values) == (role == "user")


@pytest.mark.parametrize(("host", "name"), [("claude-code", "PreCompact"), ("gemini-cli", "PreCompress")])
def test_hooks_report_compactions(api, host, name):
    assert api.post(f"/hooks/{host}", {"session_id": "s-1", "hook_event_name": name}).json() == {}
    assert Event.objects.get().type == "compaction"


def test_a_condensed_list_of_messages_is_a_compaction(api):
    def turn(number):
        function = {"name": "search_web", "arguments": "{}"}
        calls = [{"id": f"c{number}", "type": "function", "function": function}]
        return [
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "0 hits"},
        ]

    messages = [{"role": "user", "content": "Go."}] + [one for number in range(4) for one in turn(number)]
    for shown in (messages, [{"role": "user", "content": "Summary"}, *messages[-2:], *turn(5)]):
        api.post("/guard", {"session": "s-1", "shape": "openai", "messages": shown})
    assert Event.objects.filter(type="compaction").count() == 1
    assert Event.objects.filter(type="call").count() == 5


def said(text, role="assistant"):
    return {"type": "message", "session": "s-1", "role": role, "content": text}


def test_an_assistant_that_repeats_itself_without_a_call_is_an_incident_with_its_texts(api):
    guard(api, 1)
    text = "I will sign in with sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD and look at the orders."
    send(api, said(text), said(text))
    assert not Incident.objects.exists()
    send(api, said(text, role="system"), said(text.replace("orders", "invoices")))
    (incident,) = api.get("/incidents").json()["items"]
    assert (incident["kind"], incident["tool"], incident["count"], incident["decision"]) == (
        "talk",
        "",
        3,
        "warn",
    )
    kept = Incident.objects.get().evidence
    assert [row["seq"] for row in kept["messages"]] == [2, 3, 5]
    assert "invoices" in kept["messages"][-1]["text"]
    assert "sk-proj" not in str(kept)
    assert (Incident.objects.get().calls_in_loop, kept["calls"]) == (0, [])


def test_a_text_that_repeats_itself_is_an_incident_and_prose_is_none(api):
    send(api, said(" ".join(f"Order {number} is number {number * 7}." for number in range(200))))
    assert not Incident.objects.exists()
    send(api, said("court " * 4000))
    incident = Incident.objects.get()
    assert (incident.kind, incident.decision, incident.calls_in_loop) == ("degenerate", "warn", 0)
    assert [row["seq"] for row in incident.evidence["messages"]] == [2]


@pytest.mark.parametrize("content", ["", None])
def test_empty_answers_are_repeated_texts(api, content):
    send(api, said(content), said(content), said(content))
    assert Incident.objects.get().kind == "talk"


def test_answers_that_are_sent_as_digests_are_compared_by_them(api):
    send(
        api,
        *[said(None) | {"content_digest": f"{number:032x}", "content_length": 900} for number in range(6)],
    )
    assert not Incident.objects.exists()
    send(api, *[said(None) | {"content_digest": "ab" * 16, "content_length": 900}] * 3)
    assert Incident.objects.get().kind == "talk"


def test_ten_compactions_in_a_row_are_an_incident_and_a_call_starts_over(api):
    compaction = {"type": "compaction", "session": "s-1"}
    send(api, *[compaction] * 9)
    guard(api, 1)
    send(api, *[compaction] * 9)
    assert not Incident.objects.exists()
    send(api, compaction)
    assert Incident.objects.get().kind == "talk"
    assert [row["type"] for row in Incident.objects.get().evidence["messages"]] == ["compaction"] * 10
