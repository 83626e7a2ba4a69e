"""The guides of Connect: their commands run as they are shown, with the client and a shell, against a real server."""

import html
import re
from pathlib import Path

import pytest
from django.test import Client

from detection.console.integrations.guides import GUIDES
from detection.integrations.hosts import HOSTS, read_hook
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.ingestion.hooks import handle_hook
from detection.services.ingestion.run_import import importer
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = Path(__file__).parents[2] / "clients" / "python"


@pytest.fixture
def project():
    return make_project("guides")


@pytest.fixture
def reader(project):
    client = Client()
    client.force_login(make_member(project))
    return lambda name: client.get(f"/p/{project.slug}/connect/guides/{name}").content.decode()


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_says_what_it_prevents_and_how_to_check_it(name, reader):
    page = html.unescape(re.sub(r"\s+", " ", reader(name)))
    guide = GUIDES[name]
    assert all(sentence in page for sentence in (*guide.prevents, guide.check, guide.summary))
    assert ("Trust the hooks" in page) == (name == "codex")
    assert "Nothing received yet" in page


def test_a_guide_tells_that_its_agent_is_heard_or_only_observed(reader, project):
    principal, host = importer(project), HOSTS["codex"]
    result = EventRecord(type="result", session="s", tool="search", call_id="c", content="x")
    event = read_hook(host, {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "search"})
    handle_hook(principal, host, event, [result])
    assert "Only watched" in reader("codex")
    call = EventRecord(type="call", session="d", tool="search", call_id="c", arguments="{}")
    guard(principal, GuardRequest(session="d", calls=(call,)))
    assert "chip ok" in reader("python")


def test_an_unknown_guide_does_not_exist(project):
    client = Client()
    client.force_login(make_member(project))
    assert client.get(f"/p/{project.slug}/connect/guides/emacs").status_code == 404
