"""Hooks whose server is late, away or rejects the key: what the calls cost, and what the person at the host reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from loopguard_client import credentials
from loopguard_client.command_line import main
from loopguard_client.hooks.hosts import HOSTS
from loopguard_client.hooks.plugins import PLUGIN_HOSTS

from .programs import ended_after
from .proxy import Proxy

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "COPILOT_HOME",
        "CLAUDE_CODE_ENTRYPOINT",
        *credentials.ENVIRONMENT,
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def proxy(server):
    with Proxy(server.url).running() as running:
        credentials.Credentials(running.url, server.key).store()
        yield running


class Installed:
    """The hooks of a host, run as the host runs them."""

    def __init__(self, name: str, *options: str) -> None:
        self.host, self.calls = HOSTS[name], 0
        assert main(["hooks", "install", name, *options]) == 0
        self.commands = self.host.installed_commands(json.loads(self.host.settings_file().read_text()))

    def run(
        self, hook: str = "", session: str = "s-1", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        hook = hook or self.host.before[0]
        self.calls += 1
        about = {"hook_event_name": hook, "tool_use_id": f"call-{session}-{self.calls}"}
        body = self.host.sample(session) | about
        return subprocess.run(
            ["/bin/sh", "-c", self.commands[hook]],
            input=json.dumps(body), capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip


ON_STDERR = ("copilot", "cursor", "goose", "openhands", "windsurf", "kiro")
"""Hosts that take no message for the person from a hook."""


def told(done: subprocess.CompletedProcess[str]) -> str:
    return str(json.loads(done.stdout)["systemMessage"])


def test_after_a_late_answer_no_hook_of_the_machine_asks_until_the_time_is_over(proxy):
    claude, codex = Installed("claude-code"), Installed("codex")
    proxy.mode = "silent"
    assert "did not answer in time" in told(claude.run())
    assert len(proxy.seen) == 1
    for other in (claude, codex, claude):
        assert other.run("PostToolUse").returncode == 0
    assert len(proxy.seen) == 1

    proxy.mode = "pass"
    late = credentials.late_file()
    seconds, server = late.read_text().split()
    assert server == proxy.url
    assert time.time() < int(seconds) <= time.time() + 30
    late.write_text(f"{int(time.time()) - 1} {server}\n")
    assert "hookSpecificOutput" in claude.run().stdout
    assert not late.exists()


@pytest.mark.parametrize("content", ["", "soon", "9" * 40, "99999999999 {url}", "{now} http://another:1"])
def test_a_file_that_says_nothing_sensible_about_this_server_keeps_no_hook_from_asking(proxy, content):
    claude = Installed("claude-code")
    credentials.late_file().write_text(content.format(url=proxy.url, now=int(time.time()) + 20))
    assert "hookSpecificOutput" in claude.run().stdout


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("refuse", "cannot be reached"),
        ("fail", "answered with the status 500"),
        ("pass", "does not accept the key"),
    ],
)
def test_an_error_after_a_late_answer_is_not_taken_for_another_late_one(proxy, server, mode, reason):
    claude = Installed("claude-code")
    proxy.mode = mode
    credentials.Credentials(proxy.url, server.key[:-4] + "0000").store()
    credentials.late_file().write_text(f"{int(time.time()) - 1} {proxy.url}\n")
    assert [reason in told(claude.run(session=session)) for session in ("s-1", "s-2")] == [True, True]


def test_a_hook_leaves_the_late_answer_of_another_server_alone(proxy):
    claude = Installed("claude-code")
    credentials.late_file().write_text(about_another := f"{int(time.time()) + 20} http://another:1\n")
    assert "hookSpecificOutput" in claude.run().stdout
    assert credentials.late_file().read_text() == about_another


def test_while_answers_are_late_a_hook_that_fails_closed_denies_at_once(proxy):
    codex = Installed("codex", "--fail-closed")
    proxy.mode = "silent"
    for _ in range(3):
        done = codex.run()
        assert (done.returncode, done.stdout) == (2, "")
        assert "fails closed" in done.stderr
    assert codex.run("PostToolUse").returncode == 0
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("refuse", "cannot be reached"),
        ("silent", "did not answer in time"),
        ("fail", "answered with the status 500"),
    ],
)
@pytest.mark.parametrize("name", [name for name in HOSTS if name not in ON_STDERR])
def test_the_person_is_told_once_per_session(proxy, name, mode, reason):
    host = Installed(name)
    proxy.mode = mode
    first, second, other = host.run(), host.run(), host.run(session="s-2")
    assert reason in told(first)
    assert "LoopGuard" in told(first)
    assert second.stdout == ""
    assert reason in told(other) or "did not answer in time" in told(other)
    assert {done.returncode for done in (first, second, other)} == {0}


def test_a_key_that_is_not_accepted_is_named(proxy, server):
    claude = Installed("claude-code")
    credentials.Credentials(proxy.url, server.key[:-4] + "0000").store()
    assert "does not accept the key" in told(claude.run())
    assert server.key[:-4] not in told(claude.run(session="s-2"))


@pytest.mark.parametrize("name", ON_STDERR)
def test_these_hosts_have_only_standard_error(proxy, name):
    host = Installed(name)
    proxy.mode = "refuse"
    first, second = host.run(), host.run()
    assert ("LoopGuard" in first.stderr, first.stdout, second.stderr) == (True, "", "")
    # Where the exit code is read, only a failed hook shows what it says; anything but 2 lets the call run.
    assert (first.returncode, second.returncode) == (1 if host.host.by_exit_code else 0, 0)


@pytest.mark.parametrize(("name", "kinds"), [("windsurf", 4), ("kiro", 1)])
def test_a_denial_by_exit_code_has_its_reason_on_standard_error(proxy, name, kinds):
    host = Installed(name)
    assert len(host.host.before) == kinds
    for hook in host.host.before:
        ended = [host.run(hook, f"s-{hook}") for _ in range(5)]
        assert [(one.returncode, one.stdout) for one in ended] == [(0, "")] * 3 + [(2, "")] * 2
        assert {bool(one.stderr) for one in ended[:3]} == {False}
        assert ended[3].stderr.count("\n") == 1
        assert "loopguard_check" in ended[3].stderr
        after = host.host.other_hooks[0]
        assert (host.run(after, f"s-{hook}").returncode, host.run(after, f"s-{hook}").stdout) == (0, "")


@pytest.mark.parametrize("name", ["windsurf", "kiro"])
def test_by_exit_code_a_hook_that_fails_closed_denies_without_an_answer(proxy, name):
    host = Installed(name, "--fail-closed")
    assert host.run().returncode == 0
    proxy.mode = "refuse"
    assert [host.run(hook).returncode for hook in host.host.before] == [2] * len(host.host.before)
    assert host.run(host.host.other_hooks[0]).returncode == 1


def test_without_a_person_claude_code_shows_it_when_the_session_ends(proxy):
    claude, sdk = Installed("claude-code"), {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}
    proxy.mode = "refuse"
    assert claude.run(**sdk).stdout == ""
    proxy.mode = "pass"
    claude.run(**sdk)
    ended = claude.run("SessionEnd", **sdk)
    assert "cannot be reached" in ended.stderr
    assert ended.returncode == 1  # or Claude Code does not show it
    assert claude.run("SessionEnd").stderr == ""
    assert claude.run("SessionEnd", session="s-2", **sdk).returncode == 0


@pytest.mark.parametrize("entrypoint", ["cli", "sdk-cli"])
def test_a_session_that_was_stopped_says_so_at_its_end_with_its_address(proxy, server, entrypoint):
    claude = Installed("claude-code")
    session = f"stopped-{entrypoint}"
    for _ in range(12):
        if '"continue":false' in (stop := claude.run(session=session).stdout):
            break
    reason = json.loads(stop)["stopReason"]
    assert reason.startswith("LoopGuard ended this run. ")
    assert reason.endswith(f"/sessions/{session}")
    ended = claude.run("SessionEnd", session=session, CLAUDE_CODE_ENTRYPOINT=entrypoint)
    assert ended.returncode == 1
    assert ended.stderr.startswith("LoopGuard ended this run. ")
    assert ended.stderr.endswith(f"/sessions/{session}\n")
    assert claude.run("SessionEnd", session="s-1").returncode == 0


def test_a_script_that_is_missing_is_no_denial_unless_the_hook_fails_closed(proxy):
    for options, status in (((), 0), (("--fail-closed",), 2)):
        claude = Installed("claude-code", *options)
        credentials.hook_file().unlink()
        assert claude.run().returncode == status
        assert claude.run("PostToolUse").returncode == 0


PLUGIN_RUN = """
import { LoopGuard } from "./loopguard.mjs";

