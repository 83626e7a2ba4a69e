"""`loopguard acp` between a client and an agent: what is refused, what ends a turn, and what passes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import urllib.error
from pathlib import Path

import pytest

import loopguard_client

from .editor import Editor
from .programs import ended_after

SECONDS = 90
AGENT = '''
"""An agent that calls one tool again and again: it asks first, tells only, or does both, as its prompt says."""
import json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def update(**what):
    send(method="session/update", params={"sessionId": NAME, "update": what})

NAME, number, answers = sys.argv[1], 0, []

def receive(until):
    """Read messages until one of them is the answer that is waited for, or a turn is cancelled."""
    global is_cancelled
    while True:
        message = json.loads(sys.stdin.readline() or sys.exit(0))
        if message.get("method") == "session/cancel":
            is_cancelled = True
            print("cancelled", message["params"]["sessionId"], file=sys.stderr, flush=True)
        elif message.get("id") == until:
            return message
        if until is None or (is_cancelled and until == "cancel"):
            return message

while True:
    message = receive(None)
    method = message.get("method")
    if method == "initialize":
        send(id=message["id"], result={"protocolVersion": 1, "agentInfo": {"name": "scripted", "version": "1"}})
    elif method == "session/new":
        send(id=message["id"], result={"sessionId": NAME})
    elif method == "session/prompt":
        how, turns = message["params"]["prompt"][0]["text"].split()[:2]
        is_cancelled = False
        for _ in range(int(turns)):
            if is_cancelled:
                break
            number += 1
            call = {"toolCallId": f"call-{number}", "title": "make test", "kind": "execute"}
            what = str(number) if how in ("healthy", "untold") else "x"
            full = {**call, "rawInput": {"command": f"make {what}"}}
            if how != "asks":
                update(sessionUpdate="tool_call", status="pending", **call)
            may_run = True
            if how in ("asks", "both", "healthy", "untold"):
                options = [
                    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
                    {"optionId": "no!", "name": "Reject", "kind": "reject_once"},
                ]
                preview = [{"type": "content", "content": {"type": "text", "text": "[in the folder /src]"}}]
                params = {"sessionId": NAME, "toolCall": {**full, "content": preview}, "options": options}
                send(id=f"ask-{number}", method="session/request_permission", params=params)
                outcome = receive(f"ask-{number}")["result"]["outcome"]
                print("outcome", json.dumps(outcome), file=sys.stderr, flush=True)
                may_run = outcome.get("optionId") == "yes"
            if may_run:
                print("ran", file=sys.stderr, flush=True)
                content = [{"type": "content", "content": {"type": "text", "text": f"2 failed {what}"}}]
                if how == "untold":
                    content = []
                update(sessionUpdate="tool_call_update", status="completed", content=content, **full)
            else:
                update(sessionUpdate="tool_call_update", toolCallId=call["toolCallId"], status="failed")
            if how == "tells":
                send(id=f"wait-{number}", method="_wait", params={})
                receive(f"wait-{number}")
        send(id=message["id"], result={"stopReason": "cancelled" if is_cancelled else "end_turn"})
    elif "id" in message:
        send(id=message["id"], result={})
'''


PROMPTS = ("Please run the tests.", "I have mended the parser, what now?")


@pytest.fixture
def started(server, tmp_path, name):
    """Start the proxy around the scripted agent, or around another program."""
    with contextlib.ExitStack() as running:

        def start(*options, url=server.url, program=AGENT):
            script = tmp_path / "agent.py"
            script.write_text(program)
            command = [sys.executable, "-m", "loopguard_client", "acp", "--budget-seconds", "20", *options]
            return running.enter_context(
                ended_after(
                    SECONDS,
                    [*command, "--", sys.executable, script, name],
                    cwd=Path(loopguard_client.__file__).parents[1],
                    env={**os.environ, "LOOPGUARD_URL": url, "LOOPGUARD_KEY": server.key},
                )
            )

        yield start


def end(process):
    _, errors = process.communicate(timeout=SECONDS)
    lines = errors.decode().splitlines()
    return lines.count("ran"), lines


@pytest.mark.parametrize("how", ["asks", "both"])
def test_three_of_forty_calls_run_and_the_stop_cancels_the_turn(started, server, name, how):
    process = started()
    editor = Editor(process, name)
    editor.begin()
    assert editor.prompt(f"{how} 40") == "cancelled"
    assert editor.asked == "???"
    assert "[LoopGuard: " in editor.told
    assert editor.told.count("The turn is being cancelled.") == 1
    ran, lines = end(process)
    assert ran == 3
    assert lines.count(f"cancelled {name}") == 1
    assert lines.count('outcome {"outcome": "selected", "optionId": "no!"}') == 4
    assert lines.count('outcome {"outcome": "cancelled"}') == 1
    session = server.session(name)
    assert (session["agent"], session["calls"], session["blocked"]) == ("scripted", 8, 5)
    assert session["stopped"]["ran"] == 0
    calls = server.calls(name)
    assert {(one["tool"], one["cwd"]) for one in calls} == {("execute", "/src")}
    assert [one["result"]["content"] for one in calls[:3]] == ["2 failed x"] * 3


def test_what_a_person_is_shown_of_a_call_is_not_its_result(started, server, name):
    process = started()
    editor = Editor(process, name)
    editor.begin()
    assert editor.prompt("untold 20") == "end_turn"
    assert "LoopGuard" not in editor.told
    assert end(process)[0] == 20
    assert {one["result"]["content"] for one in server.calls(name)} == {None}


def test_calls_that_the_agent_only_tells_of_are_stopped_by_the_turn(started, server, name):
    process = started()

    def pause():
        """Wait as a model's answer does, which takes longer than a check."""
        told = sum(one["sessionUpdate"] == "tool_call_update" for one in editor.updates)
        deadline = time.monotonic() + SECONDS
        while len(known()) < told:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def known():
        try:
            return server.calls(name)
        except urllib.error.HTTPError:
            return []

    editor = Editor(process, name, pause=pause)
    editor.begin()
    assert editor.prompt("tells 40") == "cancelled"
    ran, lines = end(process)
    assert 8 <= ran <= 10
    assert lines.count(f"cancelled {name}") == 1
    assert server.session(name)["stopped"] is not None


