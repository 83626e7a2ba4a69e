"""The guides of Connect: their commands run as they are shown, with the client and a shell, against a real server."""

import ast
import html
import json
import re
from pathlib import Path

import pytest
from django.test import Client

from detection.console.integrations.guides import GUIDES
from detection.integrations.hosts import HOSTS, read_hook
from detection.integrations.reach import REACH_WORDS, reach_of
from detection.models import Attempt
from detection.services.audit import SYSTEM
from detection.services.containments.containments import Wanted, contain
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
    assert ("Enable the plugin" in page) == (name == "openclaw")
    assert "Nothing received yet" in page


def test_a_guide_tells_that_its_agent_is_heard_or_only_observed(reader, project):
    principal, host = importer(project), HOSTS["codex"]
    result = EventRecord(type="result", session="s", tool="search", call_id="c", content="x")
    event = read_hook(host, {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "search"})
    handle_hook(principal, host, event, [result])
    assert "Only watched" in reader("codex")
    call = EventRecord(type="call", session="d", tool="search", call_id="c", arguments="{}")
    guard(principal, GuardRequest(session="d", calls=(call,)))
    assert "Receiving" in reader("python")


def test_connect_shows_requests_that_came_before_it_was_opened(client, project):
    client.force_login(make_member(project))
    page = f"/p/{project.slug}/connect"
    assert "No requests yet" in client.get(page).content.decode()
    Attempt.objects.create(project=project, route="guard", status=200, decision="allow")
    shown = client.get(page).content.decode()
    assert "No requests yet" not in shown
    assert "answered “allow”" in shown


def test_a_guide_tells_the_first_blocked_call_also_where_others_were_only_held(reader, project):
    for session, reaction in (("held", "hold"), ("stopped", "block")):
        contain(project.pk, Wanted("tool", session, reaction=reaction), SYSTEM)
        call = EventRecord(type="call", session=session, tool=session, call_id="c", arguments="{}")
        guard(importer(project), GuardRequest(session=session, calls=(call,)))
        seen = re.sub(r"<[^>]+>|\s+", " ", reader("python"))
        assert ("Blocked a call" in re.sub(" +", " ", seen)) == (reaction == "block")


def test_each_tile_has_the_mark_that_its_sessions_get(reader, project):
    page = re.sub(r"\s+", " ", html.unescape(reader("codex")))
    for guide in GUIDES.values():
        tile = page[page.index(f'class="tile" href="/p/guides/connect/guides/{guide.name}"') :][:700]
        assert REACH_WORDS[reach_of(guide.integrations[0])] in tile
    assert {GUIDES[name].reach for name in ("claude-code", "langgraph", "ai-sdk")} == {"can_stop"}
    assert {GUIDES[name].reach for name in ("codex", "copilot", "mcp")} == {"can_block"}
    assert {GUIDES[name].reach for name in ("opentelemetry", "imports")} == {"watch_only"}


@pytest.mark.parametrize("name", [name for name, guide in GUIDES.items() if guide.kind == "adapter"])
def test_an_adapter_has_what_its_snippet_imports(name):
    guide = GUIDES[name]
    tree = ast.parse((CLIENT / "loopguard_client" / f"{guide.module}.py").read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    imports = [node for node in ast.walk(ast.parse(guide.attach)) if isinstance(node, ast.ImportFrom)]
    assert {alias.name for alias in imports[0].names} <= defined


@pytest.mark.parametrize("name", [name for name, guide in GUIDES.items() if guide.kind == "package"])
def test_a_package_exports_what_its_snippet_imports(name):
    guide = GUIDES[name]
    imported = re.match(r"import \{ (\w+) \}", guide.attach)[1]
    source = (CLIENT.parent / "javascript" / "src" / f"{guide.module}.ts").read_text()
    assert re.search(rf"export (async )?function {imported}\b", source)


def test_an_unknown_guide_does_not_exist(project):
    client = Client()
    client.force_login(make_member(project))
    assert client.get(f"/p/{project.slug}/connect/guides/emacs").status_code == 404


def test_a_guide_says_that_the_hook_waits_where_the_installed_one_does():
    hosts = json.loads((CLIENT / "loopguard_client" / "hooks" / "hosts.json").read_text())["hosts"]
    waits = {name for name in HOSTS if "waits up to 45 s" in " ".join(GUIDES[name].prevents)}
    assert waits == {name for name, host in hosts.items() if host.get("waits")}
