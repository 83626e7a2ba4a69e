"""Finds out whether the hooks of a coding agent work, by running them as the agent does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loopguard_client import credentials, wire
from loopguard_client.hooks import jsonc
from loopguard_client.hooks.codex import listed_hooks
from loopguard_client.hooks.hosts import CLOSED, Host, hook_script
from loopguard_client.hooks.plugins import PluginHost
from loopguard_client.hooks.programs import program_with_pipes
from loopguard_client.hooks.settings_files import SettingsProblem, parsed_settings
from loopguard_client.transport import NoAnswer, Transport

_JAVASCRIPT: Final = ("node", "bun")
_COUNT_REQUESTS: Final = """
const send = globalThis.fetch;
let asked = 0;
globalThis.fetch = (...request) => {
  asked += 1;
  return send(...request);
};
"""
_PLUGIN_CHECKS: Final[Mapping[str, str]] = {
    "opencode.js": """
import { LoopGuard } from "./loopguard.mjs";
const hooks = await LoopGuard({ directory: "." });
const call = { sessionID: "loopguard-check", callID: "check", tool: "loopguard_check" };
let isRun = true;
try {
  await hooks["tool.execute.before"](call, { args: {} });
} catch {
  isRun = false;
}
const after = { output: "the result" };
await hooks["tool.execute.after"]({ ...call, args: {} }, after);
console.log(JSON.stringify({ asked, isRun, result: after.output }));
""",
    "cline.js": """
import { plugin } from "./loopguard.mjs";
plugin.setup({}, { session: { sessionId: "loopguard-check" }, workspaceInfo: { rootPath: "." } });
const call = (toolCallId) => ({
  snapshot: { agentId: "check", messages: [] },
  toolCall: { toolCallId, toolName: "loopguard_check" },
  input: {},
});
const isRun = (await plugin.hooks.beforeTool(call("check")))?.skip !== true;
const result = { output: "the result" };
const after = await plugin.hooks.afterTool({ ...call("another, as a call that did not run has no result"), result });
console.log(JSON.stringify({ asked, isRun, result: after?.appendContext ?? result.output }));
""",
    "pi.js": """
import extension from "./loopguard.mjs";
const hooks = {};
extension({ on: (name, hook) => (hooks[name] = hook) });
const context = { hasUI: false, cwd: ".", sessionManager: { getSessionId: () => "loopguard-check" } };
const call = { toolCallId: "check", toolName: "loopguard_check", input: {} };
const isRun = (await hooks.tool_call(call, context))?.block !== true;
const content = [{ type: "text", text: "the result" }];
const after = await hooks.tool_result({ ...call, content, isError: false }, context);
console.log(JSON.stringify({ asked, isRun, result: (after?.content ?? content).map((part) => part.text).join() }));
""",
    "openclaw.js": """
