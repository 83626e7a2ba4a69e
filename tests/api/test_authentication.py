"""Keys, scopes and tenants, generated from the table of routes: a new route is covered, or fails here until it is."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.db import connection
from django.test import override_settings

from detection.api.app import api as ninja_api
from detection.models import Approval, Project
from detection.services import keys
from detection.services.audit import SYSTEM
from tests.support.alerts import make_incident
from tests.support.http_receiver import receiving
from tests.support.projects import make_key, make_project
from tests.support.shared_rows import shared_rows

from .conftest import Api, speaking

SOON = (datetime.now(UTC) + timedelta(hours=8)).isoformat()

NEEDS_NO_KEY = {("POST", "/install-codes/exchange")}
ROUTES = [
    route
    for path, operations in ninja_api.get_openapi_schema()["paths"].items()
    for method in operations
    if (route := (method.upper(), path.removeprefix("/api/v1"))) not in NEEDS_NO_KEY
]
SCOPES = {
    ("POST", "/events"): "ingest",
    ("POST", "/guard"): "guard",
    ("POST", "/hooks/{host}"): "guard",
    ("POST", "/otlp/v1/traces"): "ingest",
    ("POST", "/otlp/v1/logs"): "ingest",
    ("POST", "/otlp/v1/metrics"): "ingest",
    ("POST", "/sessions/{session}/commands"): "guard",
    ("POST", "/imports"): "ingest",
    ("GET", "/approvals/{approval_id}"): "guard",
    ("GET", "/audit"): "admin",
    ("GET", "/keys"): "admin",
    ("GET", "/audit/export"): "admin",
}
BODIES = {
    ("POST", "/events"): {"type": "call", "session": "s-1", "tool": "t"},
    ("POST", "/guard"): {"session": "s-1", "calls": [{"tool": "t"}]},
    ("POST", "/hooks/{host}"): {
        "hook_event_name": "PreToolUse",
        "session_id": "s-1",
        "tool_name": "Bash",
        "tool_input": {},
    },
    ("POST", "/otlp/v1/traces"): {"resourceSpans": []},
    ("POST", "/otlp/v1/logs"): {"resourceLogs": []},
    ("POST", "/otlp/v1/metrics"): {"resourceMetrics": []},
    ("POST", "/sessions/{session}/commands"): {"text": "!/set(tool-loop-max-repeats=6)"},
    ("PATCH", "/sessions/{session}/policy"): {"max_repeats": 6},
    ("POST", "/sessions/{session}/revoke-exemption"): {"tool": "search_web"},
    ("POST", "/incidents/{incident_id}/exceptions"): {"option": "session:off"},
    ("POST", "/loops/bulk"): {"ids": ["{loop_id}"], "action": "done"},
    ("POST", "/loops/{loop_id}/assign"): {"assignee": ""},
    ("POST", "/loops/{loop_id}/comment"): {"note": "seen"},
    ("POST", "/loops/{loop_id}/later"): {"until_worse": True},
    ("POST", "/loops/{loop_id}/fine"): {"note": "polls"},
    ("PUT", "/overrides"): {"values": {"max_repeats": 6}},
    ("PUT", "/overrides/{backend}"): {"values": {"max_repeats": 6}},
    ("PUT", "/overrides/{backend}/{model}"): {"values": {"max_repeats": 6}},
    ("PUT", "/agent-overrides/{agent}"): {"values": {"max_repeats": 6}},
    ("PUT", "/tool-rules/{pattern}"): {"exempt": True},
    ("PUT", "/message-templates/{rung}"): {"text": "No more of $tool."},
    ("POST", "/message-templates/preview"): {"rung": "block", "text": "No more of $tool."},
    ("POST", "/approvals/{approval_id}/decision"): {"choice": "skip"},
    ("POST", "/approvals/groups/{group}/decision"): {"choice": "skip"},
    ("POST", "/approvals/{approval_id}/ruling/label"): {"label": "right"},
    ("POST", "/alerts/destinations"): {"name": "other hook", "kind": "webhook", "address": "{address}"},
    ("PATCH", "/alerts/destinations/{destination_id}"): {"name": "renamed"},
    ("POST", "/agent-messages"): {"session": "s-1", "text": "Write to the other table."},
    ("PUT", "/agents/{agent}/tags"): {"tags": ["a"]},
    ("PUT", "/keys/{key_id}/tags"): {"tags": ["a"]},
    ("POST", "/erasures/sessions"): {"sessions": ["older"]},
    ("POST", "/containments"): {"scope": "tool", "value": "deploy", "reaction": "block"},
    ("POST", "/alerts/routes"): {"name": "some", "destinations": ["{destination_id}"]},
    ("POST", "/alerts/routes/preview"): {"destinations": ["{destination_id}"]},
    ("PUT", "/alerts/routes/{route_id}"): {"name": "some", "destinations": ["{destination_id}"]},
    ("POST", "/alerts/silences"): {"reason": "quiet", "ends_at": SOON},
    ("POST", "/backends"): {"name": "other", "base_url": "{address}"},
    ("PATCH", "/backends/{backend_id}"): {"is_enabled": False},
    ("POST", "/backends/{backend_id}/tokens"): {"name": "ci"},
    ("PATCH", "/project"): {"name": "Renamed"},
    ("PUT", "/views"): {"list": "incidents", "name": "Cycles", "q": "detector:cycle"},
    ("PATCH", "/views/{view_id}"): {"name": "Renamed"},
    ("PUT", "/prices"): {"model": "gpt-*", "input_usd": 1.25, "output_usd": 10},
    ("POST", "/imports"): {"type": "user", "sessionId": "old"},
    ("POST", "/erasures"): {"session": "s-1"},
    ("POST", "/what-if"): {"scope": "agent:triage", "values": {"max_repeats": 6}},
    ("POST", "/suggestions/{suggestion_id}/accept"): {},
    ("POST", "/suggestions/{suggestion_id}/reject"): {"note": "no"},
    ("POST", "/suggestions/{suggestion_id}/what-if"): {"days": 7},
    ("POST", "/alerts/notifications/resend"): {"ids": ["{notification_id}"]},
}
QUERIES = {
    ("GET", "/search"): {"q": "reset"},
    ("GET", "/rates/comparison"): {"by": "tool", "first": "search_web", "second": "read_file"},
}
"""Queries of routes that need one."""
REACHABLE = {"ALERT_ALLOWED_NETWORKS": ("127.0.0.0/8",)}
NEEDS_OWN_STATE = {
    ("POST", "/approvals/answers/{answer_id}/undo"),
    ("POST", "/incidents/{incident_id}/exceptions/undo"),
    ("POST", "/loops/{loop_id}/undo"),
    ("POST", "/suggestions/{suggestion_id}/undo"),
    ("POST", "/sessions/{session}/revoke-exemption"),
}
"""Responds 409 or 404 while there is nothing to undo."""
NAMES_A_FOREIGN_THING = {
    ("PUT", "/keys/{key_id}/tags"),
    ("POST", "/erasures"),
    ("POST", "/alerts/routes"),
    ("POST", "/alerts/routes/preview"),
    ("PUT", "/alerts/routes/{route_id}"),
    ("POST", "/alerts/notifications/resend"),
}
MAKES_ITS_OWN = {("POST", "/events"), ("POST", "/guard"), ("POST", "/hooks/{host}")}


@pytest.fixture(scope="module")
def receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def world(django_db_setup, django_db_blocker, receiver):
    """A project with one of everything that a path can name, made once: each test's own changes are taken back."""
    with (
        shared_rows(django_db_blocker),
        speaking() as wsgi_client,
        override_settings(**REACHABLE, GATEWAY_UPSTREAMS=(receiver.url,)),
    ):
        project = make_project("support")
        key = make_key(project)
        things = _made(Api(wsgi_client, key), receiver.url)
        yield project, key, things, _keys_of(project), everything_of(project)


