import threading

import pytest
from django.db import transaction
from django.utils import timezone

from detection.engine import interventions
from detection.engine.scopes import PROJECT, Scope
from detection.models import Event, Incident, Project, Session, TrackerState
from detection.services.keys import Principal
from detection.services.policies import overrides
from detection.services.sessions import actions, evaluation, folding
from detection.services.sessions.locked_session import locked_session
from detection.services.sessions.recent_ids import recent_ids
from tests.support.agents import OPERATOR, Agent
from tests.support.statements import round_trips, sent_messages
from tests.support.threads import all_results, in_thread, wait_until_blocked


def test_the_fourth_identical_call_is_blocked_and_kept_as_an_incident_with_its_evidence(agent):
    decisions = [agent.asks().decision for _ in range(4)]

    assert decisions == ["allow", "allow", "allow", "block"]
    incident = Incident.objects.get()
    assert (incident.kind, incident.tool, incident.count, incident.limit) == ("repeat", "search_web", 4, 4)
    assert (incident.decision, incident.session_name, incident.calls_blocked) == ("block", "s-1", 1)
    assert [call["seq"] for call in incident.evidence["calls"]] == [1, 2, 3, 4]
    assert incident.policy["max_repeats"] == {"value": 4, "source": "preset:standard"}
    assert [step.action for step in incident.activity.all()] == ["opened", "reacted"]


def test_a_verdict_carries_text_incident_finding_and_the_source_of_every_setting(agent):
    for _ in range(3):
        agent.asks()
    verdict = agent.asks().verdicts[0]

    assert "search_web" in verdict.message()
    assert "reset password" not in verdict.message()
    assert verdict.verdict.incident == Incident.objects.get().public_id
    assert verdict.verdict.finding["count"] == 4
    assert verdict.verdict.policy["mode"] == {"value": "block_then_stop", "source": "preset:standard"}


def test_different_calls_are_left_alone(agent):
    for number in range(12):
        assert agent.asks(agent.call(arguments=f'{{"q": "page {number}"}}')).decision == "allow"
    assert not Incident.objects.exists()


def test_a_resent_call_gets_the_verdict_it_got_the_first_time_and_counts_once(agent):
    for number in range(4):
        first = agent.asks(agent.call(call_id=f"c-{number}"))
    again = agent.asks(agent.call(call_id="c-3"))

    assert again.verdicts[0].duplicate
    assert again.decision == first.decision == "block"
    assert again.verdicts[0].message() == first.verdicts[0].message()
    assert Session.objects.get().call_count == 4
    assert Event.objects.filter(type="call").count() == 4


@pytest.mark.promise("REL-11")
def test_a_resent_call_that_was_allowed_although_it_was_found_repeats_the_finding(agent):
    found = []
    for number in range(10):
        call = agent.call(call_id=f"c-{number}", arguments=f'{{"q": "page {number}"}}')
        first, again = agent.asks(call).verdicts[0], agent.asks(call).verdicts[0]
        assert again.duplicate
        assert (again.decision, again.verdict.finding) == (first.decision, first.verdict.finding)
        found.append(first.decision == "allow" and first.verdict.finding is not None)
        agent.posts(agent.result(f"c-{number}"))
    assert any(found)


@pytest.mark.promise("REL-29")
def test_a_model_override_changes_the_next_verdict_and_names_its_tier(agent, project):
    for _ in range(3):
        agent.asks()
    overrides.save_override(
        project.pk, Scope("model", backend="openai", model="gpt-5"), {"max_repeats": 9}, OPERATOR
    )
    answer = agent.asks()

    assert answer.decision == "allow"
    assert answer.verdicts[0].verdict.policy["max_repeats"] == {"value": 9, "source": "model:openai/gpt-5"}


def test_the_session_s_own_setting_wins_over_the_model_s(agent, project):
    overrides.save_override(
        project.pk, Scope("model", backend="openai", model="gpt-5"), {"max_repeats": 2}, OPERATOR
    )
    agent.asks()
    out = actions.run_command(project.pk, "s-1", "!/set(tool-loop-max-repeats=6)", OPERATOR)
    answer = agent.asks()

    assert out.is_changed
    assert "6" in out.lines[0]
    assert answer.decision == "allow"
    assert answer.verdicts[0].verdict.policy["max_repeats"] == {"value": 6, "source": "session"}