import plugin from "./loopguard.mjs";
const hooks = {};
plugin.register({
  on: (name, hook) => (hooks[name] = hook),
  registerAgentToolResultMiddleware: (hook) => (hooks.after = hook),
});
const context = { sessionId: "loopguard-check" };
const call = { toolCallId: "check", toolName: "loopguard_check" };
const isRun = (await hooks.before_tool_call({ ...call, params: {} }, context))?.block !== true;
const content = [{ type: "text", text: "the result" }];
const after = await hooks.after({ ...call, result: { content } }, context);
console.log(JSON.stringify({ asked, isRun, result: (after?.result.content ?? content)[0].text }));
""",
}
"""How each script is run as its host does, by the name of the script."""
_ADDRESS = re.compile(r"https?://[^\s'\"]+(?=/api/v1/hooks/)")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    is_ok: bool
    text: str


def check(host: Host | PluginHost, project: Path | None = None) -> Iterator[Finding]:
    """Check the hooks of a host, from its settings to the server; stop when further checks are pointless.

    Sends one call and its result to the server, in a session named ``loopguard-check-…``.
    """
    file = host.settings_file(project)
    key = _key()
    yield key
    if isinstance(host, PluginHost):
        yield from _check_plugin(host, file, project)
        return
    try:
        document = parsed_settings(host, project)
    except SettingsProblem as problem:
        yield Finding(False, str(problem))
        return
    commands = host.installed_commands(document)
    missing = [hook for hook in (*host.before, *host.other_hooks) if hook not in commands]
    if missing:
        yield Finding(
            False,
            f"{file} has no LoopGuard hook for {', '.join(missing)}: run `loopguard hooks install {host.name}`.",
        )
    else:
        yield Finding(True, f"{file} has the {len(commands)} LoopGuard hooks.")
    yield from _disabled(host)
    yield from _switched_off(host, file)
    if host.before[0] not in commands or not key.is_ok:
        return
    yield from _fire(host, commands[host.before[0]])
    if host.name == "codex":
        yield _codex_trust(host, file, commands)


def _key() -> Finding:
    file = credentials.curl_file()
    try:
        found = file.stat()
    except OSError as error:
        return Finding(False, f"{file} cannot be read ({error.strerror}): run `loopguard login URL`.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding(False, f"{file} can be read by other accounts: run `chmod 600 {file}`.")
    if not credentials.stored_key():
        return Finding(False, f"{file} has no key in the expected form: run `loopguard login URL`.")
    return Finding(True, f"{file} has a key, and only this account can read it.")


def _disabled(host: Host) -> Iterator[Finding]:
    """Report settings that keep hooks from running: of the account, and of the project in this folder."""
    here = Path.cwd()
    places = [host.settings_file(), *(here / file for file in (*host.shared_files, host.project_file))]
    for file in dict.fromkeys(places):
        try:
            document = jsonc.parsed(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(document, dict):
            continue
        found = document.get("hooksConfig")
        hooks = found if isinstance(found, dict) else {}
        reasons = {
            "disableAllHooks": (document.get("disableAllHooks") is True, "remove it"),
            "allowManagedHooksOnly": (document.get("allowManagedHooksOnly") is True, "remove it"),
            "hooksConfig.enabled": (hooks.get("enabled") is False, "set it to true"),
            "hooksConfig.disabled": (
                "loopguard" in (hooks.get("disabled") or ()),
                "take `loopguard` out of it",
            ),
        }
        for name, (is_set, what_to_do) in reasons.items():
            if is_set:
                yield Finding(
                    False, f"`{name}` in {file} keeps {host.title} from running these hooks: {what_to_do}."
                )
    if host.name == "codex":
        yield from _codex_feature(host.settings_file().with_name("config.toml"))


def _switched_off(host: Host | PluginHost, file: Path) -> Iterator[Finding]:
    """Report lists of plugins that keep the host from loading ours."""
    for place in host.plugin_lists:
        path = Path(place.replace("@HOME@", str(host.home.folder_of()))).expanduser().absolute()
        try:
            document = jsonc.parsed(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        listed = document.get("disabledPlugins") if isinstance(document, dict) else None
        for name in listed if isinstance(listed, list) else ():
            if name in ("loopguard", str(file)):
                cause = f"`disabledPlugins` in {path} keeps {host.title} from loading the plugin"
                yield Finding(False, f"{cause}: take `{name}` out of it.")


def _codex_feature(file: Path) -> Iterator[Finding]:
    """Report that the hooks of Codex are disabled as a whole."""
    try:
        features = tomllib.loads(file.read_text(encoding="utf-8")).get("features")
    except (OSError, ValueError):
        return
    if isinstance(features, dict) and features.get("hooks") is False:
        yield Finding(False, f"`hooks = false` below [features] in {file} disables all hooks: remove it.")


def _fire(host: Host, command: str) -> Iterator[Finding]:
    """Run the hook before a tool as the host does, with the server and without."""
    if shutil.which("curl") is None:
        yield Finding(False, "`curl` is not installed; the hooks need it.")
        return
    found = _ADDRESS.search(command)
    if found is None:
        yield Finding(False, f"The hook has no address: {command}")
        return
    script = credentials.hook_file()
    if not script.is_file() or script.read_text(encoding="utf-8") != hook_script():
        yield Finding(
            False, f"{script} is not that of this version: run `loopguard hooks install {host.name}`."
        )
        return
    credentials.late_file().unlink(missing_ok=True)  # ask now, even if an answer was late a moment ago
    body = _sample(host)
    status, output = _run(command, body)
    if _is_answer(host, status, output):
        yield Finding(True, f"A call sent through the hook reached {found[0]}.")
    else:
        yield Finding(False, f"A call sent through the hook got no answer: {_reason(host, found[0], body)}")
    with _nobody() as nowhere:
        status, output = _run(command.replace(found[0], nowhere), _sample(host))
    if status == (1 if host.by_exit_code else 0) and not _is_answer(host, status, output):
        yield Finding(True, "While the server is unreachable, the hook denies nothing and calls run.")
    elif status == 2 and CLOSED in command:
        yield Finding(True, "While the server is unreachable, the hook denies: calls do not run.")
    else:
        yield Finding(
            False,
            f"While the server is unreachable, the hook ends with {status}: {host.title} may deny every call.",
        )


def _sample(host: Host) -> str:
    """Return the body of a call in a new session: what is wrong is told once in each."""
    return json.dumps(host.sample(wire.new_id("loopguard-check-")[:28]))


def _run(command: str, body: str) -> tuple[int, str]:
    try:
        with program_with_pipes(["/bin/sh", "-c", command], tempfile.gettempdir()) as process:
            output, _ = process.communicate(body)
    except OSError as error:
        return -1, str(error)
    return process.returncode, output


def _is_answer(host: Host, status: int, output: str) -> bool:
    """Return whether this is an answer of the server, and not what the hook tells the person."""
    if status != 0 or host.by_exit_code:
        return status == 0
    try:
        document = json.loads(output)
    except ValueError:
        return False
    return isinstance(document, dict) and document.keys() != {"systemMessage"}


def _reason(host: Host | PluginHost, url: str, body: str) -> str:
    """Return why the server does not answer, which the hook itself does not say."""
    try:
        response = Transport(url, credentials.stored_key(), "loopguard-client/check").send_here(
            "POST", f"/hooks/{host.name}", json.loads(body), seconds=5.0
        )
    except (NoAnswer, ValueError) as error:
        return str(error)
    if response.status == 200:
        return (
            "the same call sent without curl is answered. Run the hook's "
            "command by hand, without `-s`, to see what curl says."
        )
    detail = response.document.get("detail") or "no reason given"
    return f"{url} answered {response.status}: {detail}"


@contextlib.contextmanager
def _nobody() -> Iterator[str]:
    """Yield an address at which nothing listens, and nothing else will meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def _check_plugin(host: PluginHost, file: Path, project: Path | None) -> Iterator[Finding]:
    plugin = _text(file)
    found = _ADDRESS.search(plugin)
    is_whole = all(_text(other) == text for other, text in host.files_beside(project).items())
    if not host.is_ours(plugin) or found is None or not is_whole:
        yield Finding(
            False, f"{file} is not the LoopGuard plugin: run `loopguard hooks install {host.name}`."
        )
        return
    is_closed = host.plugin(found[0], fail_closed=True) == plugin
    if not is_closed and host.plugin(found[0]) != plugin:
        yield Finding(False, f"{file} is a different version: run `loopguard hooks install {host.name}`.")
        return
    yield Finding(True, f"{file} is the LoopGuard plugin.")
    yield from _switched_off(host, file)
    if host.name == "openclaw":
        yield from _openclaw_plugins(host)
    body = {
        "hook_event_name": "tool.execute.before",
        "sessionID": wire.new_id("loopguard-check-")[:28],
        "callID": "check",
        "tool": "loopguard_check",
        "args": {},
    }
    if key := credentials.stored_key():
        try:
            response = Transport(found[0], key, "loopguard-client/check").send_here(
                "POST", f"/hooks/{host.name}", body, seconds=5.0
            )
        except NoAnswer as error:
            yield Finding(False, f"A call sent as the plugin does got no answer: {error}")
        else:
            is_ok = response.status == 200 and "run" in response.document
            detail = response.document.get("detail") or "no reason given"
            text = f"reached {found[0]}." if is_ok else f"got {response.status}: {detail}"
            yield Finding(is_ok, f"A call sent as the plugin does {text}")
    yield plugin_without_server(host, plugin, is_closed=is_closed)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _openclaw_plugins(host: PluginHost) -> Iterator[Finding]:
    """Report settings of OpenClaw that keep it from loading the plugin, or the plugin from seeing prompts."""
    given = Path(os.environ.get("OPENCLAW_CONFIG_PATH", ""))
    file = given if given.is_absolute() else host.home.folder_of() / "openclaw.json"
    try:
        plugins = jsonc.parsed(_text(file) or "{}").get("plugins", {})
        entry = plugins.get("entries", {}).get("loopguard", {})
        allowed, denied = plugins.get("allow"), plugins.get("deny")
        can_read = entry.get("hooks", {}).get("allowConversationAccess") is True
    except (OSError, ValueError, AttributeError):
        enable = "openclaw plugins inspect loopguard"
        yield Finding(
            True, f"Not verified: {host.title} loads the plugin. {file} cannot be read; see `{enable}`."
        )
        return
    is_listed = "loopguard" in (allowed or ["loopguard"]) and "loopguard" not in (denied or ())
    if entry.get("enabled") is not True or plugins.get("enabled") is False or not is_listed:
        yield Finding(False, f"{file} does not enable the plugin. {host.next_step}")
    elif not can_read:
        yield Finding(
            False,
            f"`allowConversationAccess` is not set for the plugin in {file}, so LoopGuard does not see what people "
            f"ask, and the same request made again counts as a loop. {host.next_step}",
        )
    else:
        yield Finding(True, f"{file} enables the plugin.")


