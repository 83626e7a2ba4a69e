"""The broker is out of the request path, and detection goes on without it."""

import os
import threading
import time

import httpx
import pytest
from django.db.models import F

from detection.models import Event, Incident, Session

from .installation import free_port, looping_events, silent_server, wait_until

REQUESTS, SESSIONS = 24, 4
SWEEP_SECONDS = 15


@pytest.fixture(params=["refusing", "silent"])
def dead_broker(request):
    """The address of a broker that is of no use."""
    if request.param == "refusing":
        yield f"redis://127.0.0.1:{free_port()}/0"
    else:
        with silent_server() as port:
            yield f"redis://127.0.0.1:{port}/0"


def post_all(url, token):
    """Post looping sessions in many small requests; return statuses and seconds."""
    answers = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10) as client:
        for number in range(REQUESTS):
            lap, session = divmod(number, SESSIONS)
            events = looping_events(f"run-{session}", calls=1, start=lap)
            before = time.monotonic()
            status = client.post("/api/v1/events", json={"events": events}).status_code
            answers.append((status, time.monotonic() - before))
    return answers


def everything_is_evaluated():
    behind = Session.objects.exclude(evaluated_seq=F("last_seq")).exists()
    return not behind and Incident.objects.count() == SESSIONS


def test_with_a_dead_broker_every_event_is_taken_quickly_and_the_sweeper_finds_the_loops(
    dead_broker, install, token
):
    running = install(dead_broker)
    answers = post_all(running.url, token)
    posted_at = time.monotonic()
    assert {status for status, _ in answers} == {202}
    assert sorted(seconds for _, seconds in answers)[len(answers) * 9 // 10] < 1.0
    assert wait_until(everything_is_evaluated, SWEEP_SECONDS), running.logs()
    assert time.monotonic() - posted_at < SWEEP_SECONDS
    stored = Event.objects.filter(session_id__in=Session.objects.values("pk"))
    assert stored.count() == REQUESTS * 2


def test_with_a_dead_broker_the_guard_still_answers(dead_broker, install, token):
    running = install(dead_broker, worker=False)
    decisions = []
    with httpx.Client(
        base_url=running.url, headers={"Authorization": f"Bearer {token}"}, timeout=10
    ) as client:
        for number in range(4):
            call = {"call_id": f"c{number}", "tool": "search_web", "arguments": {"q": "again"}}
            before = time.monotonic()
            answer = client.post("/api/v1/guard", json={"session": "run", "calls": [call]})
            assert time.monotonic() - before < 2.0
            decisions.append(answer.json()["decision"])
    assert decisions == ["allow", "allow", "allow", "stop"]


def test_a_broker_that_forgets_everything_loses_nothing(install, token):
    import redis

    running = install()
    ended = threading.Event()

    def flush_again_and_again():
        with redis.Redis.from_url(os.environ["REDIS_URL"]) as broker:
            while not ended.wait(0.02):
                broker.flushall()

    flusher = threading.Thread(target=flush_again_and_again)
    flusher.start()
    try:
        answers = post_all(running.url, token)
        assert {status for status, _ in answers} == {202}
        assert wait_until(everything_is_evaluated, SWEEP_SECONDS), running.logs()
    finally:
        ended.set()
        flusher.join()
    assert list(Session.objects.values_list("call_count", flat=True)) == [REQUESTS // SESSIONS] * SESSIONS