@pytest.fixture
def project(world, db):
    return world[0]


@pytest.fixture
def key(world, db):
    return world[1]


@pytest.fixture
def things(world, db, settings):
    settings.ALERT_ALLOWED_NETWORKS = REACHABLE["ALERT_ALLOWED_NETWORKS"]
    settings.GATEWAY_UPSTREAMS = (world[2]["address"],)
    return world[2]


def _keys_of(project):
    """A key with only one scope, and one with all others, by that scope."""
    scopes = {"ingest", "guard", "read", "admin"}
    return {
        scope: (make_key(project, scopes=[scope]), make_key(project, scopes=[*scopes - {scope}]))
        for scope in scopes
    }


def _made(api, address):
    """One of everything that a path can name, by its placeholder."""
    api.loop("s-1")
    found = {
        "session": "s-1",
        "incident_id": api.get("/incidents").json()["items"][0]["id"],
        "loop_id": api.get("/loops").json()["items"][0]["id"],
        "agent": "triage",
        "backend": "openai",
        "model": "gpt-5",
        "host": "claude-code",
        "pattern": "exempt_*",
        "rung": "block",
    }
    for path in ("/overrides", "/overrides/openai", "/overrides/openai/gpt-5", "/agent-overrides/triage"):
        api.put(path, {"values": {"max_repeats": 5}})
    api.put("/tool-rules/exempt_*", {"exempt": True})
    api.put("/message-templates/block", {"text": "Enough."})
    body = {"type": "user", "sessionId": "older"}
    found["import_id"] = api.post("/imports", body).json()["id"]
    found["erasure_id"] = api.post("/erasures", {"session": "s-1"}).json()["id"]
    found["what_if_id"] = api.post("/what-if", {"scope": "project"}).json()["id"]
    body = {"scope": "tool", "value": "rarely_used", "reaction": "block"}
    found["containment_id"] = api.post("/containments", body).json()["id"]
    body = {"session": "s-9", "text": "Stay away."}
    found["message_id"] = api.post("/agent-messages", body).json()["id"]
    found["key_id"] = api.get("/keys").json()["items"][0]["public_id"]
    found["view_id"] = api.put("/views", {"list": "incidents", "name": "Mine"}).json()["id"]
    for _ in range(3):
        make_incident(
            Project.objects.get(slug="support"), tool="poller", label="false_alarm", label_reason="poll"
        )
    found["suggestion_id"] = api.get("/suggestions").json()["items"][0]["id"]
    return found | _approvals(api) | _alerts(api, address)


