"""Of a family of sessions, one history has the same incidents and verdicts, however late its events are evaluated."""

import itertools
import random

import pytest
from django.db import connection
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.models import Event, Incident, Session
from detection.services.sessions.evaluation import evaluate

ALONE = {
    "outcome_enabled": False, "stagnation_enabled": False, "similar_enabled": False, "session_repeat_enabled": False,
}  # fmt: skip
WATCHED = {
    "handoff_enabled": True,
    "family_enabled": True,
    "family_budget_enabled": True,
    "family_budget_max_calls": 12,
    "family_budget_ladder": "stop",
    "spawns_max_total": 4,
    "handoff_ladder": "block",
}
numbers = itertools.count()


class Family:
    """Sessions below one parent, played through the API; `evaluates` says after which step workers catch up."""

    def __init__(self, api, evaluates=lambda step: False, seed=0):
        self.api, self.evaluates, self.random = api, evaluates, random.Random(seed)
        self.name, self.step, self.verdicts = f"family-{next(numbers)}", 0, []

    def session(self, number):
        return f"{self.name}-{number}" if number else self.name

    def about(self, number, agent=""):
        about = {"session": self.session(number)}
        about |= {"parent_session": self.name} if number else {}
        return about | ({"agent": agent} if agent else {})

    def call(self, number, tool, agent="", arguments=None, *, guarded=True):
        self.step += 1
        call = {"tool": tool, "arguments": arguments or {"case": self.step}, "call_id": f"c-{self.step}"}
        if guarded:
            body = self.about(number, agent) | {"calls": [call]}
            verdict = self.api.post("/guard", body).json()["verdicts"][0]
            self.verdicts.append((verdict["decision"], (verdict["finding"] or {}).get("kind")))
        else:
            self.send([self.about(number, agent) | call | {"type": "call"}])
        return call["call_id"]

    def result(self, number, call_id, content):
        self.send(
            [{"session": self.session(number), "type": "result", "call_id": call_id, "content": content}]
        )

    def send(self, events):
        assert self.api.post("/events", {"events": events}).status_code == 202
        if self.evaluates(self.step):
            self.catch_up()

    def catch_up(self):
        """Evaluate all sessions, in any order."""
        rows = [*Session.objects.filter(external_id__startswith=self.name)]
        self.random.shuffle(rows)
        for session in rows:
            evaluate(session.key)

    def outcome(self):
        """Verdicts, incidents and what evaluation has put on the events, with names that do not depend on the play."""
        self.catch_up()
        own = Session.objects.filter(external_id__startswith=self.name)
        assert all(one.evaluated_seq == one.last_seq for one in own)
        rows = Event.objects.filter(session__in=own).order_by("session__external_id", "seq")
        events = rows.values_list("session__external_id", "seq", "type", "decision", "flags", "call_number")
        incidents = Incident.objects.filter(session_name__startswith=self.name).order_by("kind", "tool", "pk")
        found = [
            (one.session_name, one.kind, one.tool, one.count, one.decision, one.first_seq)
            for one in incidents
        ]
        return self.verdicts, *(
            [(name.removeprefix(self.name), *rest) for name, *rest in part] for part in (found, events)
        )


def handed_over(family, sessions, guarded=True, content="not my department"):
    for number in range(14):
        agent, tool = (("triage", "find_customer"), ("billing", "find_invoice"))[number % 2]
        place = sessions(number)
        call_id = family.call(place, tool, agent, guarded=guarded)
        family.result(place, call_id, content(number) if callable(content) else content)
    return family.outcome()


SESSIONS = {
    "one session": lambda number: 0,
    "a session for each agent": lambda number: 1 + number % 2,
    "a session for each hand-off": lambda number: 1 + number,
    "the parent and a child": lambda number: number % 2,
}


@pytest.mark.promise("REL-39")
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "reported"])
@pytest.mark.parametrize("sessions", SESSIONS.values(), ids=SESSIONS)
def test_a_cycle_of_hand_offs_is_found_though_its_results_wait_for_a_worker(api, sessions, guarded):
    api.put("/overrides", {"values": ALONE | {"handoff_enabled": True, "spawns_enabled": False}})
    prompt = handed_over(Family(api, lambda step: True), sessions, guarded)
    late = handed_over(Family(api), sessions, guarded)
    some = handed_over(Family(api, lambda step: step % 3 == 0), sessions, guarded)
    assert late == prompt
    assert some == prompt
    assert [incident[1] for incident in prompt[1]] == ["handoff"]


@pytest.mark.parametrize("evaluates", [lambda step: True, lambda step: False], ids=["prompt", "late"])
def test_hand_offs_that_bring_something_new_are_left_alone(api, evaluates):
    api.put("/overrides", {"values": ALONE | {"handoff_enabled": True, "spawns_enabled": False}})
    found = handed_over(
        Family(api, evaluates), SESSIONS["a session for each hand-off"], content=lambda n: f"draft {n * 7919}"
    )
    assert found[1] == []


