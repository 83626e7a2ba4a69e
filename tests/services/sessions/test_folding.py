"""What folding puts on events and sessions, seen where people and clients see it."""

import logging
import time

import pytest

from detection import logs
from detection.engine.scopes import PROJECT
from detection.models import Event, Incident, Session, TrackerState
from detection.selectors.sessions import command_replies, session_calls
from detection.selectors.strips import cells_of
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.errors import Conflict
from detection.services.events.event_records import EventRecord
from detection.services.policies import overrides
from detection.services.sessions import actions, evaluation, folding
from loopguard_site import env
from tests.support.agents import OPERATOR
from tests.support.statements import sent_messages


def message(text):
    return EventRecord(type="message", session="s-1", content=text)


def disable(project):
    overrides.save_override(project.pk, PROJECT, {"enabled": False}, OPERATOR, "not now")


def test_where_detection_is_disabled_nothing_is_tracked(agent, project, monkeypatch):
    disable(project)
    used = []
    monkeypatch.setattr("detection.engine.fold.observe_call", lambda *_: used.append("fold"))
    agent.asks()
    agent.asks(results=[agent.result("call_0")])
    agent.posts(agent.call(), message("hello"), EventRecord(type="end", session="s-1", content="completed"))
    evaluation.evaluate(Session.objects.get().key)
    session = Session.objects.get()
    assert used == []
    assert not TrackerState.objects.exists()
    assert (session.call_count, session.state, session.evaluated_seq) == (3, "ended", 6)


def test_a_call_sends_less_where_detection_is_disabled(agent, project):
    def size(messages):
        return sum(int(message.split("\t")[1]) for message in messages)

    agent.asks()
    with sent_messages() as enabled:
        agent.asks()
    disable(project)
    agent.asks()  # reads the changed settings
    with sent_messages() as disabled:
        agent.asks()
    assert 0 < size(disabled) < 0.7 * size(enabled)


def test_disabling_keeps_the_state_of_before(agent, project):
    agent.asks()
    before = TrackerState.objects.values().get()
    disable(project)
    agent.asks()
    assert TrackerState.objects.values().get() == before


def test_calls_are_numbered_without_the_events_between_them(agent):
    agent.posts(message("hi"), agent.call(call_id="a"), agent.result("a"), agent.call("other", "{}"))
    evaluation.evaluate(Session.objects.get().key)
    agent.asks(agent.call("third", "{}"), results=[agent.result("call_1")])
    numbers = Event.objects.order_by("seq").values_list("type", "call_number")
    assert [number for kind, number in numbers if kind == "call"] == [1, 2, 3]
    assert {number for kind, number in numbers if kind != "call"} == {0}
    session = Session.objects.get()
    assert [cell.number for cell in cells_of(session.strip)] == [1, 2, 3]
    assert [row.call_number for row in session_calls(session).items] == [1, 2, 3]


def test_a_quarantined_call_has_its_number_too(agent, monkeypatch):
    from detection.engine import fold

    agent.posts(agent.call("broken"), agent.call("sound"))
    sound = fold.observe_call

    def brittle(state, call, *rest):
        if call.tool == "broken":
            raise ZeroDivisionError
        return sound(state, call, *rest)

    monkeypatch.setattr(fold, "observe_call", brittle)
    evaluation.evaluate(Session.objects.get().key)
    assert [*Event.objects.order_by("seq").values_list("call_number", flat=True)] == [1, 2]


def test_an_incident_knows_the_number_of_its_first_call(agent):
    agent.asks(agent.call("read", "{}"), results=[])
    for number in range(4):
        agent.asks(results=[agent.result(f"call_{number}")])
    incident = Incident.objects.get()
    assert (incident.first_seq, incident.first_call_number) == (3, 2)
    assert [call["number"] for call in incident.evidence["calls"]] == [2, 3, 4, 5]


def test_replies_to_commands_in_messages_are_kept(agent):
    agent.posts(message("hello"), message("!/set(tool-loop-max-repeats=6) and !/set(tool-loop-ttl=0)"))
    evaluation.evaluate(Session.objects.get().key)
    session = Session.objects.get()
    (reply,) = command_replies(session)
    assert reply.seq == 2
    assert reply.lines[0].startswith("tool-loop-max-repeats is now 6")
    assert reply.lines[1].startswith("tool-loop-ttl must be")
    assert session.policy_values == {"max_repeats": 6}


def exempt(agent, project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, OPERATOR)
    held = [agent.asks() for _ in range(4)][-1].verdicts[0]
    decisions.decide(project.pk, held.approval["id"], "exempt", OPERATOR)


