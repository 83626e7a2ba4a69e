"""`loopguard run`: the command with programs of its own, while the server answers, is away, or refuses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import loopguard_client
from development.environments import environment_folder
from development.scripted_server import ScriptedServer

from .programs import ended_after
from .proxy import Proxy

CLIENT = Path(loopguard_client.__file__).parents[1]
SECONDS = 120
AGENT = """
import json, os, sys, time, urllib.request

messages, runs = [{"role": "user", "content": sys.argv[1]}], 0
for _ in range(40):
    body = json.dumps({"model": "gpt-5", "messages": messages, "tools": []}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-x"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        message = json.load(response)["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        runs += 1
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]})
    time.sleep(float(sys.argv[3]))
print("runs", runs)
sys.exit(int(sys.argv[2]))
"""
OF_OPENAI = """
import openai, sys

client = openai.OpenAI(api_key="sk-x", max_retries=0)
messages, runs = [{"role": "user", "content": sys.argv[1]}], 0
for _ in range(40):
    with client.chat.completions.stream(model="gpt-5", messages=messages) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        runs += 1
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "0 results"})
print("runs", runs)
"""


class Model(ScriptedServer):
    """Calls `search` in each answer with the same arguments.

    If the prompt begins with "healthy", it does so with others, and if with "recovers", after the fourth call.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.asked: list[dict] = []

    def answer(self, asked, headers):
        self.asked.append({name.lower(): value for name, value in headers.items()})
        messages = asked["messages"]
        results = sum(one["role"] == "tool" for one in messages)
        word = messages[0]["content"].partition(" ")[0]
        is_healthy = word == "healthy" or (word == "recovers" and results >= 4)
        arguments = json.dumps({"q": str(results) if is_healthy else "x"})
        call: dict[str, object] = {
            "id": f"{messages[0]['content']}-{results}",
            "type": "function",
            "function": {"name": "search", "arguments": arguments},
        }
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        if is_healthy and results == (6 if word == "healthy" else 12):
            message = {"role": "assistant", "content": "done"}
        document = {
            "id": f"c-{results}",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-5",
            "usage": usage,
        }
        reason = "tool_calls" if "tool_calls" in message else "stop"
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return 200, {**document, "choices": [choice]}, {}
        call["index"] = 0
        choices = (
            [{"index": 0, "delta": message, "finish_reason": None}],
            [{"index": 0, "delta": {}, "finish_reason": reason}],
        )
        chunks = [{**document, "object": "chat.completion.chunk", "choices": one} for one in choices]
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
        return 200, events.encode(), {"Content-Type": "text/event-stream"}


@pytest.fixture(scope="module")
def model_of_module(server):
    with Model(int(server.model_url.rpartition(":")[2])).running() as model:
        name = "of-run"
        if all(one["name"] != name for one in server.get("/backends")["items"]):
            server.post("/backends", {"name": name, "kind": "openai", "base_url": f"{server.model_url}/v1"})
        yield model


@pytest.fixture
def model(model_of_module):
    model_of_module.asked.clear()
    return model_of_module


class Place:
    """A folder with programs, and a home folder."""

    def __init__(self, folder, server, model):
        self.folder, self.server, self.model = folder, server, model
        self.home = folder / "home"
        self.home.mkdir()
        (folder / "agent.py").write_text(AGENT)

    def environment(self, url="", key="", **more):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LOOPGUARD_", "OTEL_", "OPENAI_", "ANTHROPIC_", "CLAUDE_"))
        }
        return {
            **kept, "HOME": str(self.home), "TMPDIR": str(self.folder), "PYTHONPATH": str(CLIENT),
            "OPENAI_BASE_URL": f"{self.server.model_url}/v1", "LOOPGUARD_URL": url or self.server.url,
            "LOOPGUARD_KEY": key or self.server.key, **more,
        }  # fmt: skip

    @contextlib.contextmanager
    def started(self, *command, options=(), **environment):
        words = [sys.executable, "-m", "loopguard_client", "run", *options, "--", *map(str, command)]
        with ended_after(SECONDS, words, cwd=self.folder, env=self.environment(**environment)) as process:
            yield process

    def run(self, *command, options=(), **environment):
        with self.started(*command, options=options, **environment) as process:
            output, said = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, output.decode(), said.decode())

    def agent(self, prompt, *, code=0, pause=0.0, **more):
        return self.run(sys.executable, "agent.py", prompt, code, pause, **more)

    def left(self):
        return [one.name for one in self.folder.iterdir() if one.name.startswith("loopguard-run-")]


