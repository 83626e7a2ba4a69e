"""A loop is one incident, whichever detectors find it; calls are counted once."""

import pytest

from detection.engine.scopes import PROJECT
from detection.models import AlertEvent, Incident, Notification, Session
from detection.services.alerting import routing
from detection.services.incidents import loop_triage
from detection.services.policies import overrides
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import OPERATOR
from tests.support.alerts import make_route, make_webhook


def limited(project, **values):
    settings = {"budget_enabled": True, "budget_ladder": "observe", "mode": "observe", **values}
    overrides.save_override(project.pk, PROJECT, settings, OPERATOR, "observe only")


def observe(agent, calls):
    agent.posts(*[agent.call(tool, arguments, cost_usd=0.5) for tool, arguments in calls])
    while evaluate(Session.objects.get().key):
        pass


def distinct(count, start=0):
    return [(f"tool_{number}", f'{{"n": {number}}}') for number in range(start, start + count)]


def runs_of_identical_calls():
    calls = []
    for run in range(6):
        calls += distinct(20, run * 100)
        calls += [("search", f'{{"run": {run}}}')] * 29
    return calls


def test_a_spent_budget_hides_no_loop(agent, project):
    limited(project, budget_max_calls=10)
    observe(agent, runs_of_identical_calls())
    repeats = Incident.objects.filter(kind="repeat").order_by("pk")
    assert [row.count for row in repeats] == [29] * 6
    assert [row.calls_in_loop for row in repeats] == [29] * 6
    assert {row.ended_at is not None for row in repeats[:5]} == {True}
    budget = Incident.objects.get(kind="budget")
    assert budget.calls_in_loop == 6 * 49 - 9
    assert budget.ended_at is None


def test_a_loop_ends_although_a_limit_is_found_at_every_call(agent, project):
    limited(project, budget_max_calls=10, mode="block_then_stop", budget_ladder="stop")
    observe(agent, [*distinct(12), *[("search", "{}")] * 6, *distinct(12, 100)])
    repeat, budget = Incident.objects.get(kind="repeat"), Incident.objects.get(kind="budget")
    assert repeat.ended_at is not None
    assert budget.ended_at is None


@pytest.mark.parametrize("one_by_one", [False, True])
def test_sums_count_every_call_and_its_cost_once_whatever_the_transactions(agent, project, one_by_one):
    limited(project, budget_max_calls=10)
    calls = [*distinct(12), *[("search", "{}")] * 9]
    for part in [[call] for call in calls] if one_by_one else [calls]:
        observe(agent, part)
    rows = {row.kind: row for row in Incident.objects.all()}
    beyond_or_in_loop = 21 - 9
    assert sum(row.counted_calls for row in rows.values()) == beyond_or_in_loop
    assert {row.kind: float(row.cost_usd) for row in rows.values()} == {
        row.kind: row.counted_calls * 0.5 for row in rows.values()
    }
    assert (rows["repeat"].calls_in_loop, rows["budget"].calls_in_loop) == (9, 12)


def test_a_loop_that_continues_after_it_was_closed_counts_no_call_again(agent, project):
    observe(agent, [("search", "{}")] * 5)
    loop_triage.done(project.pk, Incident.objects.get().loop.public_id, OPERATOR)
    observe(agent, [("search", "{}")] * 2)
    first, second = Incident.objects.order_by("pk")
    assert (first.counted_calls, second.counted_calls) == (5, 2)
    assert (float(first.cost_usd), float(second.cost_usd)) == (2.5, 1.0)


