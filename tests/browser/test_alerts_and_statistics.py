"""The screens of alerts and statistics in a real browser: charts drawn under the strict policy, nothing that axe calls serious."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from detection.models import CallCount, CountingCursor
from detection.services.alerting import delivery, notifications, outbox, silences
from detection.services.audit import Actor
from tests.support.alerts import make_incident, make_route, make_webhook
from tests.support.http_receiver import Reply, receiving
from tests.support.projects import make_member, make_project

PASSWORD = "right horse"
ANA = Actor("ana")
AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
SHOTS = os.environ.get("LOOPGUARD_SCREENSHOTS")
TABS = ("destinations", "routes", "silences", "deliveries")


@pytest.fixture
def project(transactional_db, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    project = make_project("support")
    make_member(project, username="ana", password=PASSWORD)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    for hours in range(160):
        busy = 40 + (hours * 37) % 90
        CallCount.objects.create(
            project=project, hour=now - timedelta(hours=hours), backend="openai", model="gpt-5", tool="search_web",
            checks=busy, warned=busy // 12, blocked=busy // 20, cost_usd=busy / 100,
        )  # fmt: skip
    CountingCursor.objects.create(pk=1, counted_at=timezone.now())
    for number, kind in enumerate(("repeat", "cycle", "repeat", "stagnation", "outcome")):
        evidence = {"reactions": {"warn": {"recovered": number, "went_on": 1}, "block": {"recovered": 2}}}
        make_incident(
            project, kind=kind, loop_id=str(number), session_name=f"s-{number}", recovered=number % 2 == 0,
            label="true_loop" if number < 3 else "false_alarm", evidence=evidence, cost_usd=number,
        )  # fmt: skip
    with receiving() as receiver:
        receiver.replies = [Reply(500, body=b"no")]
        hook = make_webhook(project, receiver, "on-call hook")
        make_route(project, hook, name="everything", tools=["search_*"], quiet_from=None)
        notifications.send_test(project.pk, hook.public_id, ANA)
        ends_at = timezone.now() + timedelta(hours=3)
        outbox.record_incident_event(make_incident(project, loop_id="told"), "opened")
        delivery.run(5)
        silences.create_silence(project.pk, ANA, reason="index rebuild", ends_at=ends_at, tools=["search_*"])
        outbox.record_incident_event(make_incident(project, loop_id="hidden"), "opened")
        delivery.run(5)
    return project


@pytest.fixture
def page(page, site, project):
    page.on(
        "console", lambda message: page.complaints.append(message.text) if message.type == "error" else None
    )
    page.complaints = []
    page.goto(f"{site.url}/sign-in?next=/p/support/alerts")
    page.get_by_label("Username").fill("ana")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    return page


def look(page, name):
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def serious(page):
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        (one["id"], one["nodes"][0]["html"][:120])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_statistics_draw_their_charts_in_both_themes(page, site, theme):
    page.emulate_media(color_scheme=theme)
    page.goto(f"{site.url}/p/support/statistics?by=tool")
    expect(page.locator(".uplot canvas")).to_have_count(2)
    look(page, f"statistics-{theme}")
    assert serious(page) == []
    page.get_by_text("Show as a table").click()
    expect(page.get_by_role("region", name="Numbers by hour").get_by_role("row")).not_to_have_count(0)
    assert page.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_alerts_have_nothing_serious_on_any_tab(page, site, theme):
    page.emulate_media(color_scheme=theme)
    for tab in TABS:
        page.goto(f"{site.url}/p/support/alerts?tab={tab}")
        expect(page.get_by_role("heading", name="Alerts")).to_be_visible()
        look(page, f"alerts-{tab}-{theme}")
        assert serious(page) == [], tab
    page.goto(f"{site.url}/p/support/alerts/routes/new")
    look(page, f"alerts-route-{theme}")
    assert serious(page) == []
    assert page.complaints == []


def test_a_message_is_opened_from_the_log_and_the_page_fits_a_phone(page, site):
    page.goto(f"{site.url}/p/support/alerts?tab=deliveries")
    page.get_by_role("link", name="Loop detected: search_web").click()
    expect(page.get_by_role("heading", name="Alerts", exact=True)).to_be_visible()
    look(page, "alerts-message")
    assert serious(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("alerts", "alerts?tab=deliveries", "statistics"):
        page.goto(f"{site.url}/p/support/{path}")
        look(page, f"phone-{path.partition('?')[2] or path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
