"""The lines that the Connect page shows for coding agents, run by the shell against a real server."""

import html
import json
import re
import subprocess
import time

import pytest
from django.template.loader import render_to_string

from detection.consumers.approval_long_poll import ApprovalLongPoll
from detection.consumers.probes import probes
from detection.engine.scopes import PROJECT
from detection.integrations.hosts import HOSTS, hook_line, hook_settings
from detection.models import Approval, Event
from detection.services.approvals.decisions import decide
from detection.services.audit import Actor
from detection.services.policies.overrides import save_override
from tests.support import asgi_server
from tests.support.programs import needs_curl
from tests.support.threads import in_thread

pytestmark = [pytest.mark.django_db(transaction=True), needs_curl]
BODY = {
    "session_id": "s",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "make"},
}


@pytest.fixture
def shell(tmp_path, key):
    """A shell of a user who has stored the key as the page says."""
    page = html.unescape(render_to_string("integrations/snippets/key_file.html"))
    store = re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1].replace("lg_…", key)

    def run(line, body=""):
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            ["sh", "-c", line], env=env, input=body, capture_output=True, text=True, timeout=30, check=False
        )

    assert run(store).returncode == 0
    assert (tmp_path / ".loopguard" / "curl").stat().st_mode & 0o777 == 0o600
    return run


@pytest.mark.parametrize("host", HOSTS.values(), ids=lambda host: host.name)
def test_the_line_of_a_host_is_answered(host, shell, live_server):
    done = shell(hook_line(host, live_server.url), json.dumps(BODY))
    assert (done.returncode, done.stderr) == (0, "")
    if host.by_exit_code:
        assert done.stdout == ""
    else:
        assert isinstance(json.loads(done.stdout), dict)
    assert Event.objects.get().tool == "Bash"


@pytest.mark.parametrize(
    "host", [host for host in HOSTS.values() if host.by_exit_code], ids=lambda host: host.name
)
def test_a_host_that_reads_the_exit_code_gets_the_reason_as_its_error(host, shell, live_server):
    done = [shell(hook_line(host, live_server.url), json.dumps(BODY)) for _ in range(5)]
    assert [one.returncode for one in done] == [0, 0, 0, 2, 2]
    assert [one.stderr for one in done[:3]] == ["", "", ""]
    assert "'Bash' was called with identical arguments 4 times" in done[3].stderr
    assert {one.stdout for one in done} == {""}


@pytest.mark.parametrize("body", [json.dumps(BODY), "no json", "{}"])
def test_without_an_answer_the_line_ends_well_and_says_nothing(body, shell, live_server):
    codex = HOSTS["codex"]
    away = shell(hook_line(codex, "http://127.0.0.1:9"), body)
    rejected = shell(hook_line(codex, live_server.url), "[]")
    for done in (away, rejected):
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unknown_key_ends_well(shell, live_server, tmp_path):
    file = tmp_path / ".loopguard" / "curl"
    file.write_text('header = "Authorization: Bearer lg_unknown"')
    done = shell(hook_line(HOSTS["codex"], live_server.url), json.dumps(BODY))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("host", [host for host in HOSTS.values() if host.hooks], ids=lambda host: host.name)
def test_the_settings_contain_the_line_for_every_moment(host):
    hooks = hook_settings(host, "http://x")["hooks"]
    by_name = {entry["trigger"]: entry for entry in hooks} if isinstance(hooks, list) else hooks
    assert tuple(by_name) == host.hooks
    for name, entry in by_name.items():
        line = hook_line(host, "http://x", waits=name == host.hooks[0])
        assert json.dumps(line) in json.dumps(entry)


@pytest.fixture
def live(settings):
    """The long poll at an address of its own, as `live` serves it."""
    with asgi_server.serving(ApprovalLongPoll(probes)) as settings.LIVE_URL:
        yield settings.LIVE_URL


@pytest.fixture
def held(project, shell, live_server):
    """Hold a call of Codex: the shell that runs its hook."""
    save_override(project.pk, PROJECT, {"mode": "ask"}, Actor("ana"))
    codex = HOSTS["codex"]
    for number in range(3):
        shell(hook_line(codex, live_server.url), json.dumps(BODY | {"tool_use_id": f"c{number}"}))

    def run():
        return shell(hook_line(codex, live_server.url), json.dumps(BODY | {"tool_use_id": "c3"}))

    return run


@pytest.mark.parametrize(("choice", "says"), [("allow_once", ""), ("skip", "an operator skipped it")])
def test_the_line_waits_for_the_decision_of_an_operator(choice, says, held, project, live):
    waiting = in_thread(held)
    while (approval := Approval.objects.first()) is None:
        assert waiting.is_alive()
        time.sleep(0.01)
    decide(project.pk, approval.public_id, choice, Actor("ana"))
    done = waiting.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    assert ("deny" in done.stdout) == bool(says)


def test_a_held_call_is_denied_if_nobody_can_be_waited_for(held, settings):
    settings.LIVE_URL = "http://127.0.0.1:9"
    done = held()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "An operator has been asked.\n"