const shown = [];
const client = { tui: { showToast: async ({ body }) => shown.push(body.message) } };
const hooks = await LoopGuard({ directory: ".", client });
let runs = 0;
for (const sessionID of ["s-1", "s-1", "s-2"]) {
  try {
    await hooks["tool.execute.before"]({ sessionID, callID: "c", tool: "search" }, { args: {} });
    runs += 1;
  } catch {}
}
console.log(JSON.stringify({ runs, shown }));
"""


@needs_node
@pytest.mark.parametrize("is_closed", [False, True])
def test_the_plugin_asks_a_late_server_once_and_tells_the_reason_once_per_session(proxy, home, is_closed):
    plugin = PLUGIN_HOSTS["opencode"].plugin(proxy.url, fail_closed=is_closed)
    (home / "loopguard.mjs").write_text(plugin)
    (home / "run.mjs").write_text(PLUGIN_RUN)
    proxy.mode = "silent"

    def run() -> Any:
        with ended_after(60, ["node", "run.mjs"], cwd=home) as process:
            return json.loads(process.communicate(timeout=60)[0])

    proxy.mode = "fail"
    credentials.late_file().write_text(f"{int(time.time()) - 1} {proxy.url}\n")
    assert ["status 500" in one for one in run()["shown"]] == [True, True]
    assert not credentials.late_file().exists()
    proxy.mode, proxy.seen = "silent", []
    said = run()
    assert said["runs"] == (0 if is_closed else 3)
    assert ["did not answer in time" in one for one in said["shown"]] == [True, True]
    assert len(proxy.seen) == 1
    proxy.mode = "pass"
    credentials.late_file().write_text(f"{int(time.time()) - 1} {proxy.url}\n")
    assert run() == {"runs": 3, "shown": []}
    assert not credentials.late_file().exists()
