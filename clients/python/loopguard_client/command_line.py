"""The command ``loopguard``."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loopguard_client import acp, imports, install_codes, mcp
from loopguard_client.credentials import ENVIRONMENT, Credentials, curl_file, hook_file, write_private
from loopguard_client.guard import BUDGET_SECONDS, Guard
from loopguard_client.hooks.check import check
from loopguard_client.hooks.hosts import Host, hook_script
from loopguard_client.hooks.plugins import ALL_HOSTS, PluginHost
from loopguard_client.hooks.settings_files import Change, SettingsProblem, installation, keep, removal
from loopguard_client.runs import command as runs
from loopguard_client.transport import NoAnswer, Transport


class Problem(Exception):
    """A problem to report to the person; the command exits with 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for a problem, 2 for wrong arguments."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = chosen.run
        return run(chosen)
    except (Problem, SettingsProblem, NoAnswer, ValueError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loopguard", description="Guard agents with a LoopGuard server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    login = commands.add_parser("login", help="store address and API key of the server for this account")
    login.add_argument("url", metavar="URL", help="address of the server, such as http://127.0.0.1:8300")
    login.set_defaults(run=_login)

    connect = commands.add_parser(
        "connect",
        help="connect this account with the command that the console shows",
        description="Turns a code of the console into a key, stores it, and installs the hooks that it is for.",
    )
    connect.add_argument("url", metavar="URL", help="address of the server")
    connect.add_argument("code", metavar="CODE", help="the code, which is valid once and for ten minutes")
    connect.set_defaults(run=_connect)

    hooks = commands.add_parser("hooks", help="guard a coding agent through its hooks")
    actions = hooks.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("install", _install, "add LoopGuard's hooks to the settings of a coding agent"),
        ("check", _check, "run an installed hook and report what keeps it from working"),
        ("uninstall", _uninstall, "remove LoopGuard's hooks and nothing else"),
    ):
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        action.add_argument("host", metavar="HOST", choices=ALL_HOSTS, help=", ".join(ALL_HOSTS))
        action.set_defaults(run=run)
        action.add_argument(
            "--project",
            action="store_true",
            help="the settings of the project in this folder; those of the account by default",
        )
        if name != "check":
            action.add_argument("--dry-run", action="store_true", help="show the change without applying it")
        if name == "install":
            action.add_argument(
                "--url", metavar="URL", default="", help="address of the server; the stored one by default"
            )
            action.add_argument(
                "--fail-closed",
                action="store_true",
                help="calls do not run while the server is unreachable; by default they do",
            )
    past = commands.add_parser(
        "import",
        help="import the past runs of the coding agents of this account",
        description="Lists the session files of coding agents in the home folder, asks, and uploads them.",
    )
    past.add_argument(
        "--find", action="store_true", required=True, help="look where the agents keep their files"
    )
    past.add_argument(
        "--only", metavar="AGENT", choices=[one.kind for one in imports.FOLDERS], help="only one agent"
    )
    past.add_argument("--yes", action="store_true", help="import without asking")
    past.add_argument(
        "--url", metavar="URL", default="", help="address of the server; the stored one by default"
    )
    past.set_defaults(run=_import)
    _add_run(commands)
    mcp_server = _add_proxy(
        commands,
        "mcp",
        "guard the tools of a stdio MCP server: loopguard mcp -- COMMAND …",
        "the MCP client's name",
    )
    mcp_server.add_argument("--session", default="", help="name of the session; a new one by default")
    mcp_server.set_defaults(run=_mcp)
    agent = _add_proxy(
        commands,
        "acp",
        "guard an agent of the Agent Client Protocol: loopguard acp -- AGENT …",
        "the name that it gives",
    )
    agent.set_defaults(run=_acp)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run an agent under LoopGuard: loopguard run -- COMMAND …",
        description=(
            "Starts a program with its model requests, hooks and telemetry connected to LoopGuard, for this run only, "
            "and prints the outcome at the end. The exit code is the program's; 75: the run ended in a loop; 76: a "
            "person, a containment or the budget stopped it; 124: its deadline; 125: the program was not started."
        ),
    )
    run.add_argument(
        "--budget",
        type=_dollars,
        metavar="USD",
        help="end the program when the run has cost this much, in US dollars",
    )
    run.add_argument(
        "--deadline",
        type=_seconds,
        metavar="TIME",
        help="end the program after a time, such as 90s, 30m or 2h",
    )
    run.add_argument(
        "--tag",
        action="append",
        default=[],
        type=_tag,
        metavar="TAG",
        help="a tag of its sessions; may be repeated",
    )
    run.add_argument(
        "--fail-closed",
        action="store_true",
        help="while LoopGuard is away, the program is not started, and its requests and tool calls are refused",
    )
    run.add_argument("program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    run.set_defaults(run=_run)


def _dollars(text: str) -> float:
    found = re.fullmatch(r"\$?(\d{1,9}(?:\.\d+)?)", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError("must be US dollars, more than 0, such as 5 or 0.50")
    return float(found[1])


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError("must be a time such as 90s, 30m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _tag(text: str) -> str:
    if not 1 <= len(text) <= 64 or not text.isprintable() or not text.isascii() or "," in text:
        raise argparse.ArgumentTypeError("must have 1 to 64 printable ASCII characters without a comma")
    return text


def _run(chosen: argparse.Namespace) -> int:
    options = runs.Options(chosen.program, chosen.tag, chosen.budget, chosen.deadline, chosen.fail_closed)
    try:
        return runs.run(options, Credentials.find())
    except (runs.NotStarted, ValueError) as problem:
        print(problem, file=sys.stderr)
        return runs.NOT_STARTED


def _add_proxy(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, agent: str
) -> argparse.ArgumentParser:
    proxy = commands.add_parser(name, help=text)
    proxy.add_argument("--agent", default="", help=f"name of the agent; {agent} by default")
    proxy.add_argument(
        "--fail-closed",
        action="append",
        default=[],
        metavar="TOOL",
        help="tool, or pattern of tools, that does not run without a verdict",
    )
    proxy.add_argument(
        "--budget-seconds",
        type=float,
        default=BUDGET_SECONDS,
        metavar="N",
        help="how long a check may take (default 0.25)",
    )
    proxy.add_argument(
        "program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --"
    )
    return proxy


def _guard(chosen: argparse.Namespace) -> Guard:
    logging.basicConfig(level=logging.WARNING, format="loopguard: %(message)s", stream=sys.stderr)
    return Guard(agent=chosen.agent, fail_closed=chosen.fail_closed, budget_seconds=chosen.budget_seconds)


def _mcp(chosen: argparse.Namespace) -> int:
    return mcp.run(_guard(chosen), chosen.program, session=chosen.session)


def _acp(chosen: argparse.Namespace) -> int:
    return acp.run(_guard(chosen), chosen.program)


def _connect(chosen: argparse.Namespace) -> int:
    made = install_codes.exchange(chosen.url, chosen.code)
    print(f"The code became the key {made.name!r}.")
    if made.integration == install_codes.IMPORTS:
        return _import_found(imports.FOLDERS, lambda: made.credentials, is_agreed=False)
    if made.integration == install_codes.OPENTELEMETRY:
        file = install_codes.write_exporter_settings(made.credentials)
        print(f"Settings of the exporter written to {file}.")
        print(f"Start the agent with them: set -a; . {file}; set +a")
        return 0
    print(f"Key stored in {made.credentials.store()}.")
    host = ALL_HOSTS.get(made.integration)
    if host is not None:
        return _install_hooks(host, installation(host, made.credentials.url))
    print("Programs of this account with the client find address and key there.")
    return 0


def _import(chosen: argparse.Namespace) -> int:
    folders = [one for one in imports.FOLDERS if chosen.only in (None, one.kind)]
    return _import_found(folders, lambda: _credentials(chosen.url, store=False)[0], is_agreed=chosen.yes)


def _import_found(
    folders: Sequence[imports.SessionFolder], known: Callable[[], Credentials], *, is_agreed: bool
) -> int:
    """List the session files of agents, ask, and upload them."""
    found = {folder: files for folder in folders if (files := folder.files())}
    if not found:
        raise Problem(
            "No session files were found: " + ", ".join(dict.fromkeys(str(one.path) for one in folders)) + "."
        )
    for folder, files in found.items():
        number = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        print(f"{folder.kind}: {number}, {imports.size_of(files) / 1e6:,.1f} MB in {folder.path}")
    credentials = known()
    if not is_agreed:
        if not sys.stdin.isatty():
            raise Problem("Nothing was imported. Add --yes to import without being asked.")
        if input(f"Upload them to {credentials.url}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was imported.")
            return 0
    for folder, files in found.items():
        made = imports.upload(credentials, folder.kind, files, folder.path)
        print(f"{folder.kind}: uploaded. The summary will be at {made['links']['import']}")
    return 0


def _login(chosen: argparse.Namespace) -> int:
    _, stored = _credentials(chosen.url, store=True)
    print(f"Stored in {stored}." if stored else f"Already stored in {curl_file()}.")
    return 0


def _credentials(url: str, *, store: bool) -> tuple[Credentials, str]:
    """Return address and key, asking for the key if it is neither stored nor in the environment; store what is new."""
    stored = Credentials.stored()
    url = url or os.environ.get(ENVIRONMENT[0], "") or (stored.url if stored else "")
    if not url:
        raise Problem(
            "The address of LoopGuard is not known: add --url, such as --url http://127.0.0.1:8300."
        )
    key = os.environ.get(ENVIRONMENT[1], "") or (stored.key if stored and stored.url == url else "")
    if not key:
        key = (getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    found = Credentials(Transport(url, key, "loopguard-client").url, key)
    if not store or found == stored:
        return found, ""
    _try(found)
    return found, str(found.store())


def _try(found: Credentials) -> None:
    """Check with the server that it accepts a key before storing it."""
    try:
        # An empty request is not a call: it is rejected as incomplete if the key is accepted.
        response = Transport(found.url, found.key, "loopguard-client").send_here(
            "POST", "/guard", {}, seconds=5.0
        )
    except NoAnswer as error:
        print(f"Warning: {error} The key is stored without being checked.", file=sys.stderr)
        return
    if response.status in (401, 403):
        raise Problem(
            f"{found.url} does not accept this key: {response.document.get('detail')} Nothing was stored."
        )
    if response.status != 422:
        raise Problem(
            f"{found.url} answered {response.status}, which is not a LoopGuard response. Nothing was stored."
        )


def _install(chosen: argparse.Namespace) -> int:
    host = ALL_HOSTS[chosen.host]
    found, stored = _credentials(chosen.url, store=not chosen.dry_run)
    change = installation(host, found.url, fail_closed=chosen.fail_closed, project=_project(chosen))
    if chosen.dry_run:
        return _show(change)
    if stored:
        print(f"Key stored in {stored}.")
    if chosen.project:
        print("The hooks name files of this account: keep the settings out of the repository.")
    return _install_hooks(host, change)


def _install_hooks(host: Host | PluginHost, change: Change) -> int:
    if isinstance(host, Host):
        write_private(hook_file(), hook_script())
    if change.is_needed:
        keep(change)
    _make(
        change,
        f"LoopGuard's hooks are already installed in {change.file}.",
        f"Hooks installed in {change.file}.",
    )
    first = host.next_step or f"Restart {host.title} if it is running."
    print(f"{first} Then check the hooks: loopguard hooks check {host.name}")
    return 0


def _project(chosen: argparse.Namespace) -> Path | None:
    return Path.cwd() if chosen.project else None


def _uninstall(chosen: argparse.Namespace) -> int:
    change = removal(ALL_HOSTS[chosen.host], _project(chosen))
    if chosen.dry_run:
        return _show(change)
    _make(change, f"{change.file} has no LoopGuard hooks.", f"Hooks removed from {change.file}.")
    return 0


def _make(change: Change, if_done: str, if_made: str) -> None:
    if not change.is_needed:
        print(if_done)
        return
    backup = change.make()
    print(if_made)
    if backup is not None:
        print(f"Backup of the original file: {backup}")


def _show(change: Change) -> int:
    print(change.difference() if change.is_needed else f"{change.file} would not change.")
    return 0


def _check(chosen: argparse.Namespace) -> int:
    is_ok = True
    for finding in check(ALL_HOSTS[chosen.host], _project(chosen)):
        print(f"{'ok      ' if finding.is_ok else 'PROBLEM '} {finding.text}", flush=True)
        is_ok = is_ok and finding.is_ok
    print("The hooks work." if is_ok else "The hooks do not work correctly.")
    return 0 if is_ok else 1