steps = st.lists(
    st.tuples(
        st.integers(0, 3),  # the session
        st.sampled_from(["search", "search", "read", "spawn_agent"]),
        st.sampled_from(["triage", "billing"]),
        st.booleans(),  # whether the guard is asked
        st.sampled_from(["0 hits", "0 hits", "error: not found", ""]),
        st.sampled_from([0, 0, 1]),  # identical arguments, or others
        st.booleans(),  # whether the result comes at once, or after the next call
    ),
    min_size=4,
    max_size=24,
)


def played(family, history):
    waiting = []
    for session, tool, agent, guarded, content, differs, is_prompt in history:
        arguments = {"prompt": "look"} if not differs else {"prompt": f"look {family.step}"}
        call_id = family.call(session, tool, agent, arguments, guarded=guarded)
        waiting.append((session, call_id, content))
        if is_prompt:
            for one in waiting:
                family.result(*one)
            waiting = []
    return family.outcome()


SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
random_histories = given(history=steps, late=st.sets(st.integers(1, 24)), seed=st.integers(0, 5))


@pytest.mark.promise("REL-39")
@settings(max_examples=6, deadline=None, suppress_health_check=SUPPRESSED)
@random_histories
def test_random_histories_have_one_outcome_whenever_they_are_evaluated(api, history, late, seed):
    check(api, history, late, seed)


@pytest.mark.long
@settings(max_examples=200, deadline=None, suppress_health_check=SUPPRESSED)
@random_histories
def test_many_random_histories_have_one_outcome_whenever_they_are_evaluated(api, history, late, seed):
    check(api, history, late, seed)


def check(api, history, late, seed):
    api.put("/overrides", {"values": ALONE | WATCHED})
    prompt = played(Family(api, lambda step: True), history)
    assert played(Family(api, lambda step: step not in late, seed), history) == prompt
    assert played(Family(api, seed=seed), history) == prompt


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "batches"])
def test_events_of_one_batch_keep_their_order_across_sessions(api, together):
    api.put("/overrides", {"values": ALONE | {"handoff_enabled": True, "spawns_enabled": False}})
    family, events = Family(api), []
    for number in range(14):
        about = family.about(1 + number % 2, ("triage", "billing")[number % 2])
        call = {"tool": "find", "arguments": {"case": number}, "call_id": f"c-{number}"}
        events.append(about | call | {"type": "call"})
        events.append(about | {"type": "result", "call_id": f"c-{number}", "content": "not my department"})
    for part in [events] if together else [[event] for event in events]:
        family.send(part)
    assert [incident[1] for incident in family.outcome()[1]] == ["handoff"]


def test_a_backlog_of_more_than_one_transaction_keeps_the_order(api, monkeypatch):
    monkeypatch.setattr("detection.services.sessions.folding.BATCH_EVENTS", 3)
    api.put("/overrides", {"values": ALONE | {"handoff_enabled": True, "spawns_enabled": False}})
    family = Family(api)
    for number in range(14):
        call_id = family.call(1 + number % 2, "find", ("triage", "billing")[number % 2], guarded=number == 13)
        family.result(1 + number % 2, call_id, "not my department")
    for _ in range(40):
        family.catch_up()
    assert [incident[1] for incident in family.outcome()[1]] == ["handoff"]


@pytest.fixture
def database_rejects(db):
    """Have PostgreSQL reject what evaluation writes on the sessions whose name ends in 3."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.external_id LIKE '%-3' AND NEW.evaluated_seq > OLD.evaluated_seq THEN"
            " RAISE EXCEPTION 'numeric field overflow' USING ERRCODE = '22003'; END IF; RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER reject BEFORE UPDATE ON detection_session FOR EACH ROW EXECUTE FUNCTION reject()"
        )


@pytest.mark.one_database("a trigger refuses what is written")
@pytest.mark.promise("REL-39")
@pytest.mark.usefixtures("database_rejects")
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "reported"])
def test_a_session_that_cannot_be_evaluated_stops_no_other_one_of_its_family(api, guarded):
    api.put("/overrides", {"values": ALONE | {"handoff_enabled": True, "spawns_enabled": False}})
    family = Family(api)
    family.call(3, "find", "legal", guarded=False)
    for number in range(14):
        call_id = family.call(1 + number % 2, "find", ("triage", "billing")[number % 2], guarded=guarded)
        family.result(1 + number % 2, call_id, "not my department")
    for session in Session.objects.exclude(external_id__endswith="-3"):
        evaluate(session.key)
    assert {decision for decision, _ in family.verdicts} <= {"allow", "warn"}
    assert [one.kind for one in Incident.objects.all()] == ["handoff"]
    behind = Session.objects.filter(evaluated_seq__lt=F("last_seq"))
    assert [one.external_id for one in behind] == [family.session(3)]
