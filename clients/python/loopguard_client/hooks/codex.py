"""What Codex CLI says about hooks. It runs only those whose hash it trusts, and skips others silently."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from typing import Any

from loopguard_client.hooks.programs import program_with_pipes


def listed_hooks(program: str, arguments: Sequence[str] = ()) -> list[dict[str, Any]] | None:
    """Return the hooks that Codex lists, with their `key`, `currentHash` and `trustStatus`; None if it does not answer.

    Parameters
    ----------
    program
        Its path.
    arguments
        Arguments before `app-server`, such as settings.
    """
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "loopguard", "version": "1"}}},
        {"method": "initialized"},
        {"id": 2, "method": "hooks/list", "params": {"cwds": [tempfile.gettempdir()]}},
    ]
    try:
        with program_with_pipes([program, *arguments, "app-server"]) as process:
            if process.stdin is None or process.stdout is None:
                return None
            process.stdin.write("".join(f"{json.dumps(request)}\n" for request in requests))
            process.stdin.flush()
            for line in process.stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    message = json.loads(line)
                    if message.get("id") == 2:
                        return [hook for entry in message["result"]["data"] for hook in entry["hooks"]]
    except OSError:
        return None
    return None
