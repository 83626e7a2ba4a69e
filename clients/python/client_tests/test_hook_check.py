"""`loopguard hooks check` and `loopguard login` against a real server, and what keeps hooks from working."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from loopguard_client import credentials
from loopguard_client.command_line import main
from loopguard_client.hooks.check import plugin_without_server
from loopguard_client.hooks.hosts import HOSTS
from loopguard_client.hooks.plugins import ALL_HOSTS, PLUGIN_HOSTS

from .programs import ended_after
from .proxy import Proxy

CODEX = shutil.which("codex")
ENABLED = {"loopguard": {"enabled": True, "hooks": {"allowConversationAccess": True}}}
"""OpenClaw's settings of our plugin."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "COPILOT_HOME",
        "OPENCODE_CONFIG_DIR",
        "KILO_CONFIG_DIR",
        "CLINE_DIR",
        "PI_CODING_AGENT_DIR",
        "OPENCLAW_STATE_DIR",
        "OPENCLAW_CONFIG_PATH",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(variable, raising=False)
    for variable in credentials.ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / ".openclaw").mkdir()
    (tmp_path / ".openclaw" / "openclaw.json").write_text(json.dumps({"plugins": {"entries": ENABLED}}))
    return tmp_path


@pytest.fixture
def codex(tmp_path, monkeypatch):
    """A program that lists hooks as Codex does, and trusts those that its file names."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "codex"
    program.write_text(
        f"""#!{shutil.which("python3")}
import json, os, sys
trusted = os.path.exists({str(tmp_path / "trusted")!r})
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "hooks/list":
        document = json.load(open({str(tmp_path / ".codex/hooks.json")!r}))
        hooks = [
            {{"eventName": name, "command": handler["command"], "enabled": True,
              "trustStatus": "trusted" if trusted else "untrusted"}}
            for name, groups in document["hooks"].items() for group in groups for handler in group["hooks"]
        ]
        print(json.dumps({{"id": request["id"], "result": {{"data": [{{"cwd": "/", "hooks": hooks}}]}}}}), flush=True)
    elif "id" in request:
        print(json.dumps({{"id": request["id"], "result": {{}}}}), flush=True)
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "trusted"


def install(monkeypatch, name: str, url: str, key: str, *more: str) -> None:
    monkeypatch.setenv("LOOPGUARD_KEY", key)
    assert main(["hooks", "install", name, "--url", url, *more]) == 0
    monkeypatch.delenv("LOOPGUARD_KEY")


@pytest.mark.parametrize("name", [name for name in ALL_HOSTS if name != "codex"])
def test_an_installed_hook_is_heard(server, monkeypatch, capsys, name):
    install(monkeypatch, name, server.url, server.key)
    assert main(["hooks", "check", name]) == 0
    output = capsys.readouterr().out
    assert f"reached {server.url}" in output
    assert "calls run" in output
    assert server.key not in output


def test_a_key_file_written_by_hand_is_enough(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    (credentials.folder() / "client.json").unlink()
    credentials.curl_file().write_text(f'header = "Authorization: Bearer {server.key}"\n')
    assert main(["hooks", "check", "claude-code"]) == 0


def test_codex_hooks_do_not_work_until_they_are_trusted(server, monkeypatch, capsys, codex):
    install(monkeypatch, "codex", server.url, server.key)
    assert "trust LoopGuard's hooks" in capsys.readouterr().out
    assert main(["hooks", "check", "codex"]) == 1
    output = capsys.readouterr().out
    assert f"reached {server.url}" in output
    assert "PROBLEM  Codex does not trust the hooks for PreToolUse" in output
    codex.touch()
    assert main(["hooks", "check", "codex"]) == 0
    assert "Codex trusts the hooks." in capsys.readouterr().out


def test_without_codex_nothing_says_that_the_hooks_are_trusted(server, monkeypatch, capsys):
    install(monkeypatch, "codex", server.url, server.key)
    curl = shutil.which("curl")
    monkeypatch.setenv("PATH", str(Path(curl or "").parent))
    if shutil.which("codex"):
        pytest.skip("codex is in the folder of curl")
    assert main(["hooks", "check", "codex"]) == 1
    assert "`codex` is not on the PATH" in capsys.readouterr().out


@pytest.mark.skipif(CODEX is None, reason="codex is not installed")
def test_the_real_codex_lists_and_trusts_the_hooks(server, monkeypatch, capsys, home):
    install(monkeypatch, "codex", server.url, server.key)
    assert main(["hooks", "check", "codex"]) == 1
    assert "does not trust the hooks for preToolUse, postToolUse, userPromptSubmit" in capsys.readouterr().out
    requests = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "test", "version": "1"}}},
        {"method": "initialized"},
        {"id": 2, "method": "hooks/list", "params": {"cwds": ["/"]}},
    ]
    with ended_after(60, [CODEX, "app-server"]) as process:
        process.stdin.write("".join(json.dumps(request) + "\n" for request in requests).encode())
        process.stdin.flush()
        answers = (json.loads(line) for line in process.stdout)
        listed = next(answer for answer in answers if answer.get("id") == 2)["result"]["data"][0]["hooks"]
    trust = "".join(
        f'[hooks.state."{hook["key"]}"]\ntrusted_hash = "{hook["currentHash"]}"\n' for hook in listed
    )
    (home / ".codex" / "config.toml").write_text(trust)
    assert main(["hooks", "check", "codex"]) == 0
    assert "Codex trusts the hooks." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli", "copilot", "opencode", "kilo"])