@pytest.fixture
def place(tmp_path, server, model):
    return Place(tmp_path, server, model)


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stuck_program_is_stopped_and_the_exit_code_tells_the_loop(place, model, name):
    done = place.agent(name, options=["--tag", name])
    assert (done.stdout, done.returncode) == ("runs 3\n", 75)
    assert "6 calls (3 blocked), 1 loop" in done.stderr
    assert "loop, until the end: Repeated call: search http" in done.stderr
    assert len(model.asked) <= 9
    assert not any(header.startswith("loopguard-") for asked in model.asked for header in asked)
    (session,) = place.server.get(f"/sessions?q=tag:{name}")["items"]
    assert [tag.startswith("run-") for tag in session["tags"]] == [True, False]
    assert not list(place.home.iterdir())


def test_a_healthy_program_keeps_its_exit_code_and_its_output(place, name):
    done = place.agent(f"healthy {name}", code=3)
    assert (done.stdout, done.returncode) == ("runs 6\n", 3)
    assert "6 calls (0 blocked), 0 loops" in done.stderr
    assert "ended with exit code 3" in done.stderr
    assert "stop" not in done.stderr


def test_a_program_that_recovers_from_a_loop_keeps_its_exit_code(place, name):
    done = place.agent(f"recovers {name}", code=3)
    assert done.returncode == 3, done
    assert "1 loop" in done.stderr
    assert "loop: Repeated call: search" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_program_which_decides_what_comes_of_it(place, number):
    program = (
        f"trap 'echo got; exit 9' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.1; done"
    )
    with place.started("sh", "-c", program) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(30) == 9
        assert process.stdout.read() == b"got\n"


def test_the_end_by_a_signal_is_passed_on_as_a_shell_does(place):
    done = place.run("sh", "-c", "kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM
    assert "ended by the signal SIGTERM" in done.stderr


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        ("http://127.0.0.1:9", "", "No server listens"),
        ("", "lg_0000000000_wrong", "unknown, revoked or expired"),
    ],
)
def test_without_a_server_or_its_key_the_program_runs_and_that_is_said_once(
    place, model, name, url, key, says
):
    done = place.agent(name, code=4, url=url, key=key)
    assert (done.stdout, done.returncode) == ("runs 40\n", 4)
    assert done.stderr.count(says) == 1
    assert "There is no summary" in done.stderr
    assert "guarded\n" not in done.stderr.replace("Nothing is guarded", "")
    done = place.run("sh", "-c", "echo ran", options=["--fail-closed"], url=url, key=key)
    assert (done.stdout, done.returncode) == ("", 125)
    assert "was not started, because this run fails closed" in done.stderr


def test_a_key_that_may_not_read_is_named_with_what_it_lacks(place, name):
    with Proxy(place.server.url).running() as proxy:
        proxy.mode = "no-read"
        done = place.agent(name, url=proxy.url, code=4)
        assert (done.stdout, done.returncode) == ("runs 40\n", 4)
        assert "no summary at the end: The key needs the `read` scope" in done.stderr
        done = place.run("sh", "-c", "echo ran", options=["--budget", "5"], url=proxy.url)
        assert (done.stdout, done.returncode) == ("", 125)
        assert "The budget cannot be watched" in done.stderr


def test_another_address_of_the_program_is_left_alone_without_a_backend_for_it(place, name):
    done = place.run("sh", "-c", "echo $OPENAI_BASE_URL", OPENAI_BASE_URL="https://models.example/v1")
    assert done.stdout == "https://models.example/v1\n"
    assert (
        "OpenAI: requests are not guarded; the project has no backend for https://models.example/v1"
        in done.stderr
    )


