"""Tags and metadata: how they arrive, what finds them, and what they decide."""

from __future__ import annotations

import json

import pytest

from detection.models import AgentTags, ApiKey, Project, Session

LABELS = {"tags": ["team-a", "nightly"], "metadata": {"customer": "acme"}}
HEADERS = {"LoopGuard-Tags": "team-a, nightly", "LoopGuard-Metadata": json.dumps(LABELS["metadata"])}
HOOK = {
    "session_id": "s-1", "cwd": "/src", "hook_event_name": "PreToolUse", "tool_name": "Bash",
    "tool_input": {"command": "ls"},
}  # fmt: skip
CALL = {"tool": "t", "call_id": "c-1"}


def by_guard(api):
    return api.post("/guard", {"session": "s-1", "calls": [CALL], **LABELS})


def by_guard_headers(api):
    return api.post("/guard", {"session": "s-1", "calls": [CALL]}, headers=HEADERS)


def by_messages(api):
    calls = [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}]
    return api.post("/guard", {"session": "s-1", "shape": "openai", "messages": messages, **LABELS})


def by_event(api):
    return api.post("/events", {"type": "call", "session": "s-1", **CALL, **LABELS})


def by_events_headers(api):
    events = [{"type": "call", "session": "s-1", **CALL}, {"type": "end", "session": "s-1"}]
    return api.post("/events", {"events": events}, headers=HEADERS)


def by_hook(api):
    return api.post("/hooks/claude-code", HOOK, headers=HEADERS)


@pytest.mark.parametrize(
    "send", [by_guard, by_guard_headers, by_messages, by_event, by_events_headers, by_hook]
)
def test_each_way_gives_a_session_its_labels(api, send):
    assert send(api).status_code < 300
    (found,) = api.get("/sessions").json()["items"]
    assert (found["tags"], found["metadata"]) == (LABELS["tags"], LABELS["metadata"])
    detail = api.get(f"/sessions/{found['session']}").json()
    assert detail["metadata"] == LABELS["metadata"]


def test_later_labels_are_added_and_the_first_sixteen_stay(api):
    api.call("s-1", **LABELS)
    api.call("s-1", tags=["extra"], metadata={"customer": "beta", "env": "prod"})
    session = Session.objects.get()
    assert session.tags == ["team-a", "nightly", "extra"]
    assert session.metadata == {"customer": "beta", "env": "prod"}
    api.call("s-1", tags=[f"t-{number}" for number in range(16)])
    api.call("s-1")
    session.refresh_from_db()
    assert session.tags == ["team-a", "nightly", "extra", *(f"t-{number}" for number in range(13))]


def test_filters_find_sessions_by_them(api):
    api.call("a", **LABELS)
    api.call("b", tags=["team-b"], metadata={"customer": "beta"})
    api.call("c")

    def found(text):
        return [one["session"] for one in api.get("/sessions", q=text).json()["items"]]

    assert found("tag:team-a") == ["a"]
    assert found("-tag:team-a") == ["c", "b"]
    assert found("metadata:customer=beta") == ["b"]
    assert found("metadata:customer") == ["b", "a"]
    assert found("metadata:customer=nobody") == []


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"tags": "team-a"}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"tags": ["x" * 65]}, "tags"),
        ({"tags": [f"t-{number}" for number in range(17)]}, "tags"),
        ({"metadata": ["customer"]}, "metadata"),
        ({"metadata": {"customer": 7}}, "metadata.customer"),
        ({"metadata": {"customer": "x" * 257}}, "metadata.customer"),
        ({"metadata": {f"k-{number}": "v" for number in range(17)}}, "metadata"),
        ({"tags": ["a\nb"]}, "tags"),
    ],
)
def test_what_is_no_label_is_rejected(api, labels, path):
    answer = api.call("s-1", **labels)
    assert (answer.status_code, answer.json()["path"]) == (422, path)
    assert not Session.objects.exists()


def test_invalid_headers_are_rejected(api):
    answer = api.post(
        "/guard", {"session": "s-1", "calls": [CALL]}, headers={"LoopGuard-Metadata": "customer"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_json")


def test_secrets_in_them_are_not_stored(api):
    token = "ghp_" + "a1B2" * 9
    api.call("s-1", tags=[f"of-{token}"], metadata={"customer": token, "password": "correct horse"})
    session = Session.objects.get()
    assert token not in str(session.tags) + str(session.metadata)
    assert "correct horse" not in str(session.metadata)
    assert [*session.metadata] == ["customer", "password"]


def test_a_tag_contains_sessions_agents_and_keys(api, with_scopes, project):
    other = with_scopes("guard")
    api.call("tagged", tags=["risky"])
    api.call("of-agent", agent="coder")
    other.call("of-key")
    api.call("plain", agent="other")
    assert api.put("/agents/coder/tags", {"tags": ["risky"]}).json()["tags"] == ["risky"]
    newest = ApiKey.objects.filter(project=project).order_by("-id").first()
    assert newest is not None
    newest.tags = ["risky"]
    newest.save()
    found = api.post("/containments", {"scope": "tag", "value": "risky", "reaction": "stop"}).json()
    assert found["reaches"]["can_stop"] == 3

    def decision(client, name, **about):
        return client.call(name, **about).json()["decision"]

    assert decision(api, "tagged") == "stop"
    assert decision(api, "of-agent", agent="coder") == "stop"
    assert decision(other, "of-key") == "stop"
    assert decision(api, "plain", agent="other") == "allow"
    assert decision(api, "new", agent="other", tags=["risky"]) == "stop"
    api.put("/agents/coder/tags", {"tags": []})
    assert not AgentTags.objects.exists()
    assert decision(api, "of-agent", agent="coder") == "allow"
    assert Project.objects.get(pk=project.pk).policy_version > 1
