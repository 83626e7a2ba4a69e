"""Suggestions learned from labelled incidents: computed, accepted, rejected and undone through the API."""

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone

from detection.models import AuditEntry, Incident, Suggestion, ToolOverride
from detection.services.policies import overrides
from detection.services.what_if import worker

JOB = {"job": "7"}


def looped(
    api,
    session,
    tool="fetch_page",
    arguments=None,
    content=lambda n: "12 visitors",
    calls=4,
    label=None,
    reason="",
    **about,
):
    """Let a session make its calls, report their results, and label the incidents."""
    results: list[Any] = []
    for number in range(calls):
        given = arguments(number) if callable(arguments) else arguments or JOB
        call = {"call_id": f"{session}-{number}", "tool": tool, "arguments": given}
        answer = api.post("/guard", {"session": session, "calls": [call], "results": results, **about}).json()
        ran = answer["decision"] in ("allow", "warn")
        results = [{"call_id": call["call_id"], "content": content(number)}] if ran else []
    api.post("/guard", {"session": session, "results": results}) if results else None
    incident = Incident.objects.filter(session_name=session).earliest("pk")
    if label:
        verb, body = ("confirm", {}) if label == "true_loop" else ("fine", {"reason": reason, "where": "run"})
        body |= {"run": incident.public_id}
        assert api.post(f"/loops/{incident.loop.public_id}/{verb}", body).status_code == 200
    return incident.public_id


def suggestions(api, state="open"):
    return api.get("/suggestions", state=state).json()


def one_of(api, kind):
    (found,) = [item for item in suggestions(api)["items"] if item["kind"] == kind]
    return found


def test_without_labels_the_list_tells_how_many_are_missing(api):
    looped(api, "s-0")
    assert suggestions(api) == {"items": [], "next_cursor": None, "labels": 0, "needed": 5, "nearest": []}
    looped(api, "s-1", label="true_loop")
    found = suggestions(api)
    assert (found["labels"], found["nearest"]) == (1, [{"tool": "fetch_page", "labels": 1, "missing": 4}])


def test_a_limit_is_suggested_tried_accepted_and_undone(api):
    for number in range(5):
        looped(api, f"s-{number}", label="false_alarm", reason="honest_repetition")
    found = one_of(api, "limit")
    assert found["words"] == "Raise the limit for repeats of fetch_page to 8"
    assert found["reason"] == "It avoids 5 of 5 false alarms; no labelled incident was a loop."
    assert (found["labels"], len(found["incidents"])) == (5, 5)
    assert found["change"]["values"]["max_repeats"] == 8

    tried = api.post(f"/suggestions/{found['id']}/what-if", {"days": 7})
    assert tried.status_code == 202
    worker.run_waiting(lambda: False)
    what_if = one_of(api, "limit")["what_if"]
    assert (what_if["id"], what_if["state"]) == (tried.json()["id"], "finished")
    assert what_if["lost"] >= 5

    assert looped(api, "before")
    accepted = api.post(f"/suggestions/{found['id']}/accept", {"note": "Agreed."}).json()
    assert (accepted["state"], accepted["note"]) == ("accepted", "Agreed.")
    assert [item["kind"] for item in suggestions(api)["items"]] == []
    assert [item["id"] for item in suggestions(api, "accepted")["items"]] == [found["id"]]
    rule = api.get("/tool-rules").json()["items"][0]
    assert (rule["pattern"], rule["values"]["max_repeats"]) == ("fetch_page", 8)
    assert "Agreed." in rule["note"]
    assert found["id"] in rule["note"]
    assert api.call("after", tool="fetch_page", arguments=JOB).json()["decision"] == "allow"
    assert [api.call("after", tool="fetch_page", arguments=JOB).json()["decision"] for _ in range(6)] == [
        "allow"
    ] * 6
    again = api.post(f"/suggestions/{found['id']}/accept", {})
    assert (again.status_code, again.json()["code"]) == (409, "already_decided")
    actions = AuditEntry.objects.filter(action__in=("policy.tool_rule", "suggestion.accept"))
    assert actions.count() == 2

    assert api.post(f"/suggestions/{found['id']}/undo").status_code == 204
    assert api.get("/tool-rules").json()["items"] == []
    assert one_of(api, "limit")["id"] == found["id"]


def test_a_decision_is_not_undone_over_a_later_change(api):
    for number in range(3):
        looped(api, f"s-{number}", label="false_alarm", reason="poll")
    found = one_of(api, "poll")
    assert api.post(f"/suggestions/{found['id']}/accept", {}).status_code == 200
    assert api.get("/policy", tool="fetch_page").status_code == 200
    api.put("/tool-rules/fetch_page", {"tool_class": "poll", "values": {"poll_max_repeats": 50}})
    refused = api.post(f"/suggestions/{found['id']}/undo")
    assert (refused.status_code, refused.json()["code"]) == (409, "changed_since")


def test_a_rejected_suggestion_is_remembered_until_it_is_undone(api, as_other):
    for number in range(3):
        looped(api, f"s-{number}", label="false_alarm", reason="poll")
    found = one_of(api, "poll")
    assert (found["words"], found["change"]["tool_class"]) == ("Treat fetch_page as polling", "poll")
    assert as_other.post(f"/suggestions/{found['id']}/reject", {}).status_code == 404
    rejected = api.post(f"/suggestions/{found['id']}/reject", {"note": "It does change."}).json()
    assert rejected["state"] == "rejected"
    looped(api, "s-9", label="false_alarm", reason="poll")
    assert suggestions(api)["items"] == []
    assert api.get("/tool-rules").json()["items"] == []
    assert api.post(f"/suggestions/{found['id']}/undo").status_code == 204
    assert one_of(api, "poll")["labels"] == 4


