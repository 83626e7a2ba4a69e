"""What the hooks of coding agents cost while the server accepts requests and never answers them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, percentile

SCRIPT: Final = Path(__file__).parents[1] / "clients/python/loopguard_client/hooks/hook.sh"
MACHINES: Final = 5
"""Accounts whose first hook is late."""
CALLS: Final = 40
"""Hooks of each after that."""


def run() -> list[Figure]:
    """Measure; takes a quarter of a minute."""
    firsts: list[float] = []
    others: list[float] = []
    with socket.create_server(("127.0.0.1", 0), backlog=MACHINES * CALLS) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/api/v1/hooks/claude-code"
        for _ in range(MACHINES):
            with tempfile.TemporaryDirectory() as folder:
                hook = Path(shutil.copy(SCRIPT, Path(folder, "hook")))
                Path(folder, "curl").write_text('header = "Authorization: Bearer lg_x"\n')
                firsts.append(_seconds(hook, address))
                others += [_seconds(hook, address) for _ in range(CALLS)]
    return [
        Figure("hook, server hangs: first late answer, longest", max(firsts), "s", 2, 2),
        Figure("hook, server hangs: every further call, p95", 1000 * percentile(others, 0.95), "ms", 50, 50),
    ]


def _seconds(hook: Path, address: str) -> float:
    body = {
        "session_id": "s-1",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
    }
    began = time.perf_counter()
    done = subprocess.run(
        ["/bin/sh", hook, address],
        input=json.dumps(body).encode(),
        capture_output=True,
        check=False,
        env=_environment(),
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"the hook failed: {done.stderr.decode()}")
    return took


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}
