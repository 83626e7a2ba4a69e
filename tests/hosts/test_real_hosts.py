"""The coding agents themselves, headless, against a model server that repeats one call.

Opt-in: `LOOPGUARD_HOSTS` names a folder with the programs, as `npm install` makes it (`node_modules/.bin`). A program that is not
there is skipped visibly.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detection.integrations.hosts import HOSTS, hook_settings
from detection.models import Incident, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from tests.hosts.upstream import Script, serve
from tests.support.projects import make_project

CLIENT = Path(__file__).parents[2] / "clients" / "python"
FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]
PROBE = '#!/bin/sh\necho run >> "$0.count"\necho "2 tests failed $1"\n'
PROMPT = "Run ./probe until it passes."


class Place:
    """A home folder with one host, its hooks, and a program that counts how often it runs."""

    def __init__(self, path, hook_url, token, *, by_command):
        self.home, self.work = path / "home", path / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.probe = self.work / "probe"
        self.probe.write_text(PROBE)
        self.probe.chmod(0o755)
        key = self.home / ".loopguard" / "curl"
        self.write(key, f'header = "Authorization: Bearer {token}"\n')
        key.chmod(0o600)
        self.url, self.token, self.by_command = hook_url, token, by_command

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))

    def set_hooks(self, name, **settings):
        """Set the hooks as the Connect page shows them, or as the command of the client does."""
        host = HOSTS[name]
        file = Path(host.settings_file.replace("~", str(self.home)))
        if self.by_command:
            if settings:
                self.write(file, settings)
            self.install(name)
        else:
            self.write(file, hook_settings(host, self.url) | settings)

    def install(self, name):
        subprocess.run(
            [sys.executable, "-m", "loopguard_client", "hooks", "install", name, "--url", self.url],
            check=True, capture_output=True, timeout=60,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), "LOOPGUARD_KEY": self.token},
        )  # fmt: skip

    def runs(self):
        counted = Path(f"{self.probe}.count")
        return len(counted.read_text().splitlines()) if counted.exists() else 0

    def start(self, command, **env):
        return subprocess.run(
            command, cwd=self.work, capture_output=True, text=True, timeout=170, stdin=subprocess.DEVNULL, check=False,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_COLOR": "1", **env},
        )  # fmt: skip


def claude_code(place, program, upstream):
    place.set_hooks("claude-code")
    return place.start(
        [program, "-p", PROMPT, "--allowedTools", "Bash", "--model", "claude-sonnet-4-5"],
        ANTHROPIC_BASE_URL=upstream, ANTHROPIC_API_KEY="sk-ant-x", DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1",
    )  # fmt: skip


def codex(place, program, upstream):
    place.set_hooks("codex")
    provider = f'name = "fake"\nbase_url = "{upstream}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
    place.write(
        place.home / ".codex" / "config.toml",
        f'model = "gpt-5"\nmodel_provider = "fake"\n[model_providers.fake]\n{provider}',
    )
    return place.start(
        [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
         "--dangerously-bypass-hook-trust", PROMPT],
        FAKE_KEY="x",
    )  # fmt: skip


def gemini_cli(place, program, upstream):
    place.set_hooks(
        "gemini-cli",
        security={"auth": {"selectedType": "gemini-api-key"}},
        general={"disableAutoUpdate": True},
    )
    place.write(place.home / ".gemini" / "trustedFolders.json", {str(place.work): "TRUST_FOLDER"})
    return place.start(
        [program, "-p", PROMPT, "--yolo", "-m", "gemini-2.5-pro"],
        GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=upstream, GEMINI_CLI_TRUST_WORKSPACE="true",
    )  # fmt: skip


def copilot(place, program, upstream):
    place.set_hooks("copilot")
    return place.start(
        [program, "-p", PROMPT, "--allow-all-tools", "--allow-all-paths"],
        COPILOT_OFFLINE="true", COPILOT_PROVIDER_BASE_URL=f"{upstream}/v1", COPILOT_PROVIDER_TYPE="openai",
        COPILOT_PROVIDER_API_KEY="x", COPILOT_MODEL="gpt-5",
    )  # fmt: skip


def opencode(place, program, upstream):
    place.install("opencode")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{upstream}/v1", "apiKey": "x"},
        "models": {"gpt-5": {}},
    }
    settings = {
        "provider": {"fake": provider},
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    place.write(place.home / ".config" / "opencode" / "opencode.json", settings)
    return place.start([program, "run", "-m", "fake/gpt-5", PROMPT], OPENCODE_DISABLE_MODELS_FETCH="1")


PROGRAMS = {
    "claude-code": ("claude", claude_code),
    "codex": ("codex", codex),
    "gemini-cli": ("gemini", gemini_cli),
    "copilot": ("copilot", copilot),
    "opencode": ("opencode", opencode),
}


@pytest.fixture
def drive(live_server, transactional_db, tmp_path):
    """Run a host on a script; returns how it ended."""
    servers = []

    def run(host, script, *, by_command=True):
        program, start = PROGRAMS[host]
        found = shutil.which(program, path=FOLDER)
        if found is None:
            pytest.skip(f"{program} is not in {FOLDER}")
        token = create_key(make_project("hosts"), "hooks", SYSTEM)[1]
        place = Place(tmp_path, live_server.url, token, by_command=by_command)
        server, url = serve(script)
        servers.append(server)
        ended = start(place, found, url)
        return place, ended

    yield run
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "by_command"),
    [
        *itertools.product(["claude-code", "codex", "copilot"], [True, False]),
        ("opencode", True),  # a plugin, which only the command writes
    ],
)
def test_exactly_three_of_ten_identical_calls_run(host, by_command, drive):
    place, ended = drive(host, Script(10, "./probe"), by_command=by_command)
    assert place.runs() == 3, (ended.stdout[-2000:], ended.stderr[-3000:])
    incident, session = Incident.objects.first(), Session.objects.get()
    assert (incident.agent, session.integration) == (host, f"hooks/{host}")


@pytest.mark.parametrize("host", PROGRAMS)
def test_a_run_of_different_calls_is_left_alone(host, drive):
    place, ended = drive(host, Script(12, *(f"./probe {number}" for number in range(12))))
    assert place.runs() == 12, (ended.stdout[-2000:], ended.stderr[-3000:])
    assert Session.objects.get().blocked_count == 0


def test_a_cycle_is_stopped_where_the_host_stops_repeats_by_itself(drive):
    """Gemini CLI ends a run at the fifth identical call, so only a cycle shows that the hook acts."""
    place, ended = drive("gemini-cli", Script(30, "./probe a", "./probe b", "./probe c"))
    assert place.runs() < 20, (ended.stdout[-2000:], ended.stderr[-3000:])
    assert Incident.objects.filter(kind="cycle", agent="gemini-cli").exists()
