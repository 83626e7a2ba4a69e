"""Workers may die at any moment, be doubled, or be missing: nothing is lost and nothing counts twice."""

import random

import pytest
from django.db.models import F

from detection.models import Incident, Project, Session
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.keys import authenticate, create_key
from detection.services.sessions import evaluation
from detection.tasks.sweeper import Sweeper
from tests.support.threads import all_results, in_thread

from .installation import wait_until

pytestmark = pytest.mark.servers

SESSIONS, CALLS = 8, 160


def work(rng):
    """A session's events: honest work with loops in between, the same for the same numbers."""
    events = []
    for number in range(CALLS):
        kind = rng.choice(["same", "same", "same", "other", "fails"])
        arguments = '{"q":"again"}' if kind != "other" else f'{{"q":"{number}"}}'
        call = {
            "type": "call",
            "call_id": f"c{number}",
            "tool": "fetch" if kind == "fails" else "search",
            "arguments": arguments,
        }
        result = {
            "type": "result",
            "call_id": f"c{number}",
            "content": f"{kind} answer",
            "is_error": kind == "fails",
        }
        events += [call, result]
    return events


def send(token):
    for number in range(SESSIONS):
        events = work(random.Random(number))
        ingest(authenticate(token), [EventRecord(session=f"run-{number}", **event) for event in events])


def outcome(project):
    """Everything that detection has made of a project, in comparable form."""
    sessions = Session.objects.filter(project=project).order_by("external_id")
    incidents = Incident.objects.filter(project=project).order_by("session_name", "first_seq", "kind", "tool")
    return (
        [
            (
                s.external_id,
                s.state,
                s.call_count,
                s.evaluated_seq,
                s.meter_kind,
                s.meter_count,
                [(c[0], c[2]) for c in s.strip],
            )
            for s in sessions
        ],
        sorted(
            (i.session_name, i.first_seq, i.last_seq, i.kind, i.tool, i.count, i.detections, i.decision)
            for i in incidents
        ),
    )


def is_done():
    return not Session.objects.exclude(evaluated_seq=F("last_seq")).exists()


@pytest.fixture
def expected(project):
    """What one undisturbed evaluation of the same events comes to."""
    # Words share keyed hashes, and which ones do depends on the secret; in one of some hundred sessions a count shows it.
    twin = Project.objects.create(slug="twin", name="Twin", digest_secret=project.digest_secret)
    send(create_key(twin, "test", SYSTEM)[1])
    for session in Session.objects.filter(project=twin):
        while evaluation.evaluate(session.key):
            pass
    return outcome(twin)


@pytest.mark.promise("REL-04")
@pytest.mark.parametrize(
    ("seed", "kills"), [(4, 3), *(pytest.param(seed, 15, marks=pytest.mark.long) for seed in range(8))]
)
def test_a_worker_that_is_killed_again_and_again_changes_no_result(
    expected, project, token, install, seed, kills
):
    running = install(web=False, worker=False)
    worker = running.start_worker()
    send(token)
    rng = random.Random(seed)
    for _ in range(kills):
        # Some time between its first import and the end of its work.
        wait_until(is_done, 1.0 + rng.random() * 2.5)
        running.kill(worker)
        worker = running.start_worker()
    assert wait_until(is_done, 120), running.logs()
    assert outcome(project) == expected


def test_without_any_worker_the_schedule_process_evaluates_what_was_sent(project, token, install):
    install(web=False, worker=False).start_beat()
    send(token)
    assert wait_until(is_done)


@pytest.mark.promise("REL-07")
def test_several_sweepers_and_workers_count_nothing_twice(expected, project, token):
    sweepers = [Sweeper(period_seconds=0.01) for _ in range(2)]
    send(token)
    Session.objects.filter(project=project).update(pending_since="2020-01-01T00:00:00Z")
    keys = [session.key for session in Session.objects.filter(project=project)]

    def evaluate_all():
        for key in keys:
            evaluation.evaluate(key)

    for sweeper in sweepers:
        sweeper.start()
    all_results([in_thread(evaluate_all) for _ in range(3)])
    assert wait_until(is_done, 120)
    for sweeper in sweepers:
        sweeper.stop()
    assert outcome(project) == expected