def test_fail_closed_is_shown(server, monkeypatch, capsys, name):
    install(monkeypatch, name, server.url, server.key, "--fail-closed")
    assert main(["hooks", "check", name]) == 0
    assert "calls do not run" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("options", "consequence"), [((), "calls run"), (("--fail-closed",), "calls do not run")]
)
def test_the_plugin_of_opencode_is_run_without_a_server(server, monkeypatch, capsys, options, consequence):
    install(monkeypatch, "opencode", server.url, server.key, *options)
    assert main(["hooks", "check", "opencode"]) == 0
    assert f"{consequence}, as running the plugin with `node` shows." in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("was", "becomes", "reason"),
    [
        ("answer?.run === false", "answer === null", "a call does not run, which is not what was installed"),
        ("await fetch(", "await undefined(", "does not ask for it"),
        ("if (message) ", "", "changes a result"),
        ("import {", "import [", "cannot run the plugin"),
    ],
)
def test_a_plugin_that_does_not_do_what_it_should_is_found(server, was, becomes, reason):
    credentials.Credentials(server.url, server.key).store()
    opencode = PLUGIN_HOSTS["opencode"]
    plugin = opencode.plugin(server.url)
    assert was in plugin
    found = plugin_without_server(opencode, plugin.replace(was, becomes), is_closed=False)
    assert not found.is_ok
    assert reason in found.text