def test_the_deadline_ends_the_program_and_what_it_has_started(place):
    started = time.monotonic()
    done = place.run(
        "sh", "-c", "sleep 100 & echo $!; trap '' TERM; wait; wait", options=["--deadline", "0.5s"]
    )
    assert done.returncode == 124
    assert time.monotonic() - started < SECONDS / 2
    assert "ended by its deadline" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_the_budget_ends_the_program_when_the_known_cost_reaches_it(place, server, name):
    price = {"backend": "", "model": "gpt-5", "input_usd": 1000, "output_usd": 0}
    request = urllib.request.Request(
        f"{server.url}/api/v1/prices", json.dumps(price).encode(),
        {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}, method="PUT",
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=10) as response:
        made = json.load(response)
    try:
        done = place.agent(f"healthy {name}", pause=10, options=["--budget", "0.5"])
        assert (done.stdout, done.returncode) == ("", 76)
        assert "The budget of $0.50 is used up: $1.0000." in done.stderr
        assert "ended by its budget" in done.stderr
        done = place.agent(f"healthy {name}-2", options=["--budget", "$50"])
        assert (done.stdout, done.returncode) == ("runs 6\n", 0)
        assert "7,700 tokens, $7.0000" in done.stderr
    finally:
        request = urllib.request.Request(
            f"{server.url}/api/v1/prices/{made['id']}",
            headers={"Authorization": f"Bearer {server.key}"},
            method="DELETE",
        )
        urllib.request.urlopen(request, timeout=10).close()


def test_a_stop_by_a_person_is_told_with_what_came_of_it(place, server, name):
    with place.started(
        sys.executable, "agent.py", f"healthy {name}", 0, 2, options=["--tag", name]
    ) as process:
        wait_for(lambda: server.get(f"/sessions?q=tag:{name}")["items"])
        (session,) = server.get(f"/sessions?q=tag:{name}")["items"]
        server.post(f"/sessions/{session['session']}/stop", {"reason": "enough"})
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 76
    assert "a stop by key:" in said.decode()
    assert "and no call ran afterwards" in said.decode()
    assert "enough" in said.decode()


def test_a_program_that_cannot_be_run_is_told_as_by_a_shell(place):
    assert place.run("no-such-program").returncode == 127
    (place.folder / "data").write_text("no program")
    assert place.run("./data").returncode == 126


FAKE_CLAUDE = r"""#!/bin/sh
test "$1" = --settings || exit 3
command=$(python3 -c 'import json, sys
for group in json.loads(sys.argv[1])["hooks"]["PreToolUse"]:
    print(group["hooks"][0]["command"])' "$2")
for number in 1 2 3 4 5; do
    body='{"session_id": "'$SESSION'", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "t'$number'"'
    echo "$body, \"tool_input\": {\"command\": \"make test\"}}" | sh -c "$command"
    echo
done
echo "$3"
$LAST
"""


@pytest.fixture
def claude(place):
    program = place.folder / "claude"
    program.write_text(FAKE_CLAUDE)
    program.chmod(0o755)
    return program


def test_a_coding_agent_has_hooks_for_this_run_and_nothing_is_left(place, server, claude, name):
    done = place.run(claude, "-p", options=["--tag", name], SESSION=name, LAST="exit 5")
    answers = done.stdout.splitlines()
    assert answers[-1] == "-p"
    assert [json.loads(line or "{}").get("hookSpecificOutput", {}).get("permissionDecision") for line in answers[:4]] == [
        None, None, None, "deny",
    ]  # fmt: skip
    assert done.returncode == 75
    assert "Claude Code: hooks for this run" in done.stderr
    assert server.session(name)["integration"] == "hooks/claude-code"
    assert name in server.session(name)["tags"]
    assert place.left() == []
    assert not list(place.home.iterdir())


def test_nothing_is_left_when_the_command_is_killed(place, claude, name):
    with place.started(claude, "-p", SESSION=name, LAST="sleep 3") as process:
        wait_for(place.left)
        process.kill()
        process.wait(10)
        wait_for(lambda: not place.left())
    assert not list(place.home.iterdir())


def test_installed_hooks_are_not_doubled(place, claude, name):
    (place.home / ".claude").mkdir()
    command = f"sh hook {place.server.url}/api/v1/hooks/claude-code"
    settings = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": command}]}]}}
    (place.home / ".claude" / "settings.json").write_text(json.dumps(settings))
    done = place.run(claude, "-p", SESSION=name)
    assert done.returncode == 3
    assert "its hooks are installed already" in done.stderr


@pytest.mark.parametrize("environment", ["gateway_openai_2", "openai_agents"])
def test_the_openai_sdk_is_guarded_by_its_variable(place, model, name, environment):
    python = environment_folder(environment) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{environment} is not installed: run `python3 manage.py test gateway-matrix --install`")
    (place.folder / "of_openai.py").write_text(OF_OPENAI)
    done = place.run(python, "of_openai.py", name)
    assert (done.stdout, done.returncode) == ("runs 3\n", 75), done.stderr
    assert len(model.asked) <= 9
