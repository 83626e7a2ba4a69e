"""Nothing waits for ever: every wait for a process, a thread or a socket has a deadline."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("clients", "detection", "loopguard_site", "tests")
DEADLINES = {"timeout", "timeout_seconds", "seconds"}
ENDLESS = {
    "clients/python/loopguard_client/hooks/check.py": "a timer kills the program",
    "clients/python/loopguard_client/runs/command.py": "a program that a person runs, which signals end",
    "detection/background_publisher.py": "a daemon thread that waits for work",
    "detection/consumers/approval_long_poll.py": "inside `asyncio.timeout_at`, and the result of a finished task",
    "detection/consumers/frame_queue.py": "a task that ends with its socket",
    "detection/consumers/live.py": "inside `asyncio.timeout`, or a task that ends with its socket",
    "detection/gateway/client.py": "a task that ends with its request",
    "detection/gateway/loop_state.py": "work on documents of bounded size",
    "detection/gateway/upstream.py": "look-ups of names, which the resolver ends",
    "detection/gateway/workers.py": "all work in its threads has a deadline",
    "detection/tasks/evaluation_queue.py": "daemon threads that wait for work; `stop` wakes them",
    "detection/tasks/judge.py": "every consultation has a deadline",
    "loopguard_site/management/commands/backup.py": "a program of PostgreSQL, as long as the database is large",
    "loopguard_site/management/commands/restore.py": "programs of PostgreSQL, as long as the database is large",
    "loopguard_site/front/uploads.py": "writes to files, which the disk ends",
    "tests/front/test_bodies.py": "a body that never arrives",
    "tests/reliability/frozen_database.py": "daemon threads; `close` wakes them",
    "tests/reliability/test_deadlines.py": "requests of a client with a timeout",
    "tests/reliability/test_failover.py": "requests of a client with a timeout",
    "tests/reliability/test_upgrade.py": "a command with a timeout",
    "tests/reliability/test_roll_out.py": "requests of a client with a timeout",
    "tests/support/load.py": "requests of a client with a timeout",
    "tests/support/asgi_server.py": "a daemon thread that serves until its test ends",
    "tests/supervisor/test_gateway_faults.py": "a request of a client with a timeout",
}


def endless_waits(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _is_endless(node):
            yield f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:90]}"


def _is_endless(call: ast.Call) -> bool:
    function, given = call.func, {keyword.arg for keyword in call.keywords}
    has_deadline = bool(given & DEADLINES)
    if isinstance(function, ast.Name):
        return function.id == "ThreadPoolExecutor"
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    match function.attr:
        case "run" | "call" | "check_call" | "check_output" if owner == "subprocess":
            return not has_deadline
        case "communicate" | "urlopen":
            return not has_deadline
        case "wait" | "join":
            return not call.args and not has_deadline
        case "Thread":
            return "daemon" not in given  # the interpreter waits for such a thread at its end
        case "flock":
            return "LOCK_EX" in ast.unparse(call) and "LOCK_NB" not in ast.unparse(call)
    return False


def test_every_wait_has_a_deadline():
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [wait for file in files for wait in endless_waits(file)]
    assert [wait for wait in found if wait.partition(":")[0] not in ENDLESS] == []
    assert {wait.partition(":")[0] for wait in found} == ENDLESS.keys(), "a listed file has none"
