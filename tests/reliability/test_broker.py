"""Requests do not need the broker, and detection continues without it."""

import os
import threading

import httpx
import pytest
from django.db.models import F

from detection.models import Event, Incident, Session
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN

from .installation import looping_events, silent_server, wait_until

pytestmark = pytest.mark.servers

REQUESTS, SESSIONS = 24, 4
# The processes wait up to 5 s for a broker that is silent: a request that waited with them would fail here.
REQUEST_SECONDS = 4


@pytest.fixture(params=[pytest.param("refusing", marks=pytest.mark.long), "silent"])
def dead_broker(request):
    """The address of a broker that accepts no connection, or answers none."""
    if request.param == "refusing":
        yield request.getfixturevalue("no_broker")
    else:
        with silent_server() as port:
            yield f"redis://127.0.0.1:{port}/0"


def client(url, token):
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=REQUEST_SECONDS, verify=PLAIN)


def post_all(url, token):
    """Post looping sessions in many small requests; return the statuses."""
    with client(url, token) as http:
        return [
            http.post(
                "/events",
                json={
                    "events": looping_events(f"run-{number % SESSIONS}", calls=1, start=number // SESSIONS)
                },
            ).status_code
            for number in range(REQUESTS)
        ]


def every_posted_loop_is_found():
    behind = Session.objects.exclude(evaluated_seq=F("last_seq")).exists()
    return not behind and Incident.objects.filter(session_name__startswith="run-").count() == SESSIONS


@pytest.mark.promise("REL-01", "REL-02")
def test_with_a_dead_broker_requests_do_not_wait_and_the_sweeper_finds_every_loop(
    dead_broker, install, token
):
    running = install(dead_broker)
    assert set(post_all(running.url, token)) == {202}
    with client(running.url, token) as http:
        decisions = [
            http.post(
                "/guard",
                json={
                    "session": "guarded",
                    "calls": [{"call_id": f"c{number}", "tool": "search_web", "arguments": {"q": "again"}}],
                },
            ).json()["decision"]
            for number in range(4)
        ]
    assert decisions == ["allow", "allow", "allow", "block"]
    assert wait_until(every_posted_loop_is_found, PATIENCE_SECONDS), running.logs()
    stored = Event.objects.filter(session__external_id__startswith="run-")
    assert stored.count() == REQUESTS * 2


@pytest.mark.promise("REL-03")
def test_a_broker_that_forgets_everything_loses_nothing(install, token):
    import redis

    running = install()
    ended = threading.Event()

    def flush_again_and_again():
        with redis.Redis.from_url(os.environ["REDIS_URL"]) as broker:
            while not ended.wait(0.02):
                broker.flushall()

    flusher = threading.Thread(target=flush_again_and_again, daemon=True)
    flusher.start()
    try:
        assert set(post_all(running.url, token)) == {202}
        assert wait_until(every_posted_loop_is_found, PATIENCE_SECONDS), running.logs()
    finally:
        ended.set()
        flusher.join(30)
    assert list(Session.objects.values_list("call_count", flat=True)) == [REQUESTS // SESSIONS] * SESSIONS
