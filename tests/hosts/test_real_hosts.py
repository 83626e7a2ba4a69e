"""The coding agents themselves, headless, against a model server that repeats one call.

Opt-in: `LOOPGUARD_HOSTS` names a folder with the programs, as `npm install` makes it (`node_modules/.bin`). A program that is not
there is skipped visibly.
"""

import hashlib
import itertools
import os
import shutil
import uuid
from pathlib import Path

import pytest

from client_tests.proxy import Proxy
from detection.models import Incident, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from tests.hosts.place import CLIENT, PROMPT, Place
from tests.hosts.upstream import Script, serve
from tests.support.projects import make_project

FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]
PLUGIN = CLIENT.parent / "plugin"
HEALTHY = [f"./probe {hashlib.sha256(bytes([number])).hexdigest()}" for number in range(200)]


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
    trusted = [] if place.by_run else ["--dangerously-bypass-hook-trust"]
    return place.start(
        [
            program,
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            *trusted,
            PROMPT,
        ],
        FAKE_KEY="x",
    )


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


def opencode(place, program, upstream, name="opencode"):
    place.install(name)
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
    place.write(place.home / ".config" / name / f"{name}.json", settings)
    variable = f"{name.upper()}_DISABLE_MODELS_FETCH"
    return place.start([program, "run", "-m", "fake/gpt-5", PROMPT], **{variable: "1"})


def kilo(place, program, upstream):
    return opencode(place, program, upstream, "kilo")


def pi(place, program, upstream):
    place.install("pi")
    model = {
        "id": "gpt-5", "name": "gpt-5", "reasoning": False, "input": ["text"], "contextWindow": 100_000, "maxTokens": 4_000,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }  # fmt: skip
    provider = {"baseUrl": f"{upstream}/v1", "apiKey": "x", "api": "openai-completions", "models": [model]}
    place.write(place.home / ".pi" / "agent" / "models.json", {"providers": {"fake": provider}})
    return place.start([program, "-p", "--provider", "fake", "--model", "gpt-5", PROMPT], PI_OFFLINE="1")


def cline(place, program, upstream):
    place.install("cline")
    signing_in = place.start([program, "auth", "openai", "-k", "x", "-m", "gpt-5", "-b", f"{upstream}/v1"])
    assert signing_in.returncode == 0, signing_in
    return place.start([program, "--auto-approve", "true", PROMPT])


def openclaw(place, program, upstream):
    place.install("openclaw")
    model = {
        "id": "gpt-5", "name": "gpt-5", "reasoning": False, "input": ["text"], "contextWindow": 100_000, "maxTokens": 4_000,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }  # fmt: skip
    provider = {"baseUrl": f"{upstream}/v1", "apiKey": "x", "api": "openai-completions", "models": [model]}
    entry = {"enabled": True, "hooks": {"allowConversationAccess": True}}
    settings = {
        "models": {"mode": "merge", "providers": {"fake": provider}},
        "agents": {
            "defaults": {
                "model": {"primary": "fake/gpt-5"},
                "workspace": str(place.work),
                "skipBootstrap": True,
            }
        },
        "plugins": {"entries": {"loopguard": entry}},
    }
    place.write(place.home / ".openclaw" / "openclaw.json", settings)
    return place.start(
        [
            program,
            "agent",
            "--local",
            "--agent",
            "main",
            "--session-id",
            str(uuid.uuid4()),
            "--message",
            PROMPT,
        ]
    )


def qwen_code(place, program, upstream):
    place.set_hooks(
        "qwen-code",
        security={"auth": {"selectedType": "openai"}},
        general={"disableAutoUpdate": True},
    )
    return place.start(
        [program, "-p", PROMPT, "--yolo", "--auth-type", "openai"],
        OPENAI_API_KEY="x", OPENAI_BASE_URL=f"{upstream}/v1", OPENAI_MODEL="gpt-5",
    )  # fmt: skip


