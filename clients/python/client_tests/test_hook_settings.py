"""Changes of the settings of coding agents: files only, without a server, by the commands of both clients."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest

from loopguard_client import command_line, credentials
from loopguard_client.hooks.hosts import HOSTS, Host
from loopguard_client.hooks.plugins import ALL_HOSTS, PLUGIN_HOSTS
from loopguard_client.hooks.settings_files import SettingsProblem, installation

from .case_clients import JAVASCRIPT

URL = "http://127.0.0.1:9"
OTHERS: dict[str, Any] = {
    "model": "opus",
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "./mine.sh"}]},
            {"hooks": [{"type": "command", "command": "curl http://elsewhere/api/v1/hooks/other"}]},
        ],
        "BeforeTool": [{"matcher": "x", "hooks": [{"type": "command", "command": "./mine.sh"}]}],
        "Notification": [],
    },
    "größe": 1,
}


LISTED: dict[str, Any] = OTHERS | {
    "hooks": [
        {"name": "mine", "trigger": "PreToolUse", "action": {"type": "command", "command": "./mine.sh"}},
        {"trigger": "PreToolUse", "action": {"command": "curl http://elsewhere/api/v1/hooks/other"}, "x": 1},
        {"trigger": "Stop", "action": {"type": "agent", "prompt": "Run /api/v1/hooks/kiro"}},
        {"enabled": False},
    ]
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An account of its own, with a stored key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "COPILOT_HOME",
        "OPENCODE_CONFIG_DIR",
        "KILO_CONFIG_DIR",
        "CLINE_DIR",
        "OPENCLAW_STATE_DIR",
        "XDG_CONFIG_HOME",
        "LOOPGUARD_URL",
        "LOOPGUARD_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    credentials.Credentials(URL, "lg_key").store()
    return tmp_path


@pytest.fixture(params=["python", "javascript"])
def main(request):
    """The command of a client; returns its exit status."""
    return command_line.main if request.param == "python" else of_javascript


def of_javascript(words):
    node, program = shutil.which("node"), JAVASCRIPT / "dist" / "command.js"
    if node is None or not program.exists():
        pytest.skip("Not built: run `python3 manage.py test clients javascript --install`; it needs Node.js.")
    done = subprocess.run([node, program, *words], capture_output=True, text=True, timeout=60, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


@pytest.fixture(params=ALL_HOSTS)
def host(request):
    return ALL_HOSTS[request.param]


def written(host, document) -> str:
    file = host.settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text := json.dumps(document, indent=4, ensure_ascii=False) + "\n")
    return text


def backups(host) -> list[Path]:
    return list(host.settings_file().parent.glob("*.before-loopguard-*"))


def test_the_key_is_in_a_file_of_this_account_only():
    file = credentials.curl_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert 'header = "Authorization: Bearer lg_key"\n' in file.read_text()
    assert credentials.Credentials.stored() == credentials.Credentials(URL, "lg_key")


def test_installing_into_nothing_and_removing_leaves_nothing(main, host, capsys):
    assert main(["hooks", "install", host.name]) == 0
    text = host.settings_file().read_text()
    assert f"/api/v1/hooks/{host.name}" in text
    assert "lg_key" not in text
    assert main(["hooks", "install", host.name]) == 0
    assert "already" in capsys.readouterr().out
    assert host.settings_file().read_text() == text
    assert main(["hooks", "uninstall", host.name]) == 0
    assert not host.settings_file().exists()
    assert main(["hooks", "uninstall", host.name]) == 0


def test_files_beside_a_plugin_come_and_go_with_it(main, capsys):
    host = PLUGIN_HOSTS["openclaw"]
    folder = host.settings_file().parent
    ((beside, text),) = host.files_beside().items()
    assert main(["hooks", "install", "openclaw"]) == 0
    assert beside.read_text() == text
    beside.unlink()
    assert main(["hooks", "install", "openclaw"]) == 0
    assert "already" not in capsys.readouterr().out
    assert beside.exists()
    (folder / "mine.txt").touch()
    assert main(["hooks", "uninstall", "openclaw"]) == 0
    assert [file.name for file in folder.iterdir() if "before-loopguard" not in file.name] == ["mine.txt"]


@pytest.mark.parametrize(
    "host", [host for host in HOSTS.values() if not host.trigger_field], ids=lambda host: host.name
)
def test_other_settings_and_hooks_stay_as_they_were(main, host):
    before = written(host, OTHERS)
    assert main(["hooks", "install", host.name]) == 0
    changed = json.loads(host.settings_file().read_text())
    assert host.settings_file().read_text().splitlines()[1].startswith('    "')
    assert list(changed["hooks"])[:3] == list(OTHERS["hooks"])
    for hook, groups in OTHERS["hooks"].items():
        assert changed["hooks"][hook][: len(groups)] == groups
    assert set(host.installed_commands(changed)) == {*host.before, *host.other_hooks}
    assert backups(host)[0].read_text() == before
    assert main(["hooks", "uninstall", host.name]) == 0
    left = json.loads(host.settings_file().read_text())
    left.pop("version", None)
    assert left == OTHERS


@pytest.mark.parametrize(
    "host", [host for host in HOSTS.values() if host.trigger_field], ids=lambda host: host.name
)
def test_hooks_in_a_list_are_added_to_it_and_removed_from_it(main, host):
    written(host, LISTED)
    assert main(["hooks", "install", host.name]) == 0
    changed = json.loads(host.settings_file().read_text())
    assert set(host.installed_commands(changed)) == {*host.before, *host.other_hooks}
    ours = [one for one in changed["hooks"] if host.is_ours(one)]
    assert len(ours) == len(host.before) + len(host.other_hooks)
    assert sorted(map(str, LISTED["hooks"])) == sorted(
        str(one) for one in changed["hooks"] if one not in ours
    )
    host.settings_file().write_text(json.dumps(changed | {"mine": 2}))
    assert main(["hooks", "uninstall", host.name]) == 0
    left = json.loads(host.settings_file().read_text())
    left.pop("version")
    assert left == LISTED | {"mine": 2}


@pytest.mark.parametrize("text", ['{"hooks": {}}', '{"hooks": ["x"]}', '{"hooks": 1}'])
def test_a_list_of_another_form_is_not_changed(main, text, capsys):
    host = HOSTS["kiro"]
    written(host, {})
    host.settings_file().write_text(text)
    assert main(["hooks", "install", host.name]) == 1
    assert "Nothing was changed" in capsys.readouterr().err
    assert host.settings_file().read_text() == text


def test_a_dry_run_shows_the_change_and_changes_nothing(main, host, capsys):
    assert main(["hooks", "install", host.name, "--dry-run"]) == 0
    assert f"/api/v1/hooks/{host.name}" in capsys.readouterr().out
    assert not host.settings_file().exists()
    main(["hooks", "install", host.name])
    text = host.settings_file().read_text()
    capsys.readouterr()
    assert main(["hooks", "uninstall", host.name, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("--- ")
    assert host.settings_file().read_text() == text


def test_another_address_replaces_the_hooks(main, host):
    main(["hooks", "install", host.name])
    installation(host, "http://other:1").make()
    text = host.settings_file().read_text()
    assert "http://other:1/api/v1" in text
    assert URL not in text


@pytest.mark.parametrize(
    "text",
    [
        '{"hooks": { // mine\n}}',
        '{"a": 1 / 2}',
        "[]",
        '{"hooks": []}',
        '{"hooks": {"PreToolUse": {}}}',
        '{"a": 1, "a": 2}',
        "\x00",
        '{"hooks": ',
    ],
)
def test_settings_that_cannot_be_kept_are_not_changed(main, text, capsys):
    host = HOSTS["claude-code"]
    written(host, {})
    host.settings_file().write_text(text)
    assert main(["hooks", "install", host.name]) == 1
    assert "Nothing was changed" in capsys.readouterr().err
    assert host.settings_file().read_text() == text
    assert backups(host) == []


def test_mode_and_links_are_kept(main, home):
    host = HOSTS["claude-code"]
    written(host, OTHERS)
    real = home / "dotfiles.json"
    host.settings_file().rename(real)
    host.settings_file().symlink_to(real)
    real.chmod(0o640)
    main(["hooks", "install", host.name])
    assert host.settings_file().is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "/api/v1/hooks/claude-code" in real.read_text()


def test_a_change_by_another_program_is_not_overwritten():
    host = HOSTS["claude-code"]
    written(host, OTHERS)
    change = installation(host, URL)
    written(host, {"model": "sonnet"})
    with pytest.raises(SettingsProblem, match="another program"):
        change.make()
    assert json.loads(host.settings_file().read_text()) == {"model": "sonnet"}


def test_windows_line_ends_are_kept(main):
    host = HOSTS["gemini-cli"]
    written(host, {})
    host.settings_file().write_bytes(b'{\r\n\t"theme": "x"\r\n}\r\n')
    main(["hooks", "install", host.name])
    content = host.settings_file().read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n") > 3
    assert b'\r\n\t"hooks"' in content


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"",
        b"\n",
        b'{"model":"opus","list":[1,2],"far":1e5,"word":"caf\\u00e9"}',
        b'{\r\n\t"theme": "x"\r\n}',
        b'\xef\xbb\xbf{\n    "theme": "x"\n}\n',
        b'// mine\n{\n  "theme": "x", // dark\n  /* nothing } here */\n}\n',
        b'{\n  "hooks": {"Notification": [ ]},\n  "theme": "x",\n}\n',
    ],
)
@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_uninstalling_restores_the_file_byte_for_byte(main, host, content):
    content = content.replace(b'{"Notification": [ ]}', b"[ ]") if host.trigger_field else content
    written(host, {})
    host.settings_file().write_bytes(content)
    assert main(["hooks", "install", host.name]) == 0
    installed = host.settings_file().read_bytes()
    assert f"/api/v1/hooks/{host.name}".encode() in installed
    for kept in (b"// dark", b"/* nothing } here */", b"caf\\u00e9", b"1e5", b"\xef\xbb\xbf"):
        assert (kept in installed) == (kept in content)
    assert main(["hooks", "install", host.name, "--fail-closed"]) == 0
    assert main(["hooks", "uninstall", host.name]) == 0
    assert host.settings_file().read_bytes() == content


def test_a_file_that_was_changed_after_the_installation_keeps_the_change_and_its_comments(main):
    host = HOSTS["claude-code"]
    written(host, {})
    host.settings_file().write_text('{\n  // mine\n  "theme": "x"\n}\n')
    main(["hooks", "install", host.name])
    file = host.settings_file()
    file.write_text(file.read_text().replace('"x"', '"y"'))
    assert main(["hooks", "uninstall", host.name]) == 0
    assert file.read_text() == '{\n  // mine\n  "theme": "y"\n}\n'


def test_comments_among_the_hooks_are_not_lost_and_the_text_to_paste_is_shown(main, capsys):
    host = HOSTS["claude-code"]
    written(host, {})
    text = '{"hooks": {"Stop": [] // mine\n}}'
    host.settings_file().write_text(text)
    assert main(["hooks", "install", host.name]) == 1
    assert "/api/v1/hooks/claude-code" in capsys.readouterr().err
    assert host.settings_file().read_text() == text


@pytest.mark.parametrize("host", ALL_HOSTS.values(), ids=ALL_HOSTS)
def test_the_settings_of_a_project_can_have_the_hooks(main, host, tmp_path, monkeypatch, capsys):
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    assert main(["hooks", "install", host.name, "--project"]) == 0
    file = host.settings_file(project)
    assert file.is_relative_to(project)
    assert f"/api/v1/hooks/{host.name}" in file.read_text()
    assert not host.settings_file().exists()
    assert "keep the settings out of the repository" in capsys.readouterr().out
    assert main(["hooks", "uninstall", host.name, "--project"]) == 0
    assert not file.exists()


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_on_windows_a_command_is_one_that_each_of_its_shells_reads(host, monkeypatch):
    home = PureWindowsPath(r"C:\Users\Ana Maria")
    monkeypatch.setattr(credentials, "folder", lambda: home / ".loopguard")
    monkeypatch.setattr(os, "name", "nt")
    command = host.command("http://127.0.0.1:8300", host.before[0], fail_closed=True)
    monkeypatch.undo()
    words = (" wait" if host.waits else "") + (" exit" if host.by_exit_code else "")
    assert command == (
        f'sh "C:/Users/Ana Maria/.loopguard/hook" "http://127.0.0.1:8300/api/v1/hooks/{host.name}"{words} closed'
    )


@pytest.mark.parametrize(
    "variable",
    [
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "COPILOT_HOME",
        "OPENCODE_CONFIG_DIR",
        "KILO_CONFIG_DIR",
        "CLINE_DIR",
        "OPENCLAW_STATE_DIR",
    ],
)
def test_folders_of_the_environment_are_used(variable, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert (
        sum(host.settings_file().is_relative_to(tmp_path / "elsewhere") for host in ALL_HOSTS.values()) == 1
    )


@pytest.mark.parametrize("fail_closed", [False, True])
@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_a_hook_without_a_server_lets_calls_run_unless_it_fails_closed(host, fail_closed):
    installation(host, URL, fail_closed=fail_closed).make()
    commands = host.installed_commands(json.loads(host.settings_file().read_text()))
    for hook in (*host.before, host.other_hooks[0]):
        command = commands[hook]
        done = subprocess.run(
            ["/bin/sh", "-c", command], input="{}", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == ""
        denies = fail_closed and hook in host.before
        assert (done.returncode, bool(done.stderr)) == ((2, True) if denies else (0, False))


def test_the_command_runs_as_a_module(home):
    done = subprocess.run(
        [sys.executable, "-m", "loopguard_client", "hooks", "install", "claude-code", "--dry-run"],
        cwd=Path(credentials.__file__).parents[1],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PreToolUse" in done.stdout


@pytest.mark.parametrize(
    "content", [None, b"{}", b'{\n\t"a": [1],\n\t"hooks": {"Stop": []}\n}\n', b'{"version": 2, "b": {}}']
)
@pytest.mark.parametrize("fail_closed", [False, True])
def test_both_commands_write_the_same_bytes(host, content, fail_closed):
    options = ["--fail-closed"] if fail_closed else []
    if content is not None and isinstance(host, Host) and host.trigger_field:
        content = content.replace(b'{"Stop": []}', b"[]")

    def installed(main):
        host.settings_file().parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            host.settings_file().write_bytes(content)
        assert main(["hooks", "install", host.name, *options]) == 0
        written = [host.settings_file().read_bytes(), credentials.curl_file().read_bytes()]
        if host in HOSTS.values():
            written.append(credentials.hook_file().read_bytes())
        assert main(["hooks", "uninstall", host.name]) == 0
        return written

    assert installed(of_javascript) == installed(command_line.main)


def test_one_command_removes_what_the_other_has_installed(host):
    for install, uninstall in ((command_line.main, of_javascript), (of_javascript, command_line.main)):
        assert install(["hooks", "install", host.name]) == 0
        assert uninstall(["hooks", "uninstall", host.name]) == 0
        assert not host.settings_file().exists()