def _approvals(api):
    api.put("/overrides/asking", {"values": {"mode": "ask", "max_repeats": 2}})
    for session in ("s-2", "s-3"):
        api.loop(session, times=2, backend="asking")
    first, second = api.get("/approvals").json()["items"]
    api.post(f"/approvals/{second['id']}/decision", {"choice": "skip", "remember": True})
    remembered = api.get("/approvals/remembered").json()["items"][0]
    approval = Approval.objects.get(public_id=first["id"])
    approval.judge_calls.create(
        project=approval.project,
        session_id=approval.session_id,
        calls_digest=approval.calls_digest,
        outcome="denied",
    )
    group = api.get("/approvals/groups").json()["items"][0]["group"]
    api.loop("s-4", times=2, backend="asking", tool="read_file")
    other = api.get("/approvals/groups", tool="read_file").json()["items"][0]["group"]
    answer = api.post(f"/approvals/groups/{other}/decision", {"choice": "skip"}).json()["id"]
    return {
        "approval_id": first["id"],
        "remembered_id": remembered["id"],
        "group": group,
        "answer_id": answer,
    }


def _alerts(api, address):
    destination = api.post(
        "/alerts/destinations", {"name": "hook", "kind": "webhook", "address": address}
    ).json()["id"]
    route = api.post("/alerts/routes", {"name": "all", "destinations": [destination]}).json()["id"]
    silence = api.post("/alerts/silences", {"reason": "maintenance", "ends_at": SOON}).json()["id"]
    notification = api.post(f"/alerts/destinations/{destination}/test").json()["id"]
    backend = api.post("/backends", {"name": "local", "base_url": address}).json()["id"]
    token = api.post(f"/backends/{backend}/tokens", {"name": "ci"}).json()["id"]
    price = api.put("/prices", {"model": "gpt-*", "input_usd": 1, "output_usd": 2}).json()["id"]
    return {
        "backend_id": backend, "token_id": token, "price_id": price,
        "destination_id": destination, "route_id": route, "silence_id": silence, "notification_id": notification, "address": address,
    }  # fmt: skip


