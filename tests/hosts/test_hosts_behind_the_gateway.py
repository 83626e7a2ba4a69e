"""Coding agents that are guarded by a base URL alone, headless, against a model server that repeats one call.

Opt-in, as the tests of their hooks: `LOOPGUARD_HOSTS` names a folder with the programs.
"""

import os
import shutil

import pytest

from detection.models import Event, Incident, Session
from detection.services.audit import SYSTEM
from detection.services.gateway import backends
from tests.gateway.conftest import serving
from tests.hosts.place import PROMPT, Place
from tests.hosts.upstream import Script, serve
from tests.support.projects import make_project

FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]


def claude_code(place, program, base_url):
    return place.start(
        [program, "-p", PROMPT, "--allowedTools", "Bash", "--model", "claude-sonnet-4-5"],
        ANTHROPIC_BASE_URL=base_url, ANTHROPIC_API_KEY="sk-ant-x", DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1",
    )  # fmt: skip


def codex(place, program, base_url):
    provider = f'name = "p"\nbase_url = "{base_url}"\nwire_api = "responses"\nenv_key = "PROVIDER_KEY"\n'
    place.write(
        place.home / ".codex" / "config.toml",
        f'model = "gpt-5"\nmodel_provider = "p"\n[model_providers.p]\n{provider}',
    )
    return place.start(
        [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT],
        PROVIDER_KEY="x",
    )


def copilot(place, program, base_url):
    return place.start(
        [program, "-p", PROMPT, "--allow-all-tools", "--allow-all-paths"],
        COPILOT_OFFLINE="true", COPILOT_PROVIDER_BASE_URL=base_url, COPILOT_PROVIDER_TYPE="openai",
        COPILOT_PROVIDER_API_KEY="x", COPILOT_MODEL="gpt-5",
    )  # fmt: skip


def opencode(place, program, base_url):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base_url, "apiKey": "x"},
        "models": {"gpt-5": {}},
    }
    settings = {
        "provider": {"p": provider},
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    place.write(place.home / ".config" / "opencode" / "opencode.json", settings)
    return place.start([program, "run", "-m", "p/gpt-5", PROMPT], OPENCODE_DISABLE_MODELS_FETCH="1")


def gemini_cli(place, program, base_url):
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True},
    }
    place.write(place.home / ".gemini" / "settings.json", settings)
    place.write(place.home / ".gemini" / "trustedFolders.json", {str(place.work): "TRUST_FOLDER"})
    return place.start(
        [program, "-p", PROMPT, "--yolo", "-m", "gemini-2.5-pro"],
        GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=base_url, GEMINI_CLI_TRUST_WORKSPACE="true",
    )  # fmt: skip


HOSTS = {
    "claude-code": ("claude", claude_code, "anthropic"),
    "codex": ("codex", codex, "openai"),
    "copilot": ("copilot", copilot, "openai"),
    "opencode": ("opencode", opencode, "openai"),
    "gemini-cli": ("gemini", gemini_cli, "gemini"),
}


@pytest.fixture
def drive(transactional_db, settings, tmp_path):
    """Run a host with a base URL of the gateway, whose path has a token; returns its place and how it ended."""
    servers = []

    def run(host, script):
        program, start, kind = HOSTS[host]
        found = shutil.which(program, path=FOLDER)
        if found is None:
            pytest.skip(f"{program} is not in {FOLDER}")
        server, upstream = serve(script)
        servers.append(server)
        settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
        settings.GATEWAY_UPSTREAMS = (upstream,)
        project = make_project("hosts")
        backend = backends.create_backend(
            project.pk,
            SYSTEM,
            name="main",
            kind=kind,
            base_url=upstream + ("/v1" if kind == "openai" else ""),
        )
        _, token = backends.create_token(project.pk, backend.public_id, SYSTEM, name="host")
        place = Place(tmp_path, "", "")
        with serving() as url:
            return place, start(place, found, f"{url}/gateway/main/{token}")

    yield run
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("host", HOSTS)
def test_a_stuck_agent_is_stopped_and_the_incident_names_the_call(host, drive):
    script = Script(40, "./probe")
    place, ended = drive(host, script)
    assert place.runs() == 3, ended
    assert ended.returncode == 0, ended
    incident, session = Incident.objects.get(), Session.objects.get(call_count__gt=0)
    assert (incident.kind, incident.decision) == ("repeat", "block")
    assert (session.integration, session.backend, session.blocked_count) == ("gateway", "main", 3)
    blocked = Event.objects.filter(session=session, type="call", decision="block").first()
    assert (incident.tool, incident.session) == (blocked.tool, session)
    assert "./probe" in str(blocked.arguments)


@pytest.mark.parametrize("host", HOSTS)
def test_a_healthy_agent_is_untouched(host, drive):
    commands = [f"./probe {number:032}" for number in range(20)]
    place, ended = drive(host, Script(len(commands), *commands))
    assert place.runs() == len(commands), ended
    assert not Incident.objects.exists()
    assert not Session.objects.filter(blocked_count__gt=0).exists()