def droid(place, program, upstream):
    model = {
        "model": "gpt-5", "displayName": "fake", "baseUrl": f"{upstream}/v1", "apiKey": "x",
        "provider": "generic-chat-completion-api", "maxOutputTokens": 4_000,
    }  # fmt: skip
    place.set_hooks("droid", customModels=[model])
    return place.start(
        [program, "exec", "--skip-permissions-unsafe", "-m", "custom:gpt-5", PROMPT], FACTORY_API_KEY="fk-x"
    )


PROGRAMS = {
    "claude-code": ("claude", claude_code),
    "codex": ("codex", codex),
    "gemini-cli": ("gemini", gemini_cli),
    "copilot": ("copilot", copilot),
    "opencode": ("opencode", opencode),
    "kilo": ("kilo", kilo),
    "cline": ("cline", cline),
    "pi": ("pi", pi),
    "openclaw": ("openclaw", openclaw),
    "qwen-code": ("qwen", qwen_code),
    "droid": ("droid", droid),
}
ENDED = ("claude-code", "opencode", "kilo", "pi", "openclaw")
"""Hosts that show whose stop has ended the run. Gemini CLI and Cline have ended it before: see the cycle."""
TOLD = ("claude-code", "gemini-cli", "opencode", "kilo", "pi", "openclaw")
"""Hosts that show a person without a screen what a hook says; Codex CLI shows it on its screen only."""


def documented(host):
    """Return the runs and the requests of a run of 40 identical calls, as the table in the documentation has them."""
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
    table = page.partition("<!-- hosts -->")[2].partition("<!-- end hosts -->")[0]
    row = next(line for line in table.splitlines() if line.startswith(f"| `{host}` "))
    runs, requests = (int(cell) for cell in row.split("|")[3:5])
    return runs, requests


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

    def prepare(host, *, url=live_server.url, **how):
        program, start = PROGRAMS[host]
        found = shutil.which(program, path=FOLDER)
        if found is None:
            pytest.skip(f"{program} is not in {FOLDER}")
        token = create_key(make_project("hosts"), "hooks", SYSTEM)[1]
        return Place(tmp_path, url, token, **({"by_command": True} | how)), found, start

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
        *itertools.product(["claude-code", "codex", "copilot", "droid"], [True, False]),
        ("opencode", True),  # plugins, which only the command writes
        ("kilo", True),
        ("cline", True),
        ("pi", True),
        ("openclaw", True),
    ],
)
def test_exactly_three_of_ten_identical_calls_run(host, by_command, drive):
    place, ended = drive(host, Script(10, "./probe"), by_command=by_command)
    assert place.runs() == 3, ended
    incident, session = Incident.objects.first(), Session.objects.get()
    assert (incident.agent, session.integration) == (host, f"hooks/{host}")


@pytest.mark.parametrize("host", PROGRAMS)
def test_a_stuck_run_ends_where_its_host_can_end_it(host, drive):
    script = Script(40, "./probe")
    place, ended = drive(host, script)
    asked = [path for path, body in script.requests if body.get("tools")]
    assert (place.runs(), len(asked)) == documented(host), ended
    if host in ENDED:
        session = Session.objects.get()
        assert "LoopGuard ended this run." in ended.stderr
        assert f"/sessions/{session.external_id}" in ended.stderr


@pytest.mark.parametrize(
    "host", ["claude-code", "codex", "copilot", "droid", "opencode", "kilo", "pi", "qwen-code"]
)
def test_loopguard_run_gives_a_host_its_hooks_for_one_run(host, drive):
    place, ended = drive(host, Script(40, "./probe"), by_run=True)
    assert place.runs() == documented(host)[0], ended
    session = Session.objects.get()
    assert session.integration == f"hooks/{host}"
    assert [tag[:4] for tag in session.tags] == ["run-"]
    assert "hooks for this run" in ended.stderr
    assert ended.returncode == 75, ended
    assert "/api/v1/hooks/" not in "".join(file.read_text(errors="replace") for file in place.settings())


@pytest.mark.parametrize("host", PROGRAMS)
def test_a_healthy_run_of_200_calls_is_untouched(host, drive):
    place, ended = drive(host, Script(len(HEALTHY), *HEALTHY))
    assert place.runs() == len(HEALTHY), ended
    assert Session.objects.get().blocked_count == 0
    assert not Incident.objects.exists()