PLUGIN_RUN = """
import { LoopGuard } from "./loopguard.mjs";

const aborted = [];
const client = { session: { abort: async ({ path }) => aborted.push(path.id) } };
const hooks = await LoopGuard({ directory: ".", client });
let runs = 0;
for (let number = 0; number < 12 && aborted.length === 0; number += 1) {
  const call = { sessionID: process.argv[2], callID: `call_${number}`, tool: "search" };
  try {
    await hooks["tool.execute.before"](call, { args: { q: "x" } });
    runs += 1;
    await hooks["tool.execute.after"]({ ...call, args: { q: "x" } }, { output: "0 results" });
  } catch {}
}
console.log(JSON.stringify({ runs, aborted }));
"""
EXTENSION_RUN = """
import extension from "./loopguard.mjs";

const hooks = {}, session = process.argv[2];
extension({ on: (name, hook) => (hooks[name] = hook) });
const context = { hasUI: false, cwd: ".", sessionManager: { getSessionId: () => session } };
let runs = 0, ended = [];
await hooks.input({ text: "Run it until it passes.", source: "interactive" }, context);
for (let number = 1; number <= 40 && !ended.length; number += 1) {
  const call = { toolCallId: `c${number}`, toolName: "bash", input: { command: "make test" } };
  const answer = await hooks.tool_call(call, context);
  if (answer?.terminate) ended = [session];
  if (answer?.block) continue;
  runs += 1;
  await hooks.tool_result({ ...call, content: [{ type: "text", text: "2 failed" }], isError: false }, context);
}
console.log(JSON.stringify({ runs, aborted: ended }));
"""
CLINE_RUN = """
import { plugin } from "./loopguard.mjs";

const session = process.argv[2], { hooks, setup } = plugin;
setup({}, { session: { sessionId: session }, workspaceInfo: { rootPath: "/src" } });
const text = '<user_input mode="act">Run it.</user_input>';
const prompt = { id: "m-1", role: "user", content: [{ type: "text", text }] };
const snapshot = { agentId: "agent-1", conversationId: "conv-1", messages: [prompt] };
let runs = 0, ended = [];
await hooks.beforeRun({ snapshot });
for (let number = 1; number <= 40 && !ended.length; number += 1) {
  const end = await hooks.beforeModel({ snapshot });
  if (end?.stop && end.reason.startsWith("LoopGuard ended this run.")) ended = [session];
  if (end?.stop) break;
  const toolCall = { toolCallId: `c${number}`, toolName: "run_commands" };
  const call = { snapshot, toolCall, input: { command: "make" } };
  const answer = await hooks.beforeTool(call);
  const refused = { output: { error: answer?.reason }, isError: true };
  const output = [{ query: "make", result: "2 failed", error: "Command exited with code 1", success: false }];
  runs += answer?.skip ? 0 : 1;
  await hooks.afterTool({ ...call, result: answer?.skip ? refused : { output } });
}
console.log(JSON.stringify({ runs, aborted: ended }));
"""
OPENCLAW_RUN = """
import plugin from "./loopguard.mjs";

const hooks = {}, ended = [], lines = [];
plugin.register({
  logger: { warn: (line) => lines.push(line) },
  on: (name, hook) => (hooks[name] = hook),
  registerAgentToolResultMiddleware: (hook) => (hooks.after = hook),
});
const context = { sessionId: process.argv[2], sessionKey: "agent:main:main", runId: "run-1", trigger: "user" };
let runs = 0;
await hooks.before_agent_reply({ cleanedBody: "Run it until it passes." }, context);
for (let number = 1; number <= 40 && !lines.length; number += 1) {
  const call = { toolCallId: `c${number}`, toolName: "exec" };
  const answer = await hooks.before_tool_call({ ...call, params: { command: "make test" } }, context);
  const text = answer?.block ? answer.blockReason : "2 failed";
  const details = answer?.block ? { status: "blocked" } : { status: "completed", exitCode: 1 };
  runs += answer?.block ? 0 : 1;
  await hooks.after({ ...call, isError: false, result: { content: [{ type: "text", text }], details } }, context);
}
if (lines.length === 1 && lines[0].startsWith("LoopGuard ended this run.")) ended.push(context.sessionId);
console.log(JSON.stringify({ runs, aborted: ended }));
"""
RUNS = {
    "opencode.js": PLUGIN_RUN,
    "cline.js": CLINE_RUN,
    "pi.js": EXTENSION_RUN,
    "openclaw.js": OPENCLAW_RUN,
}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("name", PLUGIN_HOSTS)
def test_the_plugin_aborts_its_own_session_at_a_stop(server, home, name):
    credentials.Credentials(server.url, server.key).store()
    (home / "loopguard.mjs").write_text(PLUGIN_HOSTS[name].plugin(server.url))
    (home / "run.mjs").write_text(RUNS[PLUGIN_HOSTS[name].script])
    session = f"ses_{name}"
    with ended_after(60, ["node", "run.mjs", session], cwd=home) as process:
        said = json.loads(process.communicate(timeout=60)[0])
    assert said == {"runs": 3, "aborted": [session]}


def test_without_a_program_that_runs_the_plugin_nothing_is_claimed(server, monkeypatch, capsys, tmp_path):
    install(monkeypatch, "opencode", server.url, server.key)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["hooks", "check", "opencode"]) == 0
    output = capsys.readouterr().out
    assert "Not verified: calls run while the server is unreachable" in output
    assert "`node` or `bun`" in output


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("refuse", "failed"), ("fail", "answered 500"), ("busy", "answered 503")],
)
def test_the_reason_is_shown_when_the_server_does_not_answer(server, monkeypatch, capsys, mode, reason):
    with Proxy(server.url).running() as proxy:
        install(monkeypatch, "claude-code", proxy.url, server.key)
        proxy.mode = mode
        assert main(["hooks", "check", "claude-code"]) == 1
    output = capsys.readouterr().out
    assert "PROBLEM  A call sent through the hook got no answer" in output
    assert reason in output
    assert "calls run" in output