def test_a_stopped_session_gets_no_call_through_until_it_is_resumed(agent, project):
    agent.asks()
    actions.stop(project.pk, "s-1", OPERATOR, "runs wild")
    stopped = agent.asks(agent.call(tool="read_file", arguments="{}"))
    actions.resume(project.pk, "s-1", OPERATOR)
    resumed = agent.asks(agent.call(tool="read_file", arguments="{}"))

    assert stopped.decision == "stop"
    assert "ana" in stopped.verdicts[0].message()
    assert "runs wild" in stopped.verdicts[0].message()
    assert resumed.decision == "allow"
    assert Session.objects.get().blocked_count == 1


def test_events_sent_before_are_folded_before_the_verdict(agent):
    agent.posts(agent.call(), agent.call(), agent.call())

    assert agent.asks().decision == "block"
    session = Session.objects.get()
    assert session.evaluated_seq == session.last_seq == 4
    assert evaluation.evaluate(session.key) == 0


def test_results_sent_along_count_before_the_calls(agent):
    decisions = []
    for number in range(6):
        results = [agent.result(f"c-{number - 1}", f"job is at {number * 10} %")] if number else []
        decisions.append(
            agent.asks(agent.call("get_job", "{}", call_id=f"c-{number}"), results=results).decision
        )

    assert decisions == ["allow"] * 6, "a changing answer is progress"


def test_one_project_s_sessions_do_not_count_for_another(agent, principal):
    other = Project.objects.create(slug="other", name="Other")
    stranger = Agent(
        Principal(0, "x", other.pk, "other", principal.scopes, False, None, b"secret"), backend="openai"
    )
    for _ in range(3):
        agent.asks()

    assert stranger.asks().decision == "allow"
    assert Session.objects.filter(external_id="s-1").count() == 2


def test_with_detection_off_nothing_is_tracked(agent, project):
    overrides.save_override(project.pk, PROJECT, {"enabled": False}, OPERATOR)

    assert {agent.asks().decision for _ in range(8)} == {"allow"}
    assert not Incident.objects.exists()


def test_a_project_that_keeps_no_payloads_still_detects(agent, project):
    Project.objects.update(stores_payloads=False)
    decisions = [agent.asks().decision for _ in range(4)]

    assert decisions[-1] == "block"
    assert not Event.objects.exclude(arguments=None).exists()
    assert "reset password" not in str(Incident.objects.get().evidence)


def test_leaving_the_loop_ends_the_incident_as_recovered(agent):
    for _ in range(4):
        agent.asks()
    for number in range(5):
        agent.asks(agent.call("read_file", f'{{"path": "{number}.txt"}}'))

    incident = Incident.objects.get()
    assert incident.ended_at is not None
    assert incident.recovered is True
    assert Session.objects.get().state == "running"


@pytest.mark.promise("REL-34")
@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_calls_that_race_with_a_stop_are_never_allowed_after_it(transactional_db):
    project = Project.objects.create(slug="race", name="Race")
    agent = Agent(Principal(0, "x", project.pk, "race", frozenset(), False, None, b"secret"))
    agent.asks()
    log, start = [], threading.Barrier(5)

    def caller(number):
        start.wait(30)
        for index in range(6):
            answer = agent.asks(
                agent.call("read_file", f'{{"n": "{number}-{index}"}}', call_id=f"{number}-{index}")
            )
            log.append((answer.decision, f"{number}-{index}"))

    def stopper():
        start.wait(30)
        actions.stop(project.pk, "s-1", OPERATOR)

    all_results([*(in_thread(caller, number) for number in range(4)), in_thread(stopper)])

    rows = list(Event.objects.filter(type="call", session__project=project).order_by("seq"))
    assert [row.seq for row in rows] == [*range(1, 26)], "one gapless order, whatever came first"
    decisions = [row.decision for row in rows]
    first_stop = decisions.index("stop") if "stop" in decisions else len(decisions)
    assert set(decisions[first_stop:]) <= {"stop"}
    assert len(log) == 24


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_calls_that_race_for_one_session_are_counted_each_once(transactional_db):
    project = Project.objects.create(slug="race", name="Race")
    overrides.save_override(project.pk, PROJECT, {"mode": "observe"}, OPERATOR)
    agent = Agent(Principal(0, "x", project.pk, "race", frozenset(), False, None, b"secret"))
    start = threading.Barrier(4)

    def caller(number):
        start.wait(30)
        for index in range(10):
            agent.asks(agent.call(call_id=f"{number}-{index}"))

    all_results([in_thread(caller, number) for number in range(4)])

    assert Incident.objects.get().count == 40
    assert Session.objects.get().call_count == 40