def test_an_exemption_is_seen_on_the_session_and_can_be_revoked(agent, project):
    exempt(agent, project)
    assert Session.objects.get().exempt_tools == ["search_web"]
    assert {agent.asks().decision for _ in range(8)} == {"allow"}
    actions.revoke_exemption(project.pk, "s-1", "search_web", OPERATOR)
    assert Session.objects.get().exempt_tools == []
    assert [agent.asks().decision for _ in range(4)][-1] == "hold"
    with pytest.raises(Conflict):
        actions.revoke_exemption(project.pk, "s-1", "search_web", OPERATOR)


def test_an_exemption_does_not_survive_a_resume(agent, project):
    exempt(agent, project)
    actions.stop(project.pk, "s-1", OPERATOR)
    actions.resume(project.pk, "s-1", OPERATOR)
    assert Session.objects.get().exempt_tools == []
    assert [agent.asks().decision for _ in range(4)][-1] == "hold"


def test_an_exemption_survives_a_rebuilt_state(agent, project):
    exempt(agent, project)
    TrackerState.objects.update(snapshot=b'{"v":-1}', version=0)
    assert {agent.asks().decision for _ in range(8)} == {"allow"}


@pytest.mark.django_db(transaction=True)
def test_each_detection_is_one_warning_with_tool_count_and_session(agent, caplog):
    caplog.set_level(logging.DEBUG, logger="detection")
    for _ in range(4):
        agent.asks()
    lines = [record.msg for record in caplog.records if record.levelno == logging.WARNING]
    (line,) = [line for line in lines if line["event"] == "loop_detected"]
    assert {name: line[name] for name in ("tool", "count", "limit", "detector", "decision", "session")} == {
        "tool": "search_web", "count": 4, "limit": 4, "detector": "repeat", "decision": "block", "session": "s-1",
    }  # fmt: skip


@pytest.fixture
def log_at():
    """Return a function that sets the lowest level of the log lines."""

    def set_level(level):
        logs.formatter(level=level)
        vars(folding.log).pop("bind", None)  # a logger keeps the level of its first line

    yield set_level
    set_level("INFO")


@pytest.mark.parametrize(("variable", "lines"), [("debug", 2), ("", 0), ("WARNING", 0)])
def test_the_log_level_decides_whether_each_call_has_a_line_with_its_signature(
    agent, caplog, log_at, variable, lines
):
    caplog.set_level(logging.DEBUG, logger="detection")
    log_at(env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_LOG_LEVEL": variable}).log_level)
    agent.asks()
    agent.asks(agent.call("read_file", "{}"))
    found = [record.msg for record in caplog.records if record.msg["event"] == "call_signature"]
    assert len(found) == lines
    assert len({line["signature"] for line in found}) == lines
    assert {(line["session"], line["tool"]) for line in found} <= {
        ("s-1", "search_web"),
        ("s-1", "read_file"),
    }


@pytest.mark.parametrize(("level", "lines"), [("DEBUG", True), ("INFO", False)])
def test_calls_that_no_longer_count_have_a_line_at_debug_alone(project, agent, caplog, log_at, level, lines):
    caplog.set_level(logging.DEBUG, logger="detection")
    values = {
        "preset": "proxy",
        "repeat_scope": "window",
        "window_calls": 2,
        "ttl_seconds": 1,
        "ttl_from": "entry",
    }
    overrides.save_override(project.pk, PROJECT, values, SYSTEM)
    log_at(level)
    agent.asks(agent.call("read_file", '{"path": "secret-name"}'))
    for number in range(64):
        agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))
    time.sleep(1.1)
    agent.asks(agent.call("read_file", '{"path": "another"}'))
    agent.asks(agent.call("read_file", '{"path": "another one"}'))
    found = [record.msg for record in caplog.records if record.msg["event"] == "calls_pruned"]
    assert {line["reason"] for line in found} == ({"expired", "left_window"} if lines else set())
    expired = [line["signature"] for line in found if line["reason"] == "expired"]
    assert len(expired) == len(set(expired)), "each is noted once"
    assert bool(expired) is lines
    assert {line["session"] for line in found} <= {"s-1"}
    assert {len(line["signature"]) for line in found} <= {12}
    assert "secret-name" not in str(found)


def test_an_unknown_log_level_ends_the_start_with_the_name_of_the_variable():
    with pytest.raises(env.EnvironmentProblem, match="LOOPGUARD_LOG_LEVEL must be one of DEBUG, INFO"):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_LOG_LEVEL": "loud"})
