"""The folder that hosts install as a plugin: its hooks are those of the installer, and they are heard."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loopguard_client import __version__, credentials
from loopguard_client.hooks.hosts import HOSTS, hook_script

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"
FILES = {"claude-code": ("hooks.json", "CLAUDE_PLUGIN_ROOT"), "codex": ("codex.json", "PLUGIN_ROOT")}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def document(path: str) -> Any:
    return json.loads((PLUGIN / path).read_text(encoding="utf-8"))


def commands(host: str) -> dict[str, str]:
    hooks = document(f"hooks/{FILES[host][0]}")["hooks"]
    return {hook: groups[0]["hooks"][0]["command"] for hook, groups in hooks.items()}


def run(host: str, hook: str, **more: Any) -> subprocess.CompletedProcess[str]:
    body = HOSTS[host].sample("s-plugin") | {"hook_event_name": hook, **more}
    return subprocess.run(
        ["/bin/sh", "-c", commands(host)[hook]],
        input=json.dumps(body), capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, FILES[host][1]: str(PLUGIN)},
    )  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_hooks_of_the_plugin_are_those_of_the_installer(name):
    host = HOSTS[name]
    assert set(commands(name)) == {"SessionStart", *host.before, *host.other_hooks}
    handlers = host.handlers("http://127.0.0.1:9", fail_closed=False)
    for hook, groups in document(f"hooks/{FILES[name][0]}")["hooks"].items():
        (group,) = groups
        (handler,) = group["hooks"]
        assert group.get("matcher", "") == ("*" if "Tool" in hook else "")
        words = handler["command"].split()[3:]
        if hook != "SessionStart":
            assert handler["timeout"] == handlers[hook]["timeout"]
            assert words == [word for word in ("wait", "end") if f" {word}" in handlers[hook]["command"]]


def test_the_script_is_that_of_the_client_and_the_versions_are_its():
    assert (PLUGIN / "hooks" / "hook.sh").read_text(encoding="utf-8") == hook_script()
    assert document(".claude-plugin/plugin.json")["version"] == __version__
    assert document(".codex-plugin/plugin.json")["version"] == __version__


@pytest.mark.parametrize("host", FILES)
def test_a_stuck_run_is_denied_with_the_address_and_key_of_the_account(server, host):
    credentials.Credentials(server.url, server.key).store()
    assert run(host, "SessionStart").stdout == ""
    runs = 0
    for number in range(10):
        call = {"session_id": f"s-plugin-{host}", "tool_use_id": f"call_{number}"}
        answer = json.loads(run(host, "PreToolUse", **call).stdout or "{}")
        if answer.get("hookSpecificOutput", {}).get("permissionDecision") == "deny":
            continue
        runs += 1
        run(host, "PostToolUse", tool_response="2 failed", **call)
    assert runs == 3
    assert server.session(f"s-plugin-{host}")["calls"] == 10


@pytest.mark.parametrize("host", FILES)
def test_without_an_address_calls_run_and_the_person_is_told_at_the_start(host):
    assert "loopguard login" in json.loads(run(host, "SessionStart").stdout)["systemMessage"]
    done = run(host, "PreToolUse")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_hooks_keep_is_in_the_folder_of_the_account_and_not_in_the_plugin(home):
    credentials.Credentials("http://127.0.0.1:9", "lg_key").store()
    assert "cannot be reached" in json.loads(run("claude-code", "PreToolUse").stdout)["systemMessage"]
    assert (home / ".loopguard" / "told").is_dir()
    assert {path.name for path in (PLUGIN / "hooks").iterdir()} == {
        "codex.json",
        "hook.sh",
        "hooks.json",
        "run",
    }