def test_a_healthy_agent_is_untouched_and_a_new_prompt_begins_anew(started, server, name):
    process = started()
    editor = Editor(process, name)
    editor.begin()
    assert editor.prompt("healthy 20") == "end_turn"
    assert [editor.prompt(f"both 2 {words}") for words in PROMPTS] == ["end_turn"] * 2
    assert editor.told == ""
    assert end(process)[0] == 24
    assert server.session(name)["blocked"] == 0


def test_after_a_cancelled_turn_the_next_prompt_is_asked_for_permission_again(started, name):
    process = started()
    editor = Editor(process, name)
    editor.begin()
    assert editor.prompt("asks 40") == "cancelled"
    assert editor.prompt("healthy 2") in ("end_turn", "cancelled")
    _, lines = end(process)
    assert sum(line.startswith("outcome") for line in lines) > 8


def test_without_the_server_identical_calls_are_counted_and_tools_can_fail_closed(started, name):
    process = started(url="http://127.0.0.1:9")
    editor = Editor(process, name)
    editor.begin()
    assert editor.prompt("both 40") == "cancelled"
    ran, lines = end(process)
    assert ran == 3
    assert sum("No server listens" in line for line in lines) == 1
    process = started("--fail-closed", "exec*", url="http://127.0.0.1:9")
    editor = Editor(process, name)
    editor.begin()
    editor.prompt("both 2")
    assert editor.asked == ""
    assert end(process)[0] == 0


ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(7)
"""


def test_every_other_line_passes_byte_by_byte(started):
    lines = [
        b'{"jsonrpc":"2.0",  "id":1,"method":"session/set_mode","params":{"sessionId":"x","modeId":"y"}}\n',
        b'{"jsonrpc": "2.0", "id": "\\u00e4", "method": "future/method", "unknown": [1.0, 1e5, null]}\n',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"x","update":{"sessionUpdate":"plan"}}}\n',
        b'{"jsonrpc":"2.0","method":"session/update","params":[1]}\n',
        b"session/prompt is no JSON\n",
        b'{"big": "' + b"x" * 20_000_000 + b'"}\n',
        b'[{"method": "session/update"}]\n',
        b"\n",
    ]
    process = started(program=ECHO)
    output, _ = process.communicate(b"".join(lines), timeout=SECONDS)
    assert output == b"".join(lines)
    assert process.returncode == 7
