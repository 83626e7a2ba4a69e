"""The report of a week: sent on Mondays to the routes that ask for it, once, with a link that needs no account."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from detection.models import AlertEvent, AuditEntry, Incident, Notification, Report
from detection.tasks.evaluation import weekly_reports
from tests.console.scenes import loop, make_world
from tests.support.alerts import come_due, make_route, make_webhook, send_all
from tests.support.http_receiver import Reply, receiving
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db(transaction=True)
MONDAY = datetime(2026, 11, 30, 6, 5, tzinfo=UTC)


@pytest.fixture
def world(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    return make_world()


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


@pytest.fixture
def at(monkeypatch):
    """Let it be another time for what makes reports."""

    def travel(moment):
        monkeypatch.setattr("detection.services.projects.reports.timezone.now", lambda: moment)

    return travel


@pytest.fixture
def monday(world, at):
    """A Monday after a week with a loop of $3."""
    last = timezone.now()
    monday = (last + timedelta(days=7 - last.weekday())).replace(hour=6, minute=5)
    loop(
        world.project,
        "paid",
        tool="search_paid",
        agent="one",
        calls=6,
        cost_usd=0.5,
        arguments='{"secret": "hunter2"}',
    )
    week = monday - timedelta(days=2)
    Incident.objects.update(opened_at=week, last_seen_at=week)
    at(monday)
    return monday


def test_a_route_that_asks_for_it_gets_one_report_with_a_link_that_opens(world, monday, receiver):
    make_route(
        world.project, make_webhook(world.project, receiver), event_types=["report.weekly"], tools=["other"]
    )
    weekly_reports()
    weekly_reports()
    assert send_all() == 1
    body = json.loads(receiver.requests[0][2])
    data = body["data"]
    assert (body["type"], data["severity"], data["event_count"]) == ("report.weekly", "info", 1)
    assert data["title"].startswith("Weekly report: 7 days to ")
    assert data["text"].startswith(
        "Loops cost $3.00 in these 7 days. 2 began. 3 calls in loops were blocked."
    )
    report = data["events"][0]["report"]
    assert (report["loops"], report["loop_cost_usd"], report["loop_cost_usd_before"]) == (2, 3.0, 0)
    link = re.search(r"https?://[^/]+(/reports/\S+)", data["text"])[1]
    assert report["url"].endswith(link)
    page = Client().get(link)
    assert page.status_code == 200
    assert "search_paid" in page.content.decode()
    assert "hunter2" not in page.content.decode() + json.dumps(body)
    row = Report.objects.get()
    assert row.expires_at == monday + timedelta(days=30)


def test_nothing_stored_or_shown_opens_the_report(world, monday, receiver):
    make_route(world.project, make_webhook(world.project, receiver), event_types=["report.weekly"])
    weekly_reports()
    send_all()
    row, report = Notification.objects.get(), Report.objects.get()
    sent = json.loads(receiver.requests[0][2])["data"]["events"][0]["report"]["url"]
    token = sent.rpartition("/")[2]
    assert token.startswith("lgr_")
    stored = [
        row.payload,
        json.dumps(AlertEvent.objects.get(type="report.weekly").facts),
        str(report.__dict__),
    ]
    shown = world.client.get(f"{world.base}/alerts/notifications/{row.public_id}")
    assert shown.status_code == 200
    for text in (*stored, shown.content.decode(), str([*AuditEntry.objects.values()])):
        assert token not in text
    assert f"/insights/reports#{report.public_id}" in row.payload
    assert f'id="{report.public_id}"' in world.client.get(f"{world.base}/insights/reports").content.decode()


def test_a_repeated_attempt_sends_the_same_link(world, monday, receiver):
    receiver.replies = [Reply(500)]
    make_route(world.project, make_webhook(world.project, receiver), event_types=["report.weekly"])
    weekly_reports()
    send_all()
    come_due()
    send_all()
    first, second = (body for _, _, body in receiver.requests)
    assert first == second


def test_no_report_without_a_route_that_names_it_and_on_no_other_day(world, monday, receiver, at):
    target = make_webhook(world.project, receiver)
    make_route(world.project, target, event_types=[])
    weekly_reports()
    assert (Report.objects.count(), AlertEvent.objects.filter(type="report.weekly").count()) == (0, 0)
    make_route(world.project, target, name="off", event_types=["report.weekly"], is_enabled=False)
    weekly_reports()
    assert not Report.objects.exists()
    make_route(world.project, target, name="on", event_types=["report.weekly"], position=1)
    at(monday - timedelta(hours=7))
    weekly_reports()
    at(monday + timedelta(days=1))
    weekly_reports()
    assert not Report.objects.exists()
    at(monday + timedelta(hours=17))
    weekly_reports()
    assert Report.objects.get().project == world.project
    send_all()
    assert [
        *Notification.objects.filter(items__event__type="report.weekly").values_list("route_name", flat=True)
    ] == ["on"]


def test_each_project_has_its_own_and_an_archived_one_none(world, monday, receiver):
    other, gone = make_project("other"), make_project("gone")
    for project in (world.project, other, gone):
        make_route(project, make_webhook(project, receiver), event_types=["report.weekly"])
    gone.archived_at = timezone.now()
    gone.save()
    weekly_reports()
    send_all()
    told = {
        json.loads(body)["data"]["project"]: json.loads(body)["data"]["text"]
        for _, _, body in receiver.requests
    }
    assert {*told} == {world.project.slug, "other"}
    assert told["other"].startswith("0 loops began in these 7 days; no cost of them is known.")


def test_the_form_says_what_it_would_send_and_the_list_who_gets_it(world, monday, receiver):
    target = make_webhook(world.project, receiver)
    reports = world.client.get(f"{world.base}/insights/reports").content.decode()
    assert "Not sent to anyone on Mondays" in reports
    form_url = f"{world.base}/alerts/routes/new?when=report"
    assert form_url in reports
    form = world.client.get(form_url).content.decode()
    assert re.search(r'<option value="report" selected>', form)
    assert "Loops cost $3.00 in these 7 days." in form
    assert not Report.objects.exists()
    saved = world.client.post(
        f"{world.base}/alerts/routes/new",
        {
            "when": "report",
            "at_least": "any",
            "destinations": target.public_id,
            "group_wait_seconds": "0",
            "is_enabled": "on",
        },
    )
    assert saved.status_code == 302, saved.content.decode()
    assert "Sent every Monday through" in world.client.get(f"{world.base}/insights/reports").content.decode()