def test_a_session_far_behind_is_caught_up_with_before_the_verdict(agent, monkeypatch):
    monkeypatch.setattr(folding, "BATCH_EVENTS", 5)
    agent.posts(
        *[agent.call("read", f'{{"n": {number}}}') for number in range(23)], *[agent.call() for _ in range(3)]
    )

    assert agent.asks().decision == "block"
    session = Session.objects.get()
    assert session.evaluated_seq == session.last_seq == session.call_count == 27


@pytest.mark.one_database("counts round trips, of which nodes need two")
@pytest.mark.django_db(transaction=True)
def test_a_guard_request_takes_one_round_trip_once_its_session_is_known(agent):
    Agent(agent.principal, "first of the project").asks()
    agent.asks(agent.call(call_id="c-1"))
    with sent_messages() as first:
        agent.asks(agent.call(call_id="c-2"), results=(agent.result("c-1"), agent.result("")))
    with sent_messages() as second:
        agent.asks(agent.call(call_id="c-3"))

    assert [round_trips(sent) for sent in (first, second)] == [1, 1]
    rows = Event.objects.filter(session__external_id=agent.session).order_by("seq")
    assert [*rows.values_list("closes", "call_number")] == [
        (0, 1),
        (1, 0),
        (0, 0),
        (0, 2),
        (0, 3),
    ]


@pytest.mark.one_database("counts round trips, of which nodes need two")
@pytest.mark.django_db(transaction=True)
def test_a_session_is_read_again_only_if_another_process_wrote_it_its_state_or_its_project(agent, project):
    decisions, trips = [], []

    def ask(times=1):
        for _ in range(times):
            with sent_messages() as sent:
                decisions.append(agent.asks().decision)
            trips.append(round_trips(sent))

    agent.asks()
    agent.asks()
    ask()
    with locked_session(Session.objects.get().key) as locked:
        interventions.reset_all(locked.tracker)
    ask(times=2)
    TrackerState.objects.update(updated_at=timezone.now())
    ask(times=2)
    Project.objects.update(stores_payloads=False)
    ask()

    assert trips[:4] == [
        1,
        4,
        1,
        3,
    ]  # the second of them found a loop before it knew that its counts were reset
    assert decisions[:5] == ["allow"] * 4 + ["block"]
    assert Event.objects.get(seq=Session.objects.get().last_seq).arguments is None


@pytest.mark.one_database("counts round trips, of which nodes need two")
@pytest.mark.django_db(transaction=True)
def test_a_call_id_that_was_used_before_other_processes_wrote_the_session_is_recognised(agent):
    agent.asks(agent.call(call_id="c-1"))
    agent.asks(agent.call("read", call_id="c-2"))
    with locked_session(Session.objects.get().key) as locked:
        interventions.reset_all(locked.tracker)
    agent.asks(agent.call("read", call_id="c-3"))
    with sent_messages() as sent:
        agent.asks(agent.call("write", call_id="c-4"))
    repeated = agent.asks(agent.call(call_id="c-1"), results=(agent.result("c-2"),))

    assert round_trips(sent) == 1
    assert repeated.verdicts[0].duplicate
    assert Event.objects.get(type="result").closes == 2
    assert Session.objects.get().call_count == 4


@pytest.mark.servers
def test_a_call_whose_write_waits_for_a_stop_is_stopped(transactional_db):
    project = Project.objects.create(slug="race", name="Race")
    agent = Agent(Principal(0, "x", project.pk, "race", frozenset(), False, None, b"secret"))
    agent.asks()
    agent.asks(agent.call("read"))
    decisions = []
    with transaction.atomic():
        actions.stop(project.pk, "s-1", OPERATOR, "")
        waiting = in_thread(lambda: decisions.append(agent.asks(agent.call("write")).decision))
        wait_until_blocked()
    waiting.result()

    assert decisions == ["stop"]
    assert Event.objects.filter(tool="write").count() == 1
    assert Session.objects.get().call_count == 3


def test_a_session_that_was_removed_and_created_again_by_another_process_keeps_its_calls(agent, project):
    agent.asks(agent.call(call_id="c-1"))
    removed = Session.objects.get()
    Session.objects.all().delete()
    agent.asks(agent.call(call_id="c-1"))
    agent.asks(agent.call(call_id="c-2"))
    recent_ids.put(project.pk, removed.external_id, removed.pk)  # this process knows nothing of it
    agent.asks(agent.call(call_id="c-3"), results=(agent.result("c-2"),))
    recent_ids.put(project.pk, removed.external_id, removed.pk)

    assert agent.asks(agent.call(call_id="c-3")).verdicts[0].duplicate
    assert Event.objects.get(type="result").closes == 2
    assert Session.objects.get().call_count == 3