def plugin_without_server(host: PluginHost, plugin: str, *, is_closed: bool) -> Finding:
    """Run a plugin as the host does, with an address at which nothing listens, and report what becomes of a call.

    Parameters
    ----------
    plugin
        Text of the plugin file.
    is_closed
        Whether calls must not run then.
    """
    program = next(filter(None, map(shutil.which, _JAVASCRIPT)), None)
    if program is None:
        names = " or ".join(f"`{name}`" for name in _JAVASCRIPT)
        written = "calls do not run" if is_closed else "calls run"
        return Finding(
            True,
            f"Not verified: {written} while the server is unreachable. The "
            f"plugin is written that way, but only {names} can run it here.",
        )
    with tempfile.TemporaryDirectory(prefix="loopguard-check-") as folder, _nobody() as nowhere:
        (Path(folder) / "loopguard.mjs").write_text(_ADDRESS.sub(nowhere, plugin), encoding="utf-8")
        script = Path(folder) / "check.mjs"
        script.write_text(_COUNT_REQUESTS + _PLUGIN_CHECKS[host.script], encoding="utf-8")
        try:
            with program_with_pipes([program, str(script)], folder) as process:
                output, _ = process.communicate()
            said = json.loads(output)
            asked, is_run, result = said["asked"], said["isRun"], said["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return Finding(False, f"`{program}` cannot run the plugin, so {host.title} may not either.")
    if asked != 2 or result != "the result":
        return Finding(
            False, "While the server is unreachable, the plugin does not ask for it, or changes a result."
        )
    if is_run == is_closed:
        consequence = "runs" if is_run else "does not run"
        return Finding(
            False, f"While the server is unreachable, a call {consequence}, which is not what was installed."
        )
    proof = f"as running the plugin with `{Path(program).name}` shows"
    if is_closed:
        return Finding(True, f"While the server is unreachable, calls do not run, {proof}.")
    return Finding(True, f"While the server is unreachable, calls run, {proof}.")


def _codex_trust(host: Host, file: Path, commands: dict[str, str]) -> Finding:
    """Ask Codex whether it trusts the hooks; it skips others without a word."""
    program = shutil.which(host.program)
    if program is None:
        return Finding(
            False, f"`{host.program}` is not on the PATH, so it is unknown whether it trusts the hooks."
        )
    listed = listed_hooks(program)
    if listed is None:
        return Finding(False, f"`{host.program} app-server` does not say whether it trusts the hooks.")
    ours = [hook for hook in listed if hook.get("command") in commands.values()]
    if len(ours) < len(commands):
        return Finding(False, f"Codex does not load the hooks of {file}.")
    untrusted = [hook["eventName"] for hook in ours if hook.get("trustStatus") not in ("trusted", "managed")]
    disabled = [hook["eventName"] for hook in ours if hook.get("enabled") is False]
    if untrusted:
        return Finding(False, f"Codex does not trust the hooks for {', '.join(untrusted)}. {host.next_step}")
    if disabled:
        return Finding(
            False,
            f"The hooks for {', '.join(disabled)} are disabled in Codex: start `codex` and enter /hooks.",
        )
    return Finding(True, "Codex trusts the hooks.")