def test_a_detector_that_joins_counts_no_call_that_an_ended_incident_counts(agent, project):
    settings = {"mode": "observe", "stagnation_ladder": "observe", "stagnation_max_calls": 10}
    off = dict.fromkeys(("outcome_enabled", "similar_enabled", "cycle_enabled"), False)
    overrides.save_override(project.pk, PROJECT, settings | off, OPERATOR, "observe only")

    def read(number, path):
        agent.posts(
            agent.call("read_file", f'{{"path": "{path}"}}', call_id=f"c-{number}", cost_usd=0.5),
            agent.result(f"c-{number}", f"the text of {path}"),
        )
        while evaluate(Session.objects.get().key):
            pass

    for number in range(5):
        read(number, "a.md")
    loop_triage.done(project.pk, Incident.objects.get().loop.public_id, OPERATOR)
    for number in range(5, 14):
        read(number, "b.md")
    first, second = Incident.objects.order_by("pk")
    assert second.kinds == ["repeat", "stagnation"]
    assert (first.counted_calls, second.counted_calls) == (5, 9)
    assert float(first.cost_usd + second.cost_usd) == 14 * 0.5


def test_a_loop_is_told_once_however_many_detectors_find_it_and_a_spent_limit_by_itself(
    agent, project, receiver
):
    limited(project, budget_max_calls=4, outcome_max_results=3, mode="warn", budget_ladder="warn")
    make_route(project, make_webhook(project, receiver), group_by=["kind"], event_types=["opened"])
    for number in range(10):
        agent.posts(agent.call("search", "{}", call_id=f"c-{number}"), agent.result(f"c-{number}", "same"))
    evaluate(Session.objects.get().key)
    loop, budget = Incident.objects.exclude(kind="budget").get(), Incident.objects.get(kind="budget")
    assert len(loop.kinds) > 1
    routing.route_pending()
    told = [
        [event.facts["kinds"] for event in AlertEvent.objects.filter(items__notification=one)]
        for one in Notification.objects.all()
    ]
    assert sorted(told) == sorted([[loop.kinds], [budget.kinds]])


def test_what_is_recorded_only_is_told_to_nobody_until_an_agent_is_told(agent, project):
    limited(project)
    observe(agent, [("search", "{}")] * 9)
    assert Incident.objects.get(kind="repeat").is_recorded_only
    assert not AlertEvent.objects.exists()
    limited(project, mode="warn")
    observe(agent, [("search", "{}")] * 3)
    assert not Incident.objects.get(kind="repeat").is_recorded_only
    assert [event.type for event in AlertEvent.objects.all()] == ["opened"]
    limited(project, mode="block")
    observe(agent, [("search", "{}")] * 3)
    assert [event.type for event in AlertEvent.objects.order_by("pk")] == ["opened", "escalated"]


def test_an_incident_is_named_after_the_detector_that_acted(agent, project):
    """`outcome` finds it first and is recorded only; `repeat` joins, and what it does is what the incident says."""
    settings = {"outcome_ladder": "observe", "mode": "block", "stagnation_enabled": False}
    overrides.save_override(project.pk, PROJECT, settings, OPERATOR, "for the test")

    def edit(number, line):
        arguments = f'{{"path": "a.py", "old": "line {line}"}}'
        verdict = agent.asks(agent.call("edit_file", arguments, call_id=f"c-{number}")).verdicts[0]
        if verdict.decision in ("allow", "warn"):
            agent.posts(agent.result(f"c-{number}", "Error: old text not found", is_error=True))
            evaluate(Session.objects.get().key)
        return verdict.decision

    for number in range(8):
        edit(number, number * 7919)
    first = Incident.objects.get()
    assert (first.kind, first.decision, first.kinds) == ("outcome", "allow", ["outcome"])
    assert "block" in {edit(number, 1) for number in range(8, 16)}
    found = Incident.objects.get()
    assert found.public_id == first.public_id
    assert (found.kind, found.decision) == ("repeat", "block")
    assert found.kinds[0] == "repeat"
    decisions = {one["kind"]: one["decision"] for one in found.findings.values()}
    assert (decisions["repeat"], decisions["outcome"]) == ("block", "allow")
    assert found.policy.keys() >= {"max_repeats", "outcome_max_results"}
    own = found.findings[found.calls_digest]
    assert (found.count, found.limit, found.confidence) == (own["count"], own["limit"], own["confidence"])


def test_a_loop_identity_stays_one_incident_while_it_lasts(agent, project):
    limited(project)
    for _ in range(40):
        observe(agent, [("search", "{}")])
    assert Incident.objects.filter(kind="repeat").count() == 1
