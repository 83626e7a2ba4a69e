"""A key above its rate limit gets 429 with Retry-After and is shown to people; other keys are not affected."""

import pytest
from django.test import Client

from detection.api.rate_limits import RateLimiter, rate_limiter
from detection.models import Attempt, Event, Role
from detection.services.ingestion.attempts import recorder
from loopguard_site import env
from tests.support.projects import make_key, make_member

ROOT = "http://127.0.0.1"
CALL = {"type": "call", "session": "s-1", "tool": "t"}


@pytest.fixture
def slow(settings):
    """One request, and the next one after a hundred seconds."""
    settings.KEY_REQUESTS_PER_SECOND = 0.01


def later(seconds):
    """Let time pass for the buckets."""
    for key_id in rate_limiter._due:
        rate_limiter._due[key_id] -= seconds


def refused(answer):
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert answer.headers["content-type"] == "application/problem+json"
    return int(answer.headers["retry-after"])


def test_a_key_is_rejected_until_retry_after_and_nothing_is_stored(api, slow):
    assert api.post("/events", CALL).status_code == 202
    wait = refused(api.post("/events", CALL))
    assert 1 <= wait <= 102
    assert Event.objects.count() == 1
    later(wait)
    assert api.post("/events", CALL).status_code == 202
    assert Event.objects.count() == 2


def test_a_burst_of_two_seconds_is_let_through_whatever_the_route(api, settings):
    settings.KEY_REQUESTS_PER_SECOND = 1.5
    answers = [api.get("/sessions"), api.call(), api.post("/events", CALL)]
    assert [answer.status_code for answer in answers] == [200, 200, 202]
    later(-2.0)  # as if the three had come at once on a machine without any delay
    refused(api.get("/sessions"))


def test_rejected_requests_do_not_make_the_wait_longer(api, slow):
    api.get("/sessions")
    waits = [refused(api.get("/sessions")) for _ in range(20)]
    assert max(waits) <= 102


@pytest.mark.promise("SEC-23")
def test_each_key_has_its_own_measure(api, as_other, wsgi_client, project, slow):
    api.get("/sessions")
    refused(api.get("/sessions"))
    assert as_other.get("/sessions").status_code == 200
    second = {"Authorization": f"Bearer {make_key(project)}"}
    assert wsgi_client.get("/sessions", headers=second).status_code == 200


def test_unknown_keys_are_rejected_as_such_and_not_cached(wsgi_client, db, slow):
    for _ in range(3):
        answer = wsgi_client.get("/sessions", headers={"Authorization": "Bearer lg_nonsense"})
        assert answer.json()["code"] == "unknown_key"
    assert rate_limiter._due == {}


def test_the_body_of_a_rejected_request_is_not_read(api, wsgi_client, slow):
    api.get("/sessions")
    refused(api.raw("/events", b"{" * 100_000))
    assert wsgi_client._transport.body.taken == 0


def test_zero_means_no_limit_and_the_default_is_generous(api, settings):
    settings.KEY_REQUESTS_PER_SECOND = 0
    assert {api.get("/sessions").status_code for _ in range(20)} == {200}
    assert rate_limiter._due == {}
    settings.KEY_REQUESTS_PER_SECOND = env.read({"LOOPGUARD_MODE": "test"}).key_requests_per_second
    assert {api.get("/sessions").status_code for _ in range(20)} == {200}
    assert rate_limiter.per_second == 1000


@pytest.mark.parametrize("given", ["many", "-1", "inf", "nan", ""])
def test_a_rate_that_is_none_ends_the_start_with_the_variable_s_name(given):
    with pytest.raises(env.EnvironmentProblem, match="LOOPGUARD_KEY_REQUESTS_PER_SECOND"):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_KEY_REQUESTS_PER_SECOND": given})


def test_rejected_requests_are_counted_and_shown_with_the_key(api, key, project, slow, settings):
    api.call()
    for _ in range(3):
        refused(api.call())
    refused(api.get("/sessions"))
    recorder.flush()
    shown = [
        (one.route, one.code, one.key_hint) for one in Attempt.objects.filter(status=429).order_by("route")
    ]
    assert shown == [("guard", "rate_limited", key[:13]), ("other", "rate_limited", key[:13])]
    assert Attempt.objects.get(route="guard", status=429).times == 3
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    page = client.get(f"/p/{project.slug}/ingest").content.decode()
    assert "rate_limited" in page
    assert f"{key[:13]}" in page
    settings.KEY_REQUESTS_PER_SECOND = 0
    metrics = api.get(f"{ROOT}/metrics").text.splitlines()
    counted = [
        line
        for line in metrics
        if line.startswith('loopguard_rate_limited_requests_total{project="support"}')
    ]
    assert float(counted[0].split()[-1]) >= 4
    assert any('code="rate_limited",route="guard",status="429"' in line for line in metrics)


def test_the_memory_is_bounded(settings):
    settings.KEY_REQUESTS_PER_SECOND = 1.0
    limiter = RateLimiter(max_keys=10)
    for key_id in range(35):
        limiter.wait_seconds(key_id)
        assert len(limiter._due) <= 10
