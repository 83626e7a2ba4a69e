"""`loopguard mcp` line by line: what passes, and what does not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loopguard_client

from .programs import ended_after

ECHO = """
import json, sys
for line in sys.stdin.buffer:
    try:
        message = json.loads(line)
    except ValueError:
        message = {}
    if isinstance(message, dict) and message.get("method") == "tools/call":
        print("ran", file=sys.stderr, flush=True)
        result = {"content": [{"type": "text", "text": "0 hits"}], "extra": 1.0}
        line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(7)
"""


@pytest.fixture
def wrapped(server, tmp_path):
    """Start the wrapper around a server that echoes lines and answers calls."""
    script = tmp_path / "server.py"
    with contextlib.ExitStack() as started:

        def start(url=server.url, *options, program=ECHO):
            script.write_text(program)
            command = [sys.executable, "-m", "loopguard_client", "mcp", "--budget-seconds", "20"]
            return started.enter_context(
                ended_after(
                    90,
                    [*command, *options, "--", sys.executable, script],
                    cwd=Path(loopguard_client.__file__).parents[1],
                    env={**os.environ, "LOOPGUARD_URL": url, "LOOPGUARD_KEY": server.key},
                )
            )

        yield start


def call(number, tool="search", arguments=None):
    parameters = {"name": tool, "arguments": arguments or {"q": "x"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": parameters}


def exchange(process, message):
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_three_of_ten_identical_calls_run_and_the_others_are_errors(wrapped, server, name):
    process = wrapped(server.url, "--session", name)
    exchange(
        process,
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"clientInfo": {"name": "editor"}}},
    )
    answers = [exchange(process, call(number))["result"] for number in range(1, 11)]
    assert [answer.get("isError", False) for answer in answers] == [False] * 3 + [True] * 7
    assert answers[0] == {"content": [{"type": "text", "text": "0 hits"}], "extra": 1.0}
    assert [part["text"] for part in answers[2]["content"]][1:] == ["0 hits"]
    assert "search" in answers[3]["content"][0]["text"]
    _, errors = process.communicate(timeout=30)
    assert errors.decode().split() == ["ran"] * 3
    session = server.session(name)
    assert (session["integration"], session["reach"]) == ("mcp", "can_block")
    calls = server.calls(name)
    assert {one["agent"] for one in calls} == {"editor"}
    assert [one["result"]["content"] for one in calls[:3]] == ["0 hits"] * 3


def test_every_other_line_passes_byte_by_byte(wrapped):
    lines = [
        b'{"jsonrpc":"2.0",  "id":1,"method":"resources/read","params":{"uri":"x"}}\n',
        b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"note": "tools/call"}}\n',
        b'{"jsonrpc": "2.0", "id": "\\u00e4", "method": "future/method", "unknown": [1.0, 1e5, null]}\n',
        b"not JSON tools/call\n",
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}\n',
        b'{"big": "' + b"x" * 3_000_000 + b'"}\n',
        b"\n",
    ]
    process = wrapped()
    output, _ = process.communicate(b"".join(lines), timeout=30)
    assert output == b"".join(lines)
    assert process.returncode == 7


def test_a_server_that_writes_much_before_it_reads_does_not_block(wrapped):
    """Both pipes are full at the same time: neither direction may wait for the other."""
    noisy = """
import sys
for line in sys.stdin.buffer:
    for _ in range(5):
        sys.stdout.buffer.write(b"x" * 300_000 + b"\\n")
        sys.stdout.buffer.flush()
"""
    process = wrapped(program=noisy)
    output, _ = process.communicate((b"y" * 300_000 + b"\n") * 8, timeout=60)
    assert len(output) == 8 * 5 * 300_001


def test_a_server_that_closes_its_output_and_does_not_end_is_ended(wrapped):
    process = wrapped(program="import os, time\nos.close(1)\ntime.sleep(600)\n")
    assert process.wait(60) == 128 + signal.SIGTERM


def test_a_batch_with_calls_is_guarded(wrapped):
    process = wrapped()
    output, _ = process.communicate(
        json.dumps([call(number) for number in range(6)]).encode() + b"\n", timeout=30
    )
    answers = [json.loads(line)["result"] for line in output.splitlines()]
    assert sum(not answer.get("isError", False) for answer in answers) == 3
    assert len(answers) == 6


def test_without_loopguard_calls_run_and_identical_ones_are_counted(wrapped):
    process = wrapped("http://127.0.0.1:9", "--fail-closed", "delete_*")
    answers = [exchange(process, call(number))["result"] for number in range(5)]
    assert [answer.get("isError", False) for answer in answers] == [False] * 3 + [True] * 2
    assert exchange(process, call(9, "delete_all"))["result"]["isError"] is True
    assert b"No server listens" in process.communicate(timeout=30)[1]


def test_without_a_key_the_reason_is_shown(monkeypatch, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOOPGUARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "loopguard_client", "mcp", "--", "true"],
        cwd=Path(loopguard_client.__file__).parents[1],
        env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "loopguard login URL" in done.stderr
