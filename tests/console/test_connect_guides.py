"""The guides of Connect: their commands run as they are shown, with the client and a shell, against a real server."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client

from detection.console.connect_guides import GUIDES
from detection.integrations.hosts import HOSTS, read_hook
from detection.models import Session
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.ingestion.hooks import handle_hook
from detection.services.ingestion.run_import import importer
from detection.services.sessions.event_records import EventRecord
from tests.support.projects import make_key, make_member, make_project

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


@pytest.fixture
def run(tmp_path, project):
    """Run a line of a page in the shell of a user who has installed the client."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "loopguard"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={CLIENT} exec {sys.executable} -m loopguard_client "$@"\n')
    command.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{programs}:/usr/bin:/bin", "LOOPGUARD_KEY": make_key(project)}

    def run_line(line):
        return subprocess.run(
            ["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )

    return run_line


def snippets(page):
    return [html.unescape(one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)]


@pytest.mark.parametrize("host", HOSTS)
def test_the_commands_of_a_coding_agent_install_its_hooks(host, reader, run, settings, live_server, tmp_path):
    settings.PUBLIC_URL = live_server.url
    pip, install, check = snippets(reader(host))[0].splitlines()
    assert pip.startswith("pip install ")
    done = run(install)
    assert done.returncode == 0, done.stderr
    assert f"/api/v1/hooks/{host}" in "".join(
        file.read_text() for file in tmp_path.rglob("*") if file.is_file() and "bin" not in file.parts
    )
    assert check == f"loopguard hooks check {host}"


def test_the_check_of_claude_code_is_heard(reader, run, settings, live_server, project):
    settings.PUBLIC_URL = live_server.url
    _, install, check = snippets(reader("claude-code"))[0].splitlines()
    assert run(install).returncode == 0
    assert "heard" in run(check).stdout
    assert Session.objects.filter(project=project, integration="hooks/claude-code").exists()


def test_the_settings_of_mcp_are_json_and_its_login_stores_the_key(
    reader, run, settings, live_server, tmp_path
):
    settings.PUBLIC_URL = live_server.url
    commands, document = snippets(reader("mcp"))
    assert json.loads(document)["mcpServers"]["files"]["args"][:2] == ["mcp", "--"]
    assert run(commands.splitlines()[1]).returncode == 0
    assert (tmp_path / ".loopguard" / "curl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_says_what_it_prevents_and_how_to_check_it(name, reader):
    page = html.unescape(re.sub(r"\s+", " ", reader(name)))
    guide = GUIDES[name]
    assert all(sentence in page for sentence in (*guide.prevents, guide.check, guide.summary))
    assert ("Trust the hooks" in page) == (name == "codex")
    assert "Not heard yet" in page


def test_python_snippets_compile(reader):
    assert [compile(one, "page", "exec") for one in snippets(reader("python"))[1:]]


def test_a_guide_tells_that_its_agent_is_heard_or_only_observed(reader, project):
    principal, host = importer(project), HOSTS["codex"]
    result = EventRecord(type="result", session="s", tool="search", call_id="c", content="x")
    event = read_hook(host, {"session_id": "s", "hook_event_name": "PostToolUse", "tool_name": "search"})
    handle_hook(principal, host, event, [result])
    assert "Observed only" in reader("codex")
    call = EventRecord(type="call", session="d", tool="search", call_id="c", arguments="{}")
    guard(principal, GuardRequest(session="d", calls=(call,)))
    assert "chip ok" in reader("python")


def test_an_unknown_guide_does_not_exist(project):
    client = Client()
    client.force_login(make_member(project))
    assert client.get(f"/p/{project.slug}/connect/guides/emacs").status_code == 404