def test_a_missing_server_is_named(server, monkeypatch, capsys):
    with Proxy(server.url).running() as proxy:
        install(monkeypatch, "claude-code", proxy.url, server.key)
    assert main(["hooks", "check", "claude-code"]) == 1
    assert f"No server listens at {proxy.url}." in capsys.readouterr().out


def test_a_key_that_does_not_work_any_more_is_named(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    credentials.Credentials(server.url, server.key[:-4] + "0000").store()
    assert main(["hooks", "check", "claude-code"]) == 1
    assert "answered 401" in capsys.readouterr().out


def test_a_key_that_others_can_read_is_named(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    credentials.curl_file().chmod(0o644)
    assert main(["hooks", "check", "claude-code"]) == 1
    assert "chmod 600" in capsys.readouterr().out


def test_missing_and_disabled_hooks_are_named(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    file = HOSTS["claude-code"].settings_file()
    document = json.loads(file.read_text())
    del document["hooks"]["PostToolUse"]
    file.write_text(json.dumps({**document, "disableAllHooks": True}))
    assert main(["hooks", "check", "claude-code"]) == 1
    output = capsys.readouterr().out
    assert "no LoopGuard hook for PostToolUse" in output
    assert "`disableAllHooks`" in output


@pytest.mark.parametrize(
    ("name", "file", "content", "reason"),
    [
        ("claude-code", ".claude/settings.json", '{"disableAllHooks": true}', "`disableAllHooks`"),
        ("claude-code", ".claude/settings.local.json", '{"disableAllHooks": true, /* mine */}', "remove it"),
        ("gemini-cli", ".gemini/settings.json", '{"hooksConfig": {"enabled": false}}', "set it to true"),
    ],
)
def test_a_project_that_switches_hooks_off_is_named(
    server, monkeypatch, capsys, tmp_path, name, file, content, reason
):
    install(monkeypatch, name, server.url, server.key)
    project = tmp_path / "project"
    (project / file).parent.mkdir(parents=True)
    (project / file).write_text(content)
    monkeypatch.chdir(project)
    assert main(["hooks", "check", name]) == 1
    output = capsys.readouterr().out
    assert str(project / file) in output
    assert reason in output
    monkeypatch.chdir(tmp_path)
    assert main(["hooks", "check", name]) == 0


@pytest.mark.parametrize(
    ("name", "file", "listed"),
    [
        ("goose", ".config/goose/settings.json", "loopguard"),
        ("goose", "project/.config/goose/settings.json", "loopguard"),
        ("cline", ".cline/data/settings/global-settings.json", "{home}/.cline/plugins/loopguard.js"),
    ],
)
def test_a_plugin_that_its_host_does_not_load_is_named(server, monkeypatch, capsys, home, name, file, listed):
    install(monkeypatch, name, server.url, server.key)
    (home / "project").mkdir()
    monkeypatch.chdir(home / "project")
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(json.dumps({"disabledPlugins": ["another", listed.format(home=home)]}))
    assert main(["hooks", "check", name]) == 1
    output = capsys.readouterr().out
    assert f"`disabledPlugins` in {home / file}" in output
    (home / file).write_text('{"disabledPlugins": ["another"]}')
    assert main(["hooks", "check", name]) == 0


@pytest.mark.parametrize(
    ("plugins", "reason"),
    [
        ({"entries": {}}, "does not enable the plugin"),
        ({"entries": {"loopguard": {"enabled": False}}}, "does not enable the plugin"),
        ({"allow": ["another"]}, "does not enable the plugin"),
        ({"deny": ["loopguard"]}, "does not enable the plugin"),
        ({"enabled": False}, "does not enable the plugin"),
        ({"entries": {"loopguard": {"enabled": True}}}, "`allowConversationAccess` is not set"),
        ({"allow": ["another", "loopguard"]}, ""),
        ({}, ""),
    ],
)
def test_openclaw_that_does_not_load_the_plugin_is_named(server, monkeypatch, capsys, home, plugins, reason):
    install(monkeypatch, "openclaw", server.url, server.key)
    document = {"plugins": {"entries": ENABLED} | plugins}
    (home / ".openclaw" / "openclaw.json").write_text(json.dumps(document))
    assert main(["hooks", "check", "openclaw"]) == bool(reason)
    assert reason in capsys.readouterr().out


def test_settings_of_openclaw_that_cannot_be_read_are_told(server, monkeypatch, capsys, home):
    install(monkeypatch, "openclaw", server.url, server.key)
    (home / ".openclaw" / "openclaw.json").write_text("{ plugins: {} }")
    assert main(["hooks", "check", "openclaw"]) == 0
    assert "Not verified: OpenClaw loads the plugin" in capsys.readouterr().out
    (home / ".openclaw" / "extensions" / "loopguard" / "openclaw.plugin.json").unlink()
    assert main(["hooks", "check", "openclaw"]) == 1
    assert "is not the LoopGuard plugin" in capsys.readouterr().out


def test_codex_with_hooks_switched_off_as_a_whole_is_named(server, monkeypatch, capsys, codex, home):
    install(monkeypatch, "codex", server.url, server.key)
    codex.touch()
    (home / ".codex" / "config.toml").write_text("[features]\nhooks = false\n")
    assert main(["hooks", "check", "codex"]) == 1
    assert "`hooks = false` below [features]" in capsys.readouterr().out


def test_a_hook_that_would_deny_every_call_without_a_server_is_named(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    file = HOSTS["claude-code"].settings_file()
    file.write_text(file.read_text().replace("/claude-code", "/claude-code; exit 7"))
    assert main(["hooks", "check", "claude-code"]) == 1
    assert "the hook ends with 7" in capsys.readouterr().out


def test_another_script_than_that_of_this_version_is_named(server, monkeypatch, capsys):
    install(monkeypatch, "claude-code", server.url, server.key)
    credentials.hook_file().write_text("exit 0")
    assert main(["hooks", "check", "claude-code"]) == 1
    assert "is not that of this version" in capsys.readouterr().out


@pytest.mark.parametrize("name", ALL_HOSTS)
def test_nothing_installed_is_a_problem(name, capsys):
    assert main(["hooks", "check", name]) == 1
    assert f"loopguard hooks install {name}" in capsys.readouterr().out


@pytest.mark.parametrize(("choice", "is_denied"), [("allow_once", False), ("skip", True)])
@pytest.mark.parametrize("name", ["codex", "gemini-cli"])
def test_an_installed_hook_waits_for_the_decision_about_a_held_call(
    server, monkeypatch, name, choice, is_denied
):
    install(monkeypatch, name, server.url, server.key)
    host = HOSTS[name]
    command = host.installed_commands(json.loads(host.settings_file().read_text()))[host.before[0]]
    session = f"held-{name}-{choice}"

    def hook(number: int) -> str:
        body = {**host.sample(session), "tool_use_id": f"call-{number}"}
        with ended_after(90, ["/bin/sh", "-c", command]) as process:
            output, errors = process.communicate(json.dumps(body).encode(), timeout=90)
        assert (process.returncode, errors) == (0, b"")
        return output.decode()

    hook(0)
    server.patch(f"/sessions/{session}/policy", {"mode": "ask"})
    for number in range(1, 3):
        hook(number)
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(hook(3)), daemon=True)
    waiting.start()
    deadline = time.monotonic() + 60
    while not (held := [one for one in server.get("/approvals")["items"] if one["session"] == session]):
        assert waiting.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.post(f"/approvals/{held[0]['id']}/decision", {"choice": choice})
    waiting.join(90)
    assert ["deny" in answer for answer in answers] == [is_denied]


def test_login_stores_a_key_that_the_server_accepts(server, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(server.key + "\n"))
    assert main(["login", server.url]) == 0
    assert credentials.Credentials.stored() == credentials.Credentials(server.url, server.key)
    shown = capsys.readouterr().out
    assert shown == f"Stored in {credentials.curl_file()}.\n"
    assert server.key not in shown
    assert main(["login", server.url]) == 0
    assert capsys.readouterr().out == f"Already stored in {credentials.curl_file()}.\n"


def test_login_rejects_a_wrong_key(server, monkeypatch, capsys):
    monkeypatch.setenv("LOOPGUARD_KEY", "lg_wrong")
    assert main(["login", server.url]) == 1
    assert "does not accept this key" in capsys.readouterr().err
    assert credentials.Credentials.stored() is None


def test_without_an_address_install_says_what_to_do(capsys):
    assert main(["hooks", "install", "claude-code"]) == 1
    assert "--url" in capsys.readouterr().err
