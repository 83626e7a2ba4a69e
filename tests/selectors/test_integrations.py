"""Which integrations a project hears from."""

import pytest

from detection.integrations.hosts import HOSTS, read_hook
from detection.models import Session
from detection.selectors.integrations import heard_integrations
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.ingestion.hooks import handle_hook
from detection.services.ingestion.ingest import ingest
from detection.services.ingestion.run_import import importer
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db


def call(session):
    return EventRecord(type="call", session=session, tool="search", call_id="c", arguments="{}")


def result(session):
    return EventRecord(type="result", session=session, tool="search", call_id="c", content="x")


def test_integrations_tell_what_they_sent_and_whether_they_only_watch():
    principal = importer(make_project("heard"))
    codex = HOSTS["codex"]
    event = read_hook(
        codex, {"session_id": "watched", "hook_event_name": "PostToolUse", "tool_name": "search"}
    )
    handle_hook(principal, codex, event, [result("watched")])
    event = read_hook(codex, {"session_id": "asked", "hook_event_name": "PreToolUse", "tool_name": "search"})
    handle_hook(principal, codex, event, [call("asked")])
    guard(principal, GuardRequest(session="direct", calls=(call("direct"),)))
    ingest(
        principal, [EventRecord(type="message", session="talk", content="hello")], integration="hooks/codex"
    )

    heard = {one.name: one for one in heard_integrations(principal.project_id)}
    assert set(heard) == {"hooks/codex", "guard"}
    assert (heard["hooks/codex"].sessions, heard["hooks/codex"].calls) == (3, 1)
    assert (heard["hooks/codex"].watched_sessions, heard["guard"].watched_sessions) == (1, 0)
    watched = Session.objects.filter(reach="watch_only").exclude(call_reaches="")
    assert [row.external_id for row in watched] == ["watched"]
