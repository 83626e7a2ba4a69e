"""The rows about hooks in the tables of the hosts: each reads its examples, and not those that come close."""

from __future__ import annotations

import json
import re

import pytest

from detection.engine import tables
from detection.integrations.hosts import HOSTS, HookError, read_hook

ROWS = [(name.removeprefix("hosts/"), row) for name in tables.hosts() for row in tables.table(name)]
BASE = {"hook_event_name": "PostToolUse", "session_id": "s-1"}
SAID = {
    "event": lambda event: event.name,
    "session": lambda event: event.session,
    "parent": lambda event: event.parent_session,
    "agent": lambda event: event.agent,
    "model": lambda event: event.model,
}


def rows(column):
    return [pytest.param(host, row, id=f"{host}-{row[column]}") for host, row in ROWS if column in row]


def hook(host, body, **more):
    named = next(one for one in HOSTS.values() if one.shape == host)
    return read_hook(named, {**BASE, **more, **body})


def result(host, response):
    (event,) = hook(host, {"tool_response": response}).events
    return event


def moment(host, name):
    more = {"agent_id": "a-1", "last_assistant_message": "done"}
    if name.lower().startswith(
        ("userprompt", "beforeagent", "beforesubmit", "chat", "pre_user", "before_agent")
    ):
        more = {"prompt": "hello"}
    return hook(host, {"hook_event_name": name}, **more).moment


@pytest.mark.parametrize(("host", "row"), rows("moment"))
def test_events_have_their_moment(host, row):
    for name in (*row["match"], *row.get("events", ()), *row.get("formerly", ())):
        assert moment(host, name) == row["moment"], name
    assert [name for name in row["no_match"] if moment(host, name) == row["moment"]] == []


def said(host, field, body):
    """What a body says in a field, by what the hook becomes."""
    own = json.loads(body)
    if field == "event":
        with_name = {"session_id": "s-1", **own}
        try:
            return read_hook(next(one for one in HOSTS.values() if one.shape == host), with_name).name
        except HookError:
            return None
    if field in ("session", "place"):
        plain = {"hook_event_name": "PreCompact"}
        named = next(one for one in HOSTS.values() if one.shape == host)
        if field == "session":
            return "X" if read_hook(named, {**plain, **own}).session == "X" else None
        of_place = read_hook(named, {**plain, "transcript_path": "X"}).session
        return "X" if read_hook(named, {**plain, **own}).session == of_place else None
    if field == "sub_agent":
        return "X" if hook(host, own).session != hook(host, {}).session else None
    if field in SAID:
        return SAID[field](hook(host, own))
    if field == "directory":
        return hook(host, own, hook_event_name="PreToolUse").events[0].get("cwd")
    if field in ("tool", "call_id", "arguments", "result"):
        name = "content" if field == "result" else field
        return hook(host, own).events[0].get(name)
    if field == "answer":
        events = hook(host, own, hook_event_name="Stop").events
        return events[0]["content"] if events else None
    if field == "source":
        return (
            None
            if hook(host, own, hook_event_name="UserPromptSubmit", prompt="x").moment == "prompt"
            else "X"
        )
    if field == "prompt":
        return hook(host, own, hook_event_name="UserPromptSubmit").events[0]["content"]
    assert field == "prompt_id"
    return "X" if "id" in hook(host, own, hook_event_name="UserPromptSubmit", prompt="x").events[0] else None


@pytest.mark.parametrize(("host", "row"), rows("says"))
def test_fields_are_read_under_their_names(host, row):
    for body in row["match"]:
        assert said(host, row["says"], body) == "X", body
    assert [body for body in row["no_match"] if said(host, row["says"], body) == "X"] == []


@pytest.mark.parametrize(("host", "row"), rows("within"))
def test_fields_within_an_object_are_those_of_the_body(host, row):
    for body in row["match"]:
        assert said(host, "tool", body) == "X", body
    assert [body for body in row["no_match"] if said(host, "tool", body) == "X"] == []


@pytest.mark.parametrize(("host", "row"), rows("tool"))
def test_events_of_one_kind_of_tool_name_it(host, row):
    for name in row["events"]:
        assert hook(host, {"hook_event_name": name}).events[0]["tool"] == row["tool"]


@pytest.mark.parametrize(("host", "row"), rows("error"))
def test_results_say_that_they_are_errors(host, row):
    assert [text for text in row["match"] if not result(host, json.loads(text))["is_error"]] == []
    assert [text for text in row["no_match"] if result(host, json.loads(text))["is_error"]] == []


@pytest.mark.parametrize(("host", "row"), rows("failed"))
def test_events_say_that_a_tool_has_failed(host, row):
    def is_error(name):
        return hook(host, {"hook_event_name": name, "tool_response": "x"}).events[0]["is_error"]

    assert all(map(is_error, row["match"]))
    assert not any(map(is_error, row["no_match"]))


@pytest.mark.parametrize(("host", "row"), rows("content"))
def test_the_text_of_a_result_is_found(host, row):
    assert {result(host, json.loads(text))["content"] for text in row["match"]} == {"X"}
    assert [text for text in row["no_match"] if result(host, json.loads(text))["content"] == "X"] == []


@pytest.mark.parametrize(("host", "row"), rows("people"))
def test_prompts_of_people_have_these_sources(host, row):
    def is_of_person(source):
        body = {"hook_event_name": "UserPromptSubmit", "prompt": "x", "source": source}
        return hook(host, body).moment == "prompt"

    assert all(map(is_of_person, (*row["match"], *row["people"])))
    assert not any(map(is_of_person, row["no_match"]))


@pytest.mark.parametrize(("host", "row"), rows("removes"))
def test_what_a_host_adds_to_results_is_removed(host, row):
    for text in row["match"]:
        assert result(host, text)["content"] == re.sub(row["removes"], "", text) != text
    assert [text for text in row["no_match"] if result(host, text)["content"] != text] == []


def test_each_host_has_a_table():
    assert {host for host, _ in ROWS} == {host.shape for host in HOSTS.values()}
