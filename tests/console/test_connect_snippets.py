"""The snippets of Connect run as they are pasted, with the key of the page, against a running server."""

import html
import json
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client

from detection.console.integrations.guides import GUIDES
from detection.integrations.hosts import HOSTS
from detection.models import ApiKey, Incident, Session
from detection.services.ingestion.attempts import recorder
from tests.console.scenes import text
from tests.support.programs import needs_curl
from tests.support.projects import make_key, make_member, make_project

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel of the client, and a Python environment of a user who has nothing."""
    folder = tmp_path_factory.mktemp("client")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT / "clients" / "python", check=True, capture_output=True, timeout=120)
    venv.create(folder / "venv", with_pip=True)
    return next(folder.glob("*.whl")), folder / "venv" / "bin"


@pytest.fixture
def connect(installed, live_server, settings, tmp_path):
    settings.PUBLIC_URL, settings.CLIENT_WHEEL = live_server.url, installed[0]
    recorder.clear()  # attempts of earlier tests, whose projects are gone
    return Connect(installed[1], tmp_path)


class Connect:
    """A person who creates a key on a page of Connect, and pastes its snippets into a terminal."""

    def __init__(self, programs, home):
        self.project = make_project("connecting")
        self.client = Client()
        self.client.force_login(make_member(self.project))
        self.base = f"/p/{self.project.slug}/connect"
        self._programs, self._home = programs, home

    def snippets(self, path, *, key=True):
        form = {"action": "create_key"} if key else {}
        page = self.client.post(self.base + path, form).content.decode()
        found = re.findall(r'<pre[^>]*id="snippet-([a-z-]+)"[^>]*>(.*?)</pre>', page, re.DOTALL)
        snippets = {name: html.unescape(one) for name, one in found}
        assert "lg_…" not in "".join(snippets.values())
        return snippets

    def paste(self, snippet, *program):
        done = self._run(snippet, *program)
        assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fails(self, snippet):
        done = self._run(snippet)
        assert done.returncode == 1, f"{snippet}\n{done.stdout}\n{done.stderr}"
        return done.stderr

    def _run(self, snippet, *program):
        return subprocess.run(
            [*(program or ("sh", "-e"))], input=snippet, text=True, capture_output=True, timeout=120, check=False,
            cwd=self._home, env={"HOME": str(self._home), "PATH": f"{self._programs}:/usr/bin:/bin", "PIP_NO_INDEX": "1"},
        )  # fmt: skip

    def files(self):
        found = (one for one in self._home.rglob("*") if one.is_file() and ".cache" not in one.parts)
        return sorted(f"~/{one.relative_to(self._home)}" for one in found)

    def python(self):
        return str(self._programs / "python")


@needs_curl
def test_every_snippet_of_the_page_runs_as_it_is_pasted(connect):
    snippets = connect.snippets("/guides/api")
    key = ApiKey.objects.get(name="Connect")
    assert sorted(key.scopes) == ["guard", "ingest"]
    verdicts = [json.loads(line) for line in connect.paste(snippets.pop("curl")).splitlines()]
    assert [one["decision"] for one in verdicts][::3] == ["allow", "block"]
    polls = [json.loads(line) for line in connect.paste(snippets.pop("results")).splitlines()]
    assert {one["decision"] for one in polls} == {"allow"}
    assert json.loads(connect.paste(snippets.pop("events")))["accepted"] == 2
    recorder.flush()
    attempts = text(connect.client.get(f"{connect.base}/attempts"))
    assert all(said in attempts for said in ("answered “allow”", "answered “block”", "2 accepted"))
    printed = connect.paste(snippets.pop("python"), sys.executable, "-").splitlines()
    assert [line.startswith("(True") for line in printed] == [True, True, True, False]
    assert not snippets
    assert Session.objects.filter(project=connect.project).count() == 4


@needs_curl
@pytest.mark.parametrize("host", HOSTS)
def test_the_one_command_connects_a_coding_agent_and_changes_what_it_lists(connect, host):
    page = connect.client.post(f"{connect.base}/guides/{host}", {"action": "create_code"})
    command = html.unescape(
        re.search(r'<pre id="connect-command">(.*?)</pre>', page.content.decode(), re.DOTALL)[1]
    )
    assert "lg_" not in command
    assert "Waiting for the command" in text(page)
    before = {*connect.files()}
    said = connect.paste(command)
    key = ApiKey.objects.get()
    assert (key.scopes, key.name.partition(" on ")[0]) == (["guard"], HOSTS[host].title)
    changed = {str(file) for file in {*connect.files()} - before}
    listed = " ".join(GUIDES[host].changes)
    for file in changed:
        assert any(
            place in listed for place in (file, f"{'/'.join(file.split('/')[:3])}", "gets the plugin")
        ), file
    assert "~/.loopguard/curl" in changed
    assert (connect._home / ".loopguard" / "curl").stat().st_mode & 0o777 == 0o600
    assert key.public_id not in said
    arrived = text(connect.client.get(f"{connect.base}/attempts?guide={host}"))
    assert "Installed on" in arrived
    assert "Waiting for a first call" in arrived
    assert "was used" in connect.fails(command.split("&& ")[1])
    connect.paste(GUIDES[host].removal.replace("pip uninstall", "pip uninstall -y"))
    assert not {*connect.files()} - before - {one for one in connect.files() if "before-loopguard" in one}


@needs_curl
def test_what_arrives_is_shown_from_the_command_to_the_blocked_call(connect):
    page = connect.client.post(
        f"{connect.base}/guides/claude-code", {"action": "create_code"}
    ).content.decode()
    command = html.unescape(re.search(r'<pre id="connect-command">(.*?)</pre>', page, re.DOTALL)[1])
    connect.paste(command)
    settings = json.loads((connect._home / ".claude" / "settings.json").read_text())
    hook = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    for number in range(4):
        body = {
            "hook_event_name": "PreToolUse", "session_id": "first-run", "tool_name": "Read",
            "tool_input": {"path": "config.yml"}, "tool_use_id": f"c{number}",
        }  # fmt: skip
        connect.paste(f"printf %s {shlex.quote(json.dumps(body))} | sh -c {shlex.quote(hook)}")
    arrived = text(connect.client.get(f"{connect.base}/attempts?guide=claude-code"))
    assert "First call received: Read" in arrived
    assert "Blocked the 4th identical call" in arrived
    bad = {"Authorization": f"Bearer lg_{ApiKey.objects.get().public_id}_wrong"}
    Client().post("/api/v1/hooks/claude-code", {}, content_type="application/json", headers=bad)
    recorder.flush()
    arrived = text(connect.client.get(f"{connect.base}/attempts?guide=claude-code"))
    assert "401 unknown_key" in arrived
    assert "unknown_key" in arrived


def test_the_commands_for_traces_and_past_runs_write_only_what_they_list(connect, tmp_path):
    def run(name, answer=""):
        page = connect.client.post(
            f"{connect.base}/guides/{name}", {"action": "create_code"}
        ).content.decode()
        command = re.search(r'<pre id="connect-command">(.*?)</pre>', page, re.DOTALL)[1]
        return connect.paste(html.unescape(command))

    run("opentelemetry")
    assert connect.files() == ["~/.loopguard/opentelemetry.env"]
    assert ApiKey.objects.get().scopes == ["ingest"]
    exported = connect.paste(
        'set -a; . ~/.loopguard/opentelemetry.env; set +a; printf %s "$OTEL_EXPORTER_OTLP_HEADERS"'
    )
    assert exported.startswith("Authorization=Bearer%20lg_")
    (tmp_path / ".claude" / "projects").mkdir(parents=True)
    (tmp_path / ".claude" / "projects" / "past.jsonl").write_text("{}")
    before = connect.files()
    page = connect.client.post(f"{connect.base}/guides/imports", {"action": "create_code"}).content.decode()
    command = html.unescape(re.search(r'<pre id="connect-command">(.*?)</pre>', page, re.DOTALL)[1])
    assert "Nothing was imported" in connect.fails(command)  # it asks, and nobody is there
    assert connect.files() == before
    assert ApiKey.objects.latest("pk").expires_at is not None


def test_the_import_of_past_runs_runs_as_it_is_pasted(connect, tmp_path, monkeypatch):
    line = {
        "type": "assistant", "sessionId": "past", "timestamp": "2026-11-01T10:00:00Z", "uuid": "u1",
        "message": {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
    }  # fmt: skip
    folder = tmp_path / ".claude" / "projects"
    folder.mkdir(parents=True)
    (folder / "past.jsonl").write_text(json.dumps(line))
    program, _, words = connect.snippets("/guides/imports", key=False)["import"].partition(
        " import_transcripts "
    )
    assert program.endswith("python3 manage.py")
    kind, place, *options = shlex.split(words)
    monkeypatch.setenv("HOME", str(tmp_path))
    call_command("import_transcripts", kind, Path(place).expanduser(), *options)
    assert Session.objects.filter(project=connect.project, external_id="past").exists()


@needs_curl
@pytest.mark.parametrize("host", HOSTS)
def test_the_commands_of_a_coding_agent_run_as_they_are_pasted(connect, host):
    snippets = connect.snippets(f"/guides/{host}")
    *commands, check = snippets["guide"].splitlines()
    connect.paste("\n".join(commands))
    if host == "claude-code":
        assert "A call sent through the hook reached" in connect.paste(snippets["guide"])
        assert Session.objects.filter(project=connect.project, integration="hooks/claude-code").exists()
    assert check == f"loopguard hooks check {host}"
    if "key-file" in snippets:
        connect.paste(snippets["key-file"])
        assert (connect._home / ".loopguard" / "curl").stat().st_mode & 0o777 == 0o600
        json.loads(snippets["by-hand"])


def test_the_commands_of_mcp_and_python_run_as_they_are_pasted(connect):
    snippets = connect.snippets("/guides/mcp")
    connect.paste(snippets["mcp"])
    assert (connect._home / ".loopguard" / "curl").is_file()
    assert json.loads(snippets["mcp-settings"])["mcpServers"]["files"]["args"][:2] == ["mcp", "--"]
    snippets = connect.snippets("/guides/python")
    connect.paste(snippets["install"])
    printed = connect.paste(snippets["client"], connect.python(), "-").splitlines()
    assert printed[0] == "0 results"
    assert "search_web" in printed[-1]
    # The usage that the client reports before a call is what the loop costs.
    assert float(Incident.objects.latest("pk").cost_usd) == 0.012
    # A model and its provider's key are needed to run it; the adapter has tests of its own.
    compile(connect.snippets("/guides/langchain")["adapter"], "langchain", "exec")


@needs_curl
def test_the_loop_of_opentelemetry_runs_as_it_is_pasted(connect):
    snippets = connect.snippets("/guides/opentelemetry")
    assert connect.paste(snippets["otlp-curl"]) == "{}" * 3
    exported = connect.paste(f'{snippets["otlp"]}\nprintf %s "$OTEL_EXPORTER_OTLP_HEADERS"')
    assert exported.startswith("Authorization=Bearer%20lg_")
    session = Session.objects.get(project=connect.project)
    assert (session.integration, session.last_seq) == ("otlp", 6)


def test_the_demo_completes_no_step_and_the_first_event_of_an_agent_does(connect):
    demo = {"Authorization": f"Bearer {make_key(connect.project, is_demo=True)}"}
    call = {"session": "demo-1", "calls": [{"tool": "t"}]}

    def asks(headers):
        assert (
            Client().post("/api/v1/guard", call, content_type="application/json", headers=headers).status_code
            == 200
        )

    asks(demo)
    connect.client.post(f"{connect.base}/sample")
    assert "Set up 0 of 6" in text(connect.client.get(connect.base))
    assert "Waiting for a first call" in text(connect.client.get(f"{connect.base}/attempts?guide=api"))
    call["session"] = "mine"
    asks({"Authorization": f"Bearer {make_key(connect.project)}"})
    assert "First call received: t" in text(connect.client.get(f"{connect.base}/attempts?guide=api"))
    assert "Set up 2 of 6" in text(connect.client.get(connect.base))
