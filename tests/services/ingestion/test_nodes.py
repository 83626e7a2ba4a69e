"""A server with nodes gets other statements for a call, and stores the same."""

from django.db import connection

from detection.models import Event, Session
from detection.sql import pipeline
from tests.support.agents import Agent

SHOWN = (
    "seq",
    "type",
    "decision",
    "call_id",
    "tool",
    "arguments",
    "content",
    "is_error",
    "tokens",
    "cost_usd",
    "cwd",
)


def test_a_call_is_stored_alike_with_one_server_and_with_nodes(principal, monkeypatch):
    stored = []
    for has_nodes in (False, True):
        monkeypatch.setattr(connection.connection, "has_nodes", has_nodes)
        agent = Agent(principal, session=f"nodes-{has_nodes}", backend="openai", model="gpt-5")
        decisions = []
        for number in range(5):
            results = [agent.result(f"call_{number - 1}", is_error=number == 2, tokens=7)] if number else []
            decisions.append(agent.asks(agent.call(cwd="/srv"), results=results).decision)
        session = Session.objects.get(external_id=agent.session)
        events = Event.objects.filter(project_id=session.project_id, session_id=session.pk).order_by("seq")
        verdicts = [event.verdict is not None for event in events]
        stored.append((decisions, session.call_count, verdicts, [*events.values_list(*SHOWN)]))
    assert any(stored[0][2])
    assert stored[0] == stored[1]


def test_a_new_session_is_written_as_values_on_nodes(principal, server_with_nodes, monkeypatch):
    """Citus would read the rows of a SELECT first, copy them, and commit in two steps."""
    sent = []
    add = pipeline._Exchange.add

    def noted(exchange, statement):
        sent.append(statement.text)
        add(exchange, statement)

    monkeypatch.setattr(pipeline._Exchange, "add", noted)
    agent = Agent(principal, session="new-on-nodes", backend="openai", model="gpt-5")
    assert agent.asks(agent.call()).decision == "allow"
    inserts = [text for text in sent if text.startswith("INSERT")]
    assert len(inserts) == 3, "a session, an event and a state"
    assert not [text for text in inserts if "SELECT" in text]