def test_fields_that_alone_differ_between_identical_calls_look_volatile(api):
    def page(number):
        return json.dumps(
            {"rows": ["a", "b"], "total": 2, "etag": f"v{number}x", "cache": {"node": f"n{number}"}}
        )

    for number in range(3):
        looped(api, f"s-{number}", tool="run_report", content=page, calls=12, label="true_loop")
    found = one_of(api, "volatile_result")
    assert found["change"]["volatile_result_fields"] == ["etag", "node"]
    assert "differ in nothing else" in found["reason"]
    api.post(f"/suggestions/{found['id']}/accept", {})
    assert looped(api, "after", tool="run_report", content=page, calls=4) is not None
    assert Suggestion.objects.get().kind == "volatile_result"


def test_results_that_say_something_else_are_not_volatile(api):
    words = [
        "harbor",
        "kettle",
        "nectar",
        "quartz",
        "orchid",
        "ribbon",
        "umber",
        "xenon",
        "violet",
        "yonder",
        "bravo",
        "ember",
    ]

    def answer(number):
        return json.dumps({"customer": words[number], "city": words[-number - 1]})

    for number in range(3):
        looped(api, f"s-{number}", tool="run_report", content=answer, calls=12, label="true_loop")
    assert [item["kind"] for item in suggestions(api)["items"]] == []


def test_an_argument_that_is_another_id_in_every_call_of_a_loop_looks_volatile(api):
    def request(number):
        return {
            "q": "reset password for the account of the customer",
            "nonce": f"{number:08x}-77aa-{number:04x}",
        }

    for number in range(3):
        looped(api, f"s-{number}", tool="lookup", arguments=request, calls=12, label="true_loop")
    found = one_of(api, "volatile_argument")
    assert found["change"]["ignore_arguments"] == ["nonce"]

    assert api.post(f"/suggestions/{found['id']}/reject", {}).status_code == 200
    for number in range(3, 6):
        looped(
            api,
            f"s-{number}",
            tool="lookup",
            arguments=lambda number: request(number) | {"cursor": f"{number:04x}-99bb-{number:08x}"},
            calls=12,
            label="true_loop",
        )
    # The rejected argument is not suggested in the company of another, either.
    assert one_of(api, "volatile_argument")["change"]["ignore_arguments"] == ["cursor"]
    api.post(f"/suggestions/{found['id']}/undo")
    assert one_of(api, "volatile_argument")["change"]["ignore_arguments"] == ["cursor", "nonce"]


def test_a_limit_is_lowered_only_where_every_label_under_it_is_a_loop(api):
    api.put("/overrides", {"values": {"max_repeats": 6}})
    for number in range(5):
        looped(api, f"s-{number}", calls=7, label="true_loop")
    found = one_of(api, "limit")
    assert found["words"] == "Lower the limit for repeats of fetch_page to 5"
    api.post(f"/suggestions/{found['id']}/accept", {})
    assert suggestions(api)["items"] == []

    for number in range(5):
        looped(api, f"lower-{number}", calls=6, label="true_loop")
    lower = one_of(api, "limit")
    assert (lower["id"], lower["words"]) == (found["id"], "Lower the limit for repeats of fetch_page to 4")
    ends = (timezone.now() + timedelta(hours=1)).isoformat()
    assert api.post(f"/suggestions/{found['id']}/accept", {"expires_at": ends}).status_code == 200
    assert [one["words"] for one in suggestions(api, "accepted")["items"]] == [lower["words"]]
    ToolOverride.objects.filter(expires_at__isnull=False).update(expires_at=timezone.now())
    assert overrides.expire_due() == 1
    assert one_of(api, "limit")["words"] == lower["words"]
    assert api.post(f"/suggestions/{found['id']}/undo").status_code == 204
    assert api.get("/tool-rules").json()["items"][0]["values"]["max_repeats"] == 5
    api.post(f"/suggestions/{found['id']}/reject", {})
    for number in range(10):
        looped(api, f"alarm-{number}", calls=7, label="false_alarm", reason="honest_repetition")
    assert one_of(api, "limit")["words"].startswith("Raise the limit for repeats of fetch_page to ")


def test_a_model_gets_a_limit_of_its_own_where_several_tools_are_concerned(api):
    about = {"backend": "openai", "model": "gpt-5"}
    for number in range(6):
        looped(
            api,
            f"s-{number}",
            tool=f"tool_{number % 3}",
            label="false_alarm",
            reason="honest_repetition",
            **about,
        )
    found = one_of(api, "limit")
    assert found["words"] == "Raise the limit for repeats of model openai / gpt-5 to 8"
    assert found["change"]["scope"] == "model:openai/gpt-5"
    assert "repeat_warn_at" in found["change"]["values"]
    api.put("/overrides", {"values": {"repeat_warn_at": 0}})
    assert "repeat_warn_at" not in one_of(api, "limit")["change"]["values"]


def test_an_unknown_state_and_an_unknown_suggestion_are_errors(api):
    assert api.get("/suggestions", state="maybe").status_code == 422
    assert api.get("/suggestions", q="x").json()["code"] == "unknown_parameter"
    assert api.post("/suggestions/sug_0/accept", {}).status_code == 404
    assert api.post("/suggestions/sug_0/undo").status_code == 404
