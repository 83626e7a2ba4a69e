"""Looks for the detector `burst` everywhere in the product. Run in a copy of the project in which it is registered."""

from __future__ import annotations

import importlib.util
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402
from django.urls import reverse  # noqa: E402

from detection.models import AlertDestination, Incident, Membership, Project, Role  # noqa: E402
from detection.services import keys  # noqa: E402
from detection.services.audit import SYSTEM  # noqa: E402


def check() -> None:
    project = Project.objects.create(slug="new-detector", name="New detector")
    token = keys.create_key(project, "agent", SYSTEM)[1]
    api = Client(headers={"authorization": f"Bearer {token}"})
    check_settings_of_the_api(api)
    check_the_guard(api)
    check_the_rest_of_the_api(api)
    person = get_user_model().objects.create_superuser("ana")
    Membership.objects.create(project=project, user=person, role=Role.ADMIN)
    screens = Client()
    screens.force_login(person)
    check_the_screens(screens, project)
    check_metrics()
    check_documentation()


def document(response, status=200):
    assert response.status_code == status, (response.status_code, response.content[:500])
    return json.loads(response.content)


def check_settings_of_the_api(api: Client) -> None:
    values = {"values": {"burst_max_calls": 3}}
    document(api.put("/api/v1/overrides", values, content_type="application/json"))
    policy = document(api.get("/api/v1/policy"))["policy"]
    assert policy["burst_max_calls"] == {"value": 3, "source": "project"}
    assert policy["burst_enabled"]["value"] is True, "the detector is on in `standard`"
    wrong = {"values": {"burst_max_calls": 1}}
    assert api.put("/api/v1/overrides", wrong, content_type="application/json").status_code == 422


def check_the_guard(api: Client) -> None:
    verdicts = []
    for number in range(3):
        call = {"call_id": f"c{number}", "tool": "fetch", "arguments": {"page": f"{number} {number * 7}"}}
        body = {"session": "s-1", "calls": [call]}
        answer = document(api.post("/api/v1/guard", body, content_type="application/json"))
        verdicts += answer["verdicts"]
    last = verdicts[-1]
    assert last["decision"] == "warn", last
    assert (last["finding"]["kind"], last["finding"]["count"], last["finding"]["limit"]) == ("burst", 3, 3)
    assert "'fetch' was called 3 times within one second" in last["message"]
    assert "Slow down" in last["message"]
    assert last["policy"]["burst_max_calls"]["value"] == 3


def check_the_rest_of_the_api(api: Client) -> None:
    schema = document(api.get("/api/v1/openapi.json"))
    assert "burst" in json.dumps(schema["components"]["schemas"]["FindingSchema"])
    assert "burst" in json.dumps(schema["paths"]["/api/v1/incidents"]["get"])
    assert [row["kind"] for row in document(api.get("/api/v1/incidents?kind=burst"))["items"]] == ["burst"]
    assert document(api.get("/api/v1/incidents?kind=repeat"))["items"] == []
    rows = document(api.get("/api/v1/statistics?by=kind"))["items"]
    assert [row["key"] for row in rows] == ["burst"]
    silence = {"kinds": ["burst"], "reason": "planned", "ends_at": datetime.now(UTC) + timedelta(hours=1)}
    document(api.post("/api/v1/alerts/silences", silence, content_type="application/json"), 201)


def check_the_screens(screens: Client, project: Project) -> None:
    def text(name: str, *arguments: str, query: str = "") -> str:
        response = screens.get(reverse(name, args=arguments) + query, follow=True)
        assert response.status_code == 200, (name, response.status_code)
        return response.content.decode()

    incident = Incident.objects.get(project=project)
    page = text("console:incident", project.slug, incident.public_id)
    assert "Burst of calls: fetch" in page
    words = " ".join(re.sub("<[^>]+>", "", page).split())
    assert "fetch was called 3 times within one second" in words
    assert "counted, limit 3 calls per second" in words
    assert "Limit for bursts" in words
    assert "Bursts" in text("console:incidents", project.slug, query="?q=detector:burst")
    AlertDestination.objects.create(
        project=project, name="on call", kind="webhook"
    )  # without one there is no form
    assert "Bursts" in text("console:new_alert_route", project.slug)
    assert "Bursts" in text("console:alerts", project.slug, query="?tab=silences")
    policies = text("console:policy_settings", project.slug)
    assert "Limit for bursts" in policies
    assert "set_burst_max_calls" in policies
    assert "set_burst_max_calls" in text("console:session", project.slug, "s-1", query="?tab=settings")
    assert "set_burst_max_calls" in text("admin:detection_override_add")


def check_metrics() -> None:
    metrics = Client().get("/metrics", REMOTE_ADDR="127.0.0.1").content.decode()
    assert 'kind="burst"' in metrics


def check_documentation() -> None:
    spec = importlib.util.spec_from_file_location("generate", Path("docs/generate.py"))
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = {path.name: text for path, text in generate.pages().items()}
    assert "## `burst`: Many calls of one tool within a second" in pages["detectors.md"]
    assert "`burst_max_calls`" in pages["settings.md"]
    assert pages["burst.svg"].startswith("<svg")


setup_test_environment()
with transaction.atomic():
    check()
    transaction.set_rollback(True)