def filled(body, things):
    """The body with placeholders filled in, at any depth."""
    if isinstance(body, dict):
        return {name: filled(value, things) for name, value in body.items()}
    if isinstance(body, list):
        return [filled(value, things) for value in body]
    return body.format_map(things) if isinstance(body, str) and "{" in body else body


def ask(who, method, path, things):
    query = f"?{urlencode(QUERIES[method, path])}" if (method, path) in QUERIES else ""
    return who.request(
        method, path.format_map(things) + query, json=filled(BODIES.get((method, path)), things)
    )


def code_of(answer):
    """The code of an error; exporters of OpenTelemetry get it in the message of a `Status`."""
    problem = answer.json()
    return problem["message"].partition(":")[0] if "message" in problem else problem["code"]


@pytest.mark.promise("SEC-02", "SEC-32")
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_accepts_its_scope_and_denies_every_other(wsgi_client, world, things, method, path):
    needed = SCOPES.get((method, path), "read" if method == "GET" else "admin")
    with_needed, with_others = (Api(wsgi_client, key) for key in world[3][needed])
    refused = ask(with_others, method, path, things)
    assert (refused.status_code, code_of(refused)) == (403, "missing_scope")
    admitted = ask(with_needed, method, path, things)
    assert admitted.status_code < 300 or (method, path) in NEEDS_OWN_STATE, admitted.text


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_key_every_route_responds_401(wsgi_client, db, method, path):
    answer = wsgi_client.request(method, re.sub(r"{\w+}", "1", path))
    assert (answer.status_code, code_of(answer)) == (401, "missing_key")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.promise("SEC-05")
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_projects_objects_do_not_exist(as_other, world, project, things, method, path):
    answer = ask(as_other, method, path, things)
    if (method, path) in NAMES_A_FOREIGN_THING:
        assert answer.status_code in (404, 422)
    elif method == "PUT":
        assert answer.status_code == 200  # makes the other project's own
    elif ("{" in path and (method, path) not in MAKES_ITS_OWN) or (method, path) == ("DELETE", "/overrides"):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
    else:
        assert answer.status_code < 300, answer.text
        assert "support" not in answer.text
        if (method, path) not in MAKES_ITS_OWN:
            assert things["incident_id"] not in answer.text or '"not_found"' in answer.text
    assert everything_of(project) == world[4]


def everything_of(project):
    """Every row of the project, as text."""
    tables = [
        model._meta.db_table
        for model in apps.get_app_config("detection").get_models()
        if any(f.name == "project" for f in model._meta.fields)
    ]
    assert len(tables) > 10
    rows = " UNION ALL ".join(
        f"SELECT '{table}' AS name, one::text AS content FROM {table} AS one WHERE project_id = %s"
        for table in tables
    )
    with connection.cursor() as cursor:
        cursor.execute(f"{rows} ORDER BY name, content", [project.pk] * len(tables))
        return cursor.fetchall()


@pytest.mark.promise("SEC-04")
def test_malformed_keys_are_rejected_without_a_query(wsgi_client, db, django_assert_num_queries):
    with django_assert_num_queries(0):
        for token in ("", "nonsense", "lg_abc", "lg_0123456789_" + "0" * 72, "Bearer", "lg_" + "é" * 84):
            answer = wsgi_client.get("/sessions", headers={"Authorization": f"Bearer {token}".encode()})
            assert answer.status_code == 401
            assert token not in answer.text or not token


def test_an_unknown_and_a_revoked_key_get_the_same_response(wsgi_client, project, key):
    keys.revoke_key(project, key[3:13], SYSTEM)
    unknown = make_key(project)
    project.api_keys.filter(public_id=unknown[3:13]).delete()
    answers = [
        wsgi_client.get("/sessions", headers={"Authorization": f"Bearer {token}"}).json()
        for token in (key, unknown)
    ]
    for answer in answers:
        answer.pop("request_id")
    assert answers[0] == answers[1]


def test_the_servers_override_cannot_be_changed_with_a_projects_key(as_other):
    answer = as_other.put("/overrides/server", {"values": {"max_repeats": 6}})
    assert (
        answer.json()["scope"] == "backend"
    )  # a backend of that name; the server's override has no path here
    assert {override["scope"] for override in as_other.get("/overrides").json()["items"]} == {"backend"}