@pytest.mark.parametrize(("host", "shown"), [("gemini-cli", "stderr"), ("cline", "stdout")])
def test_a_cycle_is_stopped_where_the_host_stops_repeats_by_itself(host, shown, drive):
    """These hosts end a run at the fifth identical call, so only a cycle shows that the hook acts."""
    script = Script(40, "./probe a", "./probe b", "./probe c")
    place, ended = drive(host, script)
    assert place.runs() < 20, ended
    assert len([path for path, body in script.requests if body.get("tools")]) < 25, ended
    assert "LoopGuard ended this run." in getattr(ended, shown)
    assert Incident.objects.filter(kind="cycle", agent=host).exists()


TWO = ("./probe a", "./probe b")


@pytest.mark.parametrize("mode", ["refuse", "silent", "fail"])
@pytest.mark.parametrize("host", PROGRAMS)
def test_calls_run_while_the_server_is_away_silent_or_broken(host, mode, place_of, model, proxy):
    place, program, start = place_of(host, url=proxy.url)
    place.installed = lambda: setattr(proxy, "mode", mode)
    ended = start(place, program, model(Script(2, *TWO)))
    assert place.runs() == 2, ended
    asked = [request for request in proxy.seen if "/hooks/" in request]
    assert asked
    assert mode != "silent" or len(asked) == 1, "only the first hook waits for a late answer"
    if host in TOLD:
        assert ended.stderr.count("LoopGuard has not seen everything") == 1, ended


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
    if host in TOLD:
        assert ended.stderr.count("does not accept the key") == 1, ended
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


def claude_code_with_a_plugin(place, program, upstream, *options):
    return place.start(
        [program, *options, "-p", PROMPT, "--allowedTools", "Bash", "--model", "claude-sonnet-4-5"],
        ANTHROPIC_BASE_URL=upstream, ANTHROPIC_API_KEY="sk-ant-x", DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1",
    )  # fmt: skip


def connected(place):
    """A place with the address that `loopguard login` stores."""
    place.write(place.home / ".loopguard" / "client.json", {"url": place.url})
    return place


@pytest.mark.parametrize("is_installed", [False, True])
def test_the_plugin_folder_is_valid_and_guards_claude_code(is_installed, place_of, model):
    place, program, _ = place_of("claude-code")
    connected(place)
    assert place.start([program, "plugin", "validate", "--strict", str(PLUGIN)]).returncode == 0
    options = [] if is_installed else ["--plugin-dir", str(PLUGIN)]
    if is_installed:
        assert place.start([program, "plugin", "marketplace", "add", str(PLUGIN)]).returncode == 0
        assert place.start([program, "plugin", "install", "loopguard@loopguard"]).returncode == 0
    script = Script(40, "./probe")
    ended = claude_code_with_a_plugin(place, program, model(script), *options)
    asked = [path for path, body in script.requests if body.get("tools")]
    assert (place.runs(), len(asked)) == documented("claude-code"), ended
    assert "LoopGuard ended this run." in ended.stderr


def test_codex_installs_the_plugin_folder_and_is_guarded(place_of, model):
    place, program, _ = place_of("codex")
    connected(place)
    assert place.start([program, "plugin", "marketplace", "add", str(PLUGIN)]).returncode == 0
    assert place.start([program, "plugin", "add", "loopguard@loopguard"]).returncode == 0
    script = Script(40, "./probe")
    settings = place.home / ".codex" / "config.toml"
    provider = (
        f'name = "fake"\nbase_url = "{model(script)}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
    )
    place.write(
        settings,
        f'model = "gpt-5"\nmodel_provider = "fake"\n{settings.read_text()}\n[model_providers.fake]\n{provider}',
    )
    ended = place.start(
        [program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
         "--dangerously-bypass-hook-trust", PROMPT],
        FAKE_KEY="x",
    )  # fmt: skip
    asked = [path for path, body in script.requests if body.get("tools")]
    assert (place.runs(), len(asked)) == documented("codex"), ended
