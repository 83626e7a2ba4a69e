"""Real SDKs: their forms, and the processes that run agents on them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path

import pytest

COMMANDS = json.loads(os.environ.get("LOOPGUARD_GATEWAY_CLIENTS", "{}"))
JOB_SECONDS = 60
CHAT = ("chat_create", "chat_parse", "chat_stream", "chat_stream_helper", "chat_async_stream")
RESPONSES = ("create", "parse", "stream", "stream_helper", "previous")
OPENAI = dict.fromkeys(CHAT, "openai") | {f"responses_{name}": "responses" for name in RESPONSES}
ANTHROPIC = (
    "create",
    "parse",
    "stream",
    "stream_helper",
    "tool_runner",
    "tool_runner_stream",
    "tool_runner_thread",
)
RUNNERS = ("responses_runner", "responses_runner_stream")
FORMS = {
    "openai_2": OPENAI,
    "openai_3": OPENAI | dict.fromkeys(RUNNERS, "responses"),
    "anthropic": dict.fromkeys(ANTHROPIC, "anthropic"),
    "google": dict.fromkeys(("create", "stream", "async_stream", "runner", "runner_stream"), "gemini"),
    "langchain": {
        f"{name}{stream}": shape
        for name, shape in (
            ("chat_openai", "openai"), ("chat_openai_responses", "responses"), ("chat_anthropic", "anthropic"),
        )
        for stream in ("", "_stream")
    },
    "ai_sdk": {
        f"{name}{stream}": shape
        for name, shape in (("chat", "openai"), ("responses", "responses"), ("anthropic", "anthropic"))
        for stream in ("", "_stream")
    },
}  # fmt: skip
PROGRAMS = {
    "openai_2": ("chat_go",),
    "openai_3": ("chat_go",),
    "mini_swe": ("tool_calls", "text"),
    "smolagents": ("tool_calls", "code"),
    "instructor": ("one_shot",),
}
"""Programs that write in the place of a person, write their history as text, or send none."""
PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SAMPLED_FORM = "chat_stream_helper"
"""CI runs the tests of this form, and one test of every form."""


def documented(name):
    """Return the runs and the requests of a stuck agent, as the table in the documentation has them."""
    table = (
        PAGE.read_text(encoding="utf-8").partition("<!-- gateway -->")[2].partition("<!-- end gateway -->")[0]
    )
    row = next(line for line in table.splitlines() if f"<!-- {name} -->" in line)
    runs, requests = (int(cell) for cell in row.split("|")[3:5])
    return runs, requests


def case(sdk, form, *others):
    """Return parameters of a test that runs in CI if it is of the sampled form."""
    marks = [pytest.mark.sample] if form == SAMPLED_FORM else []
    return pytest.param(sdk, form, *others, marks=marks)


every_form = pytest.mark.parametrize(
    ("sdk", "form"), [case(sdk, form) for sdk in COMMANDS for form in FORMS.get(sdk, ())]
)
every_program = pytest.mark.parametrize(
    ("sdk", "form"), [case(sdk, form) for sdk in COMMANDS for form in PROGRAMS.get(sdk, ())]
)


class Sdk:
    """A process that runs agents on one SDK."""

    def __init__(self, command, folder):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def run(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], JOB_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        assert line, self.stop()
        done = json.loads(line)
        assert not done.get("error") or job.get("is_faulty"), done["error"]
        return done

    def stop(self):
        """End the process; returns what it printed as errors."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.errors.seek(0)
        with self.errors:
            return self.errors.read()[-3000:]
