"""healthz, readyz and metrics."""

import re

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from detection.selectors.database_check import database_check
from loopguard_site import layout

ROOT = "http://127.0.0.1"


def test_healthz_makes_no_query(wsgi_client, db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert wsgi_client.get(f"{ROOT}/healthz").json() == {"status": "ok"}


def test_ready_while_the_database_answers_and_not_without_it(wsgi_client, db):
    database_check.clear()
    assert wsgi_client.get(f"{ROOT}/readyz").status_code == 200
    database_check.clear()
    settings = connections["default"].settings_dict
    host, settings["HOST"] = settings["HOST"], "/nowhere"
    try:
        answer = wsgi_client.get(f"{ROOT}/readyz")
    finally:
        settings["HOST"] = host
        database_check.clear()  # its answer is used again for a moment
    assert (answer.status_code, answer.json()["database"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.promise("SEC-26")
def test_metrics_are_for_this_machine_and_for_keys_with_the_scope_metrics_or_admin(
    wsgi_client, api, with_scopes
):
    assert wsgi_client.get(f"{ROOT}/metrics").status_code == 401
    assert (
        wsgi_client.get(f"{ROOT}/metrics", headers={"Authorization": "Bearer lg_nonsense"}).status_code == 401
    )
    assert with_scopes("read").get(f"{ROOT}/metrics").status_code == 401
    reader = with_scopes("metrics")
    assert reader.get(f"{ROOT}/metrics").status_code == 200
    assert reader.get("/sessions").status_code == 403
    wsgi_client._transport.remote_addr = "127.0.0.1"
    assert wsgi_client.get(f"{ROOT}/metrics").status_code == 200
    assert wsgi_client.get(f"{ROOT}/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 401
    wsgi_client._transport.remote_addr = "192.0.2.7"
    api.loop("s-1")
    api.post("/events", {"events": [{"type": "call"}, {"type": "call", "session": "waiting", "tool": "t"}]})
    api.raw("/events", b"{")
    lines = api.get(f"{ROOT}/metrics").text.splitlines()
    figures = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")
    }
    assert figures['loopguard_ingest_requests_total{code="not_json",route="events",status="400"}'] >= 1
    assert figures['loopguard_ingest_events_total{outcome="rejected",reason="missing"}'] >= 1
    assert figures['loopguard_guard_verdicts_total{decision="block"}'] >= 1
    assert figures["loopguard_verdict_seconds_count"] >= 4
    assert figures["loopguard_database_up"] == 1
    assert figures["loopguard_unprocessed_sessions"] == 1
    assert figures['loopguard_incidents{status="open"}'] == 1
    pages = "".join(page.read_text() for page in (layout.ROOT / "docs").glob("*.md"))
    documented = set(re.findall(r"\bloopguard_(?!client\b)[a-z_]+(?=[`{])", pages))
    missing = documented - {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert missing <= {"loopguard_storage_free_bytes", "loopguard_storage_full"}  # where the disk is known


def test_probes_and_readers_with_a_key_may_name_any_host_and_nobody_else(wsgi_client, with_scopes, db):
    pod = "http://10.1.2.3:8300"
    reader = with_scopes("metrics")
    for path in ("healthz", "readyz", "metrics"):
        assert wsgi_client.get(f"{pod}/{path}", headers=reader.headers).status_code == 200
    assert wsgi_client.get(f"{pod}/api/v1/sessions", headers=reader.headers).status_code == 400
    assert wsgi_client.get(f"{pod}/sign-in").status_code == 400
    # A browser on this machine may be led here by a name of somebody else.
    wsgi_client._transport.remote_addr = "127.0.0.1"
    assert wsgi_client.get("http://rebound.example/metrics").status_code == 400
    assert wsgi_client.get(f"{ROOT}/metrics").status_code == 200


def test_a_key_sees_nothing_of_another_project(api, as_other, wsgi_client):
    api.loop("s-1")
    as_other.loop("s-1")
    text = api.get(f"{ROOT}/metrics").text
    assert 'project="support"' in text
    assert "rivals" not in text
    wsgi_client._transport.remote_addr = "127.0.0.1"
    assert 'project="rivals"' in wsgi_client.get(f"{ROOT}/metrics").text


def test_metrics_are_for_staff_with_the_second_factor_that_is_required(db, settings):
    client = Client(REMOTE_ADDR="192.0.2.7")
    client.force_login(get_user_model().objects.create_user("ana", is_staff=True))
    assert client.get("/metrics").status_code == 200
    settings.REQUIRE_SECOND_FACTOR = True
    assert client.get("/metrics").status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_answers_carry_the_id_of_their_request(wsgi_client, db, path):
    assert wsgi_client.get(f"{ROOT}{path}").headers["x-request-id"].startswith("req_")
