"""Families under concurrency: sessions of one family are folded at once, and every call counts once."""

import threading

import pytest

from detection.engine import family as engine_family
from detection.engine.policy import PROJECT
from detection.models import Incident, Project, Session, SessionFamily
from detection.services.keys import Principal
from detection.services.policies import overrides
from detection.services.retention import erasure, retention
from detection.services.sessions import evaluation
from tests.support.agents import OPERATOR, Agent
from tests.support.statements import round_trips, sent_messages
from tests.support.threads import all_results, in_thread

SETTINGS = {
    "family_enabled": True,
    "family_budget_enabled": True,
    "handoff_enabled": True,
    "family_max_repeats": 1000,
}
CHILDREN, CALLS = 4, 8


@pytest.fixture
def fleet(transactional_db):
    project = Project.objects.create(slug="race", name="Race")
    overrides.save_override(project.pk, PROJECT, SETTINGS, OPERATOR)
    return Principal(0, "x", project.pk, "race", frozenset(), False, None, b"secret")


def member(principal, name, parent="top"):
    return Agent(principal, name, agent=name, parent_session=parent)


def counted():
    row = SessionFamily.objects.get(name="top")
    family = engine_family.load(row.name, bytes(row.snapshot))
    return family, [one.count for one in family.repeats.values()]


@pytest.mark.servers
def test_calls_of_several_sessions_at_once_count_once_each_and_nobody_waits_in_a_circle(fleet):
    """Guards of four children and of the parent, workers that fold reported calls of all, and a parent that becomes known meanwhile."""
    started = threading.Barrier(CHILDREN + 2)

    def guarded(number):
        # Two of them know their parent by another name first.
        agent = member(fleet, f"child-{number}", "middle" if number % 2 else "top")
        started.wait(30)
        for _ in range(CALLS):
            agent.asks(agent.call("grep", "{}"))

    def reported():
        started.wait(30)
        for turn in range(CALLS):
            agents = [member(fleet, f"child-{number}") for number in range(CHILDREN)]
            agents[0].posts(
                *(one.call("list", "{}", f"posted-{turn}-{place}") for place, one in enumerate(agents))
            )
            for session in Session.objects.all():
                evaluation.evaluate(session.key)

    def parent():
        started.wait(30)
        for number in range(CALLS):
            member(fleet, "middle").asks(member(fleet, "middle").call("plan", f'{{"n": {number}}}'))

    all_results(
        [in_thread(guarded, number) for number in range(CHILDREN)] + [in_thread(reported), in_thread(parent)]
    )
    for session in Session.objects.all():
        evaluation.evaluate(session.key)
    for number in range(CHILDREN):
        agent = member(fleet, f"child-{number}", "middle" if number % 2 else "top")
        agent.asks(agent.call("done", "{}"))
    member(fleet, "middle").asks()

    family, _ = counted()
    sessions = Session.objects.all()
    assert [row.name for row in SessionFamily.objects.all()] == ["top"]
    assert family.totals[0] == sum(session.call_count for session in sessions)
    assert len(family.usage) == CHILDREN + 1


def test_the_repeats_of_children_at_once_are_exact(fleet):
    agents = [member(fleet, f"child-{number}") for number in range(CHILDREN)]
    for agent in agents:
        agent.asks(agent.call("grep", "{}"))

    def repeat(agent):
        for _ in range(CALLS):
            agent.asks(agent.call("grep", "{}"))

    all_results([in_thread(repeat, agent) for agent in agents])
    assert counted()[1] == [CHILDREN * CALLS]


def test_a_session_of_a_family_costs_two_round_trips_more_and_one_without_a_family_one(fleet):
    costs = []
    for agent in (member(fleet, "child"), Agent(fleet, "alone")):
        for number in range(2):
            agent.asks(agent.call("read", f'{{"n": {number}}}'))
        call = agent.call("read", '{"n": 9}')
        with sent_messages() as sent:
            agent.asks(call)
        costs.append(round_trips(sent))
    assert costs == [4, 3]


def test_families_are_removed_with_age_and_with_the_name_of_their_top(fleet):
    project = Project.objects.get()
    agent = member(fleet, "child")
    member(fleet, "top", "").asks()
    agent.asks()
    assert SessionFamily.objects.get().name == "top"
    erasure.request_erasure(project.pk, "session", "top", OPERATOR)
    erasure.run_waiting(lambda: False)
    assert not SessionFamily.objects.exists()
    assert not Incident.objects.exists()

    agent.asks()
    retention.purge(project)
    assert SessionFamily.objects.count() == 1
    SessionFamily.objects.update(updated_at="2020-01-01T00:00:00Z")
    retention.purge(project)
    assert not SessionFamily.objects.exists()
