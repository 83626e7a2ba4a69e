"""Recorded runs of our own writing, posted through the real API and evaluated by the code of the workers."""

import gzip
import json

import pytest
from django.core.management import CommandError, call_command

from detection.models import Event, Incident, Project, Session
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from detection.services.sessions import evaluation


@pytest.fixture
def token(transactional_db):
    return create_key(Project.objects.create(slug="default", name="Default"), "loader", SYSTEM)[1]


def line(seq, session="run/1", **more):
    return {
        "source": "own", "session": session, "seq": seq, "ts": "2026-03-01T12:00:00+00:00", "backend": "openai",
        "model": "m-7", "tool": "search", "arguments": {"q": "same"}, "result": "nothing found", "is_error": False, **more,
    }  # fmt: skip


LINES = [
    *(line(seq) for seq in range(6)),
    line(0, "run/2", arguments="not json", result=None, is_error=None, ts=None, turn=1),
    line(1, "run/2", tool="read", turn=1),
]


def written(path, lines, *, packed=False):
    text = "\n".join(json.dumps(line) for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_recorded_runs_become_sessions_with_strips_and_incidents(
    live_server, token, tmp_path, packed, capsys
):
    file = written(tmp_path / "events", LINES, packed=packed)
    call_command("load_runs", str(file), url=live_server.url, key=token)
    assert "2 sessions, 15 events accepted, 0 duplicate" in capsys.readouterr().out
    for session in Session.objects.all():
        evaluation.evaluate(session.key)
    looping = Session.objects.get(external_id="own/run/1")
    assert (looping.call_count, len(looping.strip), looping.model) == (6, 6, "m-7")
    incident = Incident.objects.get(kind="repeat")
    assert (incident.session_name, incident.tool) == ("own/run/1", "search")
    healthy = Session.objects.get(external_id="own/run/2")
    rounds = Event.objects.filter(session_id=healthy.pk, type="call").values_list("round", flat=True)
    assert set(rounds) == {"turn-1"}


def test_calls_of_one_response_come_before_its_results_and_users_may_speak(
    live_server, token, tmp_path, capsys
):
    lines = [
        line(seq, "run/3", turn=turn, ts="2026-03-01T12:00:00", user_before=seq == 2)
        for seq, turn in enumerate((1, 1, 2))
    ]
    call_command(
        "load_runs", str(written(tmp_path / "events", lines)), url=live_server.url, key=token, sessions=1
    )
    assert "7 events accepted" in capsys.readouterr().out
    stored = Event.objects.order_by("seq").values_list("type", "occurred_at__hour")
    types = ["call", "call", "result", "result", "message", "call", "result"]
    assert list(stored) == [(kind, 12) for kind in types]


def test_loading_twice_adds_nothing(live_server, token, tmp_path, capsys):
    file = written(tmp_path / "events", LINES)
    call_command("load_runs", str(file), url=live_server.url, key=token)
    capsys.readouterr()
    call_command("load_runs", str(file), url=live_server.url, key=token)
    assert "0 events accepted, 15 duplicate" in capsys.readouterr().out


def test_only_the_first_sessions_are_loaded_when_asked(live_server, token, tmp_path):
    file = written(tmp_path / "events", LINES)
    call_command("load_runs", str(file), url=live_server.url, key=token, sessions=1)
    assert [session.external_id for session in Session.objects.all()] == ["own/run/1"]


def test_a_broken_line_is_named(live_server, token, tmp_path):
    file = tmp_path / "events"
    file.write_text("{}\n{broken")
    with pytest.raises(CommandError, match="line 2"):
        call_command("load_runs", str(file), url=live_server.url, key=token)


def test_a_wrong_key_is_said(live_server, token, tmp_path):
    file = written(tmp_path / "events", LINES)
    with pytest.raises(CommandError, match="401"):
        call_command("load_runs", str(file), url=live_server.url, key="lg_wrong")
