"""Existing sessions get the numbers that new ones have."""

from django.db import connection

from detection.migrations import _sql_0014
from detection.models import Event, Incident, Session
from detection.services.sessions import evaluation
from tests.support.agents import Agent


def stored():
    return (
        [*Event.objects.order_by("session_id", "seq").values_list("seq", "call_number")],
        [*Session.objects.order_by("id").values_list("call_count", "strip")],
        [*Incident.objects.order_by("id").values_list("first_call_number", "evidence")],
    )


def forget_numbers():
    with connection.cursor() as cursor:
        cursor.execute("UPDATE detection_event SET call_number = 0")
        cursor.execute("UPDATE detection_incident SET first_call_number = 0")
        cursor.execute(
            "UPDATE detection_session SET strip = (SELECT jsonb_agg(cell - 3 ORDER BY place)"
            " FROM jsonb_array_elements(strip) WITH ORDINALITY AS cells (cell, place)) WHERE strip <> '[]'"
        )
        cursor.execute(
            "UPDATE detection_incident SET evidence = jsonb_set(evidence, '{calls}', (SELECT jsonb_agg(call - 'number' ORDER BY place)"
            " FROM jsonb_array_elements(evidence->'calls') WITH ORDINALITY AS calls (call, place)))"
        )


def test_the_migration_numbers_the_calls_of_existing_sessions(agent, principal):
    for number in range(5):
        agent.asks(results=[agent.result(f"call_{number - 1}")] if number else [])
    other = Agent(principal, "s-2")
    other.posts(*[other.call("read", f'{{"n": {number}}}') for number in range(3)])
    evaluation.evaluate(Session.objects.get(external_id="s-2").pk)
    other.posts(other.call("waits", "{}"))
    Agent(principal, "s-3").posts(other.result("unknown"))
    before = stored()
    forget_numbers()
    assert stored() != before
    with connection.cursor() as cursor:
        cursor.execute(_sql_0014.NUMBER)
    assert stored() == before


def test_a_call_on_the_strip_whose_event_is_gone_has_no_number(agent):
    agent.asks()
    Session.objects.update(strip=[[99, "abc", "^"]])
    with connection.cursor() as cursor:
        cursor.execute(_sql_0014.NUMBER)
    assert Session.objects.get().strip == [[99, "abc", "^", 0]]
