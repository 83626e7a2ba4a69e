"""The coding agents themselves, headless, against a model server that repeats one call.

Opt-in: `LOOPGUARD_HOSTS` names a folder with the programs, as `npm install` makes it (`node_modules/.bin`). A program that is not
there is skipped visibly.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clients.python.tests.proxy import Proxy
from detection.integrations.hosts import HOSTS, hook_settings
from detection.models import Incident, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from tests.hosts.upstream import Script, serve
from tests.support.projects import make_project

HOST_SECONDS = 400
CLIENT = Path(__file__).parents[2] / "clients" / "python"
FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]
PROBE = """#!/bin/sh
echo run >> "$0.count"
case $1 in
    x) sleep 600 ;;
    ????*) printf %s "$1" | sha256sum ;;  # of a healthy run: each call finds something else
    *) echo "2 tests failed $1" ;;
esac
"""
HEALTHY = [f"./probe {hashlib.sha256(bytes([number])).hexdigest()}" for number in range(200)]
PROMPT = "Run ./probe until it passes."


class Place:
    """A home folder with one host, its hooks, and a program that counts how often it runs."""

    def __init__(self, path, hook_url, token, *, by_command, options):
        self.home, self.work = path / "home", path / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.probe = self.work / "probe"
        self.probe.write_text(PROBE)
        self.probe.chmod(0o755)
        key = self.home / ".loopguard" / "curl"
        self.write(key, f'header = "Authorization: Bearer {token}"\n')
        key.chmod(0o600)
        self.is_killed = self.has_wrong_key = False
        self.installed = lambda: None
        self.url, self.token, self.by_command, self.options = hook_url, token, by_command, options

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
            [sys.executable, "-m", "loopguard_client", "hooks", "install", name, "--url", self.url, *self.options],
            check=True, capture_output=True, timeout=60,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), "LOOPGUARD_KEY": self.token},
        )  # fmt: skip

    def wait(self, process):
        """Return how a host ended; None if it did not, or was to be killed in its second call."""
        deadline = time.monotonic() + HOST_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self.is_killed and self.runs() == 2:
                return None
            time.sleep(0.05)
        return process.returncode

    def runs(self):
        counted = Path(f"{self.probe}.count")
        return len(counted.read_text().splitlines()) if counted.exists() else 0

    def start(self, command, **env):
        """Run the host to its end, or kill it with everything that it started when its time is over.

        Its output goes to files: its children may keep pipes open.
        """
        self.installed()
        if self.has_wrong_key:
            key = self.home / ".loopguard" / "curl"
            key.write_text(key.read_text().replace(self.token, f"{self.token[:-4]}0000"))
        files = [(self.home.parent / name) for name in ("stdout", "stderr")]
        with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
                env={"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_COLOR": "1", **env},
            )  # fmt: skip
            try:
                status = self.wait(process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        texts = [file.read_text(errors="replace")[-3000:] for file in files]
        return subprocess.CompletedProcess(command, status, *texts)


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
def model():
    """Start scripted models; they end with the test."""
    servers = []

    def start(script):
        server, url = serve(script)
        servers.append(server)
        return url

    yield start
    for server in servers:
        server.shutdown()


@pytest.fixture
def place_of(live_server, transactional_db, tmp_path):
    """Prepare the home of a host; returns it with the program and the function that starts it."""

    def prepare(host, *, by_command=True, url=live_server.url, options=()):
        program, start = PROGRAMS[host]
        found = shutil.which(program, path=FOLDER)
        if found is None:
            pytest.skip(f"{program} is not in {FOLDER}")
        token = create_key(make_project("hosts"), "hooks", SYSTEM)[1]
        return Place(tmp_path, url, token, by_command=by_command, options=options), found, start

    return prepare


@pytest.fixture
def drive(place_of, model):
    """Run a host on a script; returns its place and how it ended."""

    def run(host, script, **options):
        place, found, start = place_of(host, **options)
        return place, start(place, found, model(script))

    return run


@pytest.fixture
def proxy(live_server):
    with Proxy(live_server.url).running() as running:
        yield running


@pytest.mark.parametrize(
    ("host", "by_command"),
    [
        *itertools.product(["claude-code", "codex", "copilot"], [True, False]),
        ("opencode", True),  # a plugin, which only the command writes
    ],
)
def test_exactly_three_of_ten_identical_calls_run(host, by_command, drive):
    place, ended = drive(host, Script(10, "./probe"), by_command=by_command)
    assert place.runs() == 3, ended
    incident, session = Incident.objects.first(), Session.objects.get()
    assert (incident.agent, session.integration) == (host, f"hooks/{host}")


@pytest.mark.parametrize("host", PROGRAMS)
def test_a_healthy_run_of_200_calls_is_untouched(host, drive):
    place, ended = drive(host, Script(len(HEALTHY), *HEALTHY))
    assert place.runs() == len(HEALTHY), ended
    assert Session.objects.get().blocked_count == 0
    assert not Incident.objects.exists()


def test_a_cycle_is_stopped_where_the_host_stops_repeats_by_itself(drive):
    """Gemini CLI ends a run at the fifth identical call, so only a cycle shows that the hook acts."""
    place, ended = drive("gemini-cli", Script(27, "./probe a", "./probe b", "./probe c"))
    assert place.runs() < 20, ended
    assert Incident.objects.filter(kind="cycle", agent="gemini-cli").exists()


TWO = ("./probe a", "./probe b")


@pytest.mark.parametrize("mode", ["refuse", "silent", "fail"])
@pytest.mark.parametrize("host", PROGRAMS)
def test_calls_run_while_the_server_is_away_silent_or_broken(host, mode, place_of, model, proxy):
    place, program, start = place_of(host, url=proxy.url)
    place.installed = lambda: setattr(proxy, "mode", mode)
    ended = start(place, program, model(Script(2, *TWO)))
    assert place.runs() == 2, ended
    assert [request for request in proxy.seen if "/hooks/" in request]


@pytest.mark.parametrize("host", PROGRAMS)
def test_no_call_runs_without_an_answer_if_the_hook_fails_closed(host, place_of, model, proxy):
    place, program, start = place_of(host, url=proxy.url, options=["--fail-closed"])
    place.installed = lambda: setattr(proxy, "mode", "refuse")
    ended = start(place, program, model(Script(2, *TWO)))
    assert place.runs() == 0, ended


@pytest.mark.parametrize("host", PROGRAMS)
def test_calls_run_with_a_wrong_key(host, place_of, model):
    place, program, start = place_of(host)
    place.has_wrong_key = True
    ended = start(place, program, model(Script(2, *TWO)))
    assert place.runs() == 2, ended
    assert not Session.objects.exists()


@pytest.mark.parametrize("host", PROGRAMS)
def test_a_killed_host_is_guarded_when_it_starts_again(host, place_of, model):
    place, program, start = place_of(host)
    place.is_killed = True
    start(place, program, model(Script(2, "./probe a", "./probe x")))
    assert place.runs() == 2
    place.is_killed = False
    ended = start(place, program, model(Script(3, "./probe a", "./probe b", "./probe c")))
    assert place.runs() == 5, ended
