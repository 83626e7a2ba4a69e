"""Agents of the Agent Client Protocol behind `loopguard acp`, against a model server that repeats one call.

Opt-in, as the tests of their hooks: `LOOPGUARD_HOSTS` names a folder with the programs.
"""

import os
import shutil
import sys

import pytest

from client_tests.editor import Editor
from client_tests.programs import ended_after
from detection.models import Event, Incident, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from tests.hosts.place import CLIENT, HOST_SECONDS, PROMPT, Place
from tests.hosts.upstream import Script, serve
from tests.support.projects import make_project

FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]
HEALTHY = [f"./probe {number:032}" for number in range(20)]


def claude_code(place, upstream):
    return [], {"ANTHROPIC_BASE_URL": upstream, "ANTHROPIC_API_KEY": "sk-ant-x", "DISABLE_TELEMETRY": "1"}


def gemini(place, upstream):
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True},
        "model": {"name": "gemini-2.5-pro"},
    }
    place.write(place.home / ".gemini" / "settings.json", settings)
    place.write(place.home / ".gemini" / "trustedFolders.json", {str(place.work): "TRUST_FOLDER"})
    return ["--acp"], {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": upstream}


AGENTS = {"claude-code-acp": claude_code, "gemini": gemini}


@pytest.fixture
def prompted(live_server, transactional_db, tmp_path):
    """Prompt an agent once, in an editor that allows every call; returns its place, the editor and how the turn ended."""
    servers = []

    def run(agent, script):
        found = shutil.which(agent, path=FOLDER)
        if found is None:
            pytest.skip(f"{agent} is not in {FOLDER}")
        server, upstream = serve(script)
        servers.append(server)
        token = create_key(make_project("hosts"), "acp", SYSTEM)[1]
        place = Place(tmp_path, live_server.url, token)
        words, env = AGENTS[agent](place, upstream)
        command = [
            sys.executable,
            "-m",
            "loopguard_client",
            "acp",
            "--budget-seconds",
            "20",
            "--",
            found,
            *words,
        ]
        to_file = ["sh", "-c", 'exec "$@" 2>../stderr', "sh", *command]
        env |= {
            "HOME": str(place.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": str(CLIENT),
            "LOOPGUARD_URL": live_server.url, "LOOPGUARD_KEY": token,
        }  # fmt: skip
        with ended_after(HOST_SECONDS, to_file, cwd=place.work, env=env) as process:
            editor = Editor(process)
            editor.begin(place.work)
            return place, editor, editor.prompt(PROMPT)

    yield run
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("agent", AGENTS)
def test_three_of_forty_identical_calls_run_and_the_person_reads_why(agent, prompted):
    place, editor, ended = prompted(agent, Script(40, "./probe"))
    assert place.runs() == 3, (ended, editor.told)
    assert ended in ("cancelled", "end_turn", "max_turn_requests")  # the last is Gemini CLI's own end
    assert "[LoopGuard: " in editor.told
    session = Session.objects.get(call_count__gt=0)
    assert session.external_id == editor.name
    assert Event.objects.filter(session=session, type="message").first().content == PROMPT
    assert "./probe" in str(Incident.objects.first().session.events.filter(type="call").first().arguments)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_healthy_turn_is_untouched(agent, prompted):
    place, editor, ended = prompted(agent, Script(len(HEALTHY), *HEALTHY))
    assert (place.runs(), ended) == (len(HEALTHY), "end_turn"), editor.told
    assert "LoopGuard" not in editor.told
    assert not Incident.objects.exists()
    assert Session.objects.get(call_count__gt=0).blocked_count == 0
