"""Runs the examples of the README and the Connect page unchanged against a real server."""

from __future__ import annotations

import gzip
import html
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string

from detection.services.audit import SYSTEM
from detection.services.sessions.actions import set_policy
from tests.support.model_server import Answer, ModelServer

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


def lines_of_the_readme():
    section = README.read_text(encoding="utf-8").split("## Guard an agent in a few lines")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def test_the_lines_of_the_readme_run_a_call_only_when_it_is_allowed(live_server, key, decision):
    lines = lines_of_the_readme()
    assert "http://127.0.0.1:8300" in lines
    names = {"key": key, TOOL: lambda query: f"results for {query}"}
    exec(lines.replace("http://127.0.0.1:8300", live_server.url), names)
    assert names["verdict"]["decision"] == decision
    has_run = names["result"] == "results for reset password"
    assert has_run is (decision in ("allow", "warn"))
    assert has_run or names["result"] == names["verdict"]["message"] != ""


@pytest.fixture
def unavailable():
    """The address of a server that answers nothing but 503."""
    with ModelServer(lambda _: Answer(status=503)).running() as server:
        yield server.url


@pytest.mark.parametrize("has_server", [True, False])
@pytest.mark.parametrize("closed", [False, True])
def test_without_a_verdict_the_examples_run_a_call_unless_its_tool_fails_closed(
    unavailable, monkeypatch, has_server, closed
):
    url = unavailable if has_server else "http://127.0.0.1:9"
    lines = lines_of_the_readme().replace("http://127.0.0.1:8300", url)
    names: dict[str, Any] = {"key": "lg_x", TOOL: lambda query: f"results for {query}"}
    exec(lines.replace("delete_repository", TOOL if closed else "x"), names)
    assert (names["result"] == "results for reset password") is not closed
    assert closed is ("No verdict" in names["result"])

    monkeypatch.setenv("LOOPGUARD_KEY", "lg_x")
    page = render_to_string("integrations/snippets/python.html", {"public_url": url})
    names = {}
    snippet = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1])
    exec(snippet.replace("delete_repository", TOOL if closed else "x"), names)
    may_run, message = names["check"](SESSION, "call_7", TOOL, ARGUMENTS)
    assert may_run is not closed
    assert "No verdict" in message


def test_the_python_snippet_of_the_connect_page_runs_a_call_only_when_it_is_allowed(
    live_server, key, decision, monkeypatch
):
    page = render_to_string("integrations/snippets/python.html", {"public_url": live_server.url})
    monkeypatch.setenv("LOOPGUARD_KEY", key)
    names: dict[Any, Any] = {}
    exec(html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1]), names)
    may_run, message = names["check"](SESSION, "call_7", TOOL, ARGUMENTS)
    assert may_run is (decision in ("allow", "warn"))
    assert bool(message) is (decision != "allow")


def test_the_snippet_of_the_connect_page_runs_a_call_three_times(live_server, key, monkeypatch, capsys):
    page = render_to_string("integrations/snippets/client.html", {"public_url": live_server.url})
    monkeypatch.setenv("LOOPGUARD_KEY", key)
    snippets = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    names: dict[Any, Any] = {}
    # The whole suite may run beside it.
    code = html.unescape(snippets[1]).replace("fail_closed=", "budget_seconds=20, fail_closed=")
    exec(code, names)
    assert names["guard"].flush(20)
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line == "0 results" for line in printed] == [True, True, False, True, False]
    assert "search_web" in printed[4]


DOCS = README.parent / "docs"
STATUSES = {
    "api.md/install-codes": 404,  # the code of the example is used up
    "api.md/overrides": 412,  # the version of the example is not the stored one
}
"""Of examples that cannot succeed, by page and route: what they are answered with."""


def lines_of_curl() -> list[tuple[str, str]]:
    found = []
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(
            r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            found += [
                (page.name, line)
                for line in re.findall(r"^curl (?:.*\\\n)*.*(?:\n {5,}.*)*", block, re.MULTILINE)
            ]
    return found


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("file", "line"), lines_of_curl())
def test_an_example_with_curl_works_when_it_is_pasted(live_server, key, tmp_path, file, line):
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(b'{"type": "summary"}\n'))
    home = tmp_path / ".loopguard"
    home.mkdir()
    (home / "curl").write_text(f'header = "Authorization: Bearer {key}"\n')
    line = line.replace("http://127.0.0.1:8300", live_server.url).removesuffix(" || true")
    done = subprocess.run(
        ["sh", "-c", line.replace("curl ", "curl -sS -o answer -w '%{http_code}' ", 1)],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "LOOPGUARD_URL": live_server.url, "LOOPGUARD_KEY": key},
        input='{"session_id": "s-1", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}}',
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    status = next(
        (code for place, code in STATUSES.items() if file in place and place.partition("/")[2] in line), 200
    )
    answer = (tmp_path / "answer").read_text()
    assert (int(done.stdout[-3:]) // 100 * 100 if status == 200 else int(done.stdout[-3:])) == status, answer
