"""Tasks call services; here they are called as a worker calls them."""

import contextlib
import time
from datetime import timedelta

import pytest
from celery import current_app
from django.utils import timezone

from detection import jobs
from detection.models import Project, Session
from detection.selectors.heartbeats import heartbeats
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.keys import authenticate, create_key
from detection.services.maintenance.heartbeats import heartbeats as own_heartbeats
from detection.tasks.evaluation_queue import EvaluationQueue, evaluation_queue
from detection.tasks.sweeper import Sweeper
from loopguard_site.celery import app
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def session(transactional_db):
    own_heartbeats.clear()
    token = create_key(Project.objects.create(slug="p", name="P"), "key", SYSTEM)[1]
    ingest(
        authenticate(token),
        [EventRecord(type="call", session="run", call_id="c1", tool="search", arguments="{}")],
    )
    return Session.objects.get()


def run(name, *arguments):
    app.loader.import_default_modules()
    current_app.tasks[name].apply(args=arguments, throw=True)


def beat_of(part):
    return next(beat for beat in heartbeats(timezone.now()) if beat.part == part)


@contextlib.contextmanager
def worker():
    """A thread that evaluates what tasks name during the block; all of it is done at its end."""
    yield
    queue = EvaluationQueue()
    for project_id, waiting in evaluation_queue._by_project.items():
        queue.add(project_id, waiting)
    evaluation_queue._by_project.clear()
    queue.start(1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while queue._by_project and time.monotonic() < deadline:
        time.sleep(0.01)
    queue.stop()


@pytest.mark.servers
def test_a_worker_evaluates_the_session_it_is_told_of(session):
    with worker():
        run(jobs.EVALUATE, session.project_id, [session.pk])
    session.refresh_from_db()
    assert (session.evaluated_seq, session.call_count) == (1, 1)


def test_a_session_that_is_gone_is_no_error(session):
    with worker():
        run(jobs.EVALUATE, session.project_id, [session.pk + 1, session.pk])
    session.refresh_from_db()
    assert session.evaluated_seq == 1


@pytest.mark.promise("REL-18")
def test_projects_take_turns_and_a_session_waits_once():
    queue = EvaluationQueue()
    queue.add(1, [10, 11, 12, 11, 10])
    queue.add(2, [20])
    queue.add(1, [13])
    queue.add(3, [])
    assert [queue.take() for _ in range(5)] == [(1, 10), (2, 20), (1, 11), (1, 12), (1, 13)]


def test_a_sweep_finds_what_nobody_was_told_of(session):
    Session.objects.update(pending_since=timezone.now() - timedelta(seconds=10))
    run(jobs.SWEEP)
    session.refresh_from_db()
    assert session.evaluated_seq == 1


@pytest.mark.servers
def test_housekeeping_runs_twice_without_harm(session):
    run(jobs.HOUSEKEEPING)
    run(jobs.HOUSEKEEPING)
    assert Session.objects.exists()


def test_every_part_shows_when_it_has_worked(session):
    assert beat_of("worker").is_late
    with worker():
        run(jobs.EVALUATE, session.project_id, [session.pk])
    run(jobs.SWEEP)
    run(jobs.HOUSEKEEPING)
    for part in ("worker", "beat", "housekeeping"):
        assert not beat_of(part).is_late
    assert beat_of("sweeper").at is None


@pytest.mark.promise("REL-07")
def test_a_part_that_stopped_working_is_late(session):
    run(jobs.SWEEP)
    later = timezone.now() + timedelta(seconds=61)
    assert next(beat for beat in heartbeats(later) if beat.part == "beat").is_late


def test_everything_on_the_schedule_is_a_task_that_exists():
    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)


def test_a_worker_s_own_thread_sweeps_and_tidies_soon_after_its_start(session):
    sweeper = Sweeper(period_seconds=0.05)
    sweeper.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and (beat_of("sweeper").is_late or beat_of("housekeeping").is_late):
        time.sleep(0.05)
    sweeper.stop()

    assert not beat_of("sweeper").is_late
    assert not beat_of("housekeeping").is_late
