"""Runs the examples of the README and the Connect page unchanged against a real server."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from django.template.loader import render_to_string

from detection.services.audit import SYSTEM
from detection.services.sessions.actions import set_policy

README = Path(__file__).parents[2] / "README.md"
SESSION, TOOL, ARGUMENTS = "s-42", "search_web", {"q": "reset password"}
RUNGS = {"allow": "observe", "warn": "warn", "block": "block", "hold": "ask", "stop": "stop"}


@pytest.fixture(params=RUNGS)
def decision(request, api, project):
    """Have the next call of the session get this decision."""
    for number in range(3):
        call = {"call_id": f"before-{number}", "tool": TOOL, "arguments": ARGUMENTS}
        api.post("/guard", {"session": SESSION, "calls": [call]})
    set_policy(project.pk, SESSION, {"mode": [RUNGS[request.param]]}, SYSTEM)
    return request.param


def test_the_lines_of_the_readme_run_a_call_only_when_it_is_allowed(live_server, key, decision):
    section = README.read_text(encoding="utf-8").split("## Guard an agent in five lines")[1]
    lines = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert "http://127.0.0.1:8300" in lines
    names = {"key": key, TOOL: lambda query: f"results for {query}"}
    exec(lines.replace("http://127.0.0.1:8300", live_server.url), names)
    assert names["verdict"]["decision"] == decision
    has_run = names["result"] == "results for reset password"
    assert has_run is (decision in ("allow", "warn"))
    assert has_run or names["result"] == names["verdict"]["message"] != ""


def test_the_python_snippet_of_the_connect_page_runs_a_call_only_when_it_is_allowed(
    live_server, key, decision, monkeypatch
):
    page = render_to_string("console/snippets/python.html", {"public_url": live_server.url})
    monkeypatch.setenv("LOOPGUARD_KEY", key)
    names = {}
    exec(html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1]), names)
    may_run, message = names["check"](SESSION, "call_7", TOOL, ARGUMENTS)
    assert may_run is (decision in ("allow", "warn"))
    assert bool(message) is (decision != "allow")
