"""The screens of alerts and statistics in a real browser: charts under the strict policy, accessible pages."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from playwright.sync_api import expect

from detection.models import CallCount, CountingCursor
from detection.services.alerting import delivery, notifications, silences
from detection.services.audit import Actor
from tests.browser.pages import complaints, noise_of, sign_in
from tests.support.alerts import make_incident, make_route, make_webhook, note_event
from tests.support.http_receiver import Reply, receiving
from tests.support.projects import make_member, make_project

ANA = Actor("ana")
SHOTS = os.environ.get("LOOPGUARD_SCREENSHOTS")
TABS = ("routes", "sent", "silences")


@pytest.fixture
def project(transactional_db, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    project = make_project("support")
    make_member(project, username="ana")
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    for hours in range(160):
        busy = 40 + (hours * 37) % 90
        CallCount.objects.create(
            project=project, hour=now - timedelta(hours=hours), backend="openai", model="gpt-5", tool="search_web",
            checks=busy, warned=busy // 12, blocked=busy // 20, cost_usd=busy / 100,
        )  # fmt: skip
    CountingCursor.objects.create(pk=1, counted_at=timezone.now())
    for number, kind in enumerate(("repeat", "cycle", "repeat", "stagnation", "outcome")):
        evidence = {"reactions": {"warn": {"changed": number, "went_on": 1}, "block": {"changed": 2}}}
        make_incident(
            project, kind=kind, calls_digest=str(number), session_name=f"s-{number}", recovered=number % 2 == 0,
            label="true_loop" if number < 3 else "false_alarm", evidence=evidence, cost_usd=number,
        )  # fmt: skip
    with receiving() as receiver:
        receiver.replies = [Reply(500, body=b"no")]
        hook = make_webhook(project, receiver, "on-call hook")
        make_route(project, hook, name="everything", tools=["search_*"], quiet_from=None)
        notifications.send_test(project.pk, hook.public_id, ANA)
        ends_at = timezone.now() + timedelta(hours=3)
        note_event(make_incident(project, calls_digest="told"), "opened")
        delivery.run(5)
        silences.create_silence(project.pk, ANA, reason="index rebuild", ends_at=ends_at, tools=["search_*"])
        note_event(make_incident(project, calls_digest="hidden"), "opened")
        delivery.run(5)
    return project


@pytest.fixture
def page(page, site, project):
    page.noise = noise_of(page)
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    return page


def look(page, name):
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def test_alerts_have_no_serious_accessibility_problems_on_any_tab(page, site):
    for number, path in enumerate((*(f"alerts?tab={tab}" for tab in TABS), "alerts/routes/new")):
        page.goto(f"{site.url}/p/support/{path}")
        expect(page.get_by_role("heading").first).to_be_visible()
        look(page, path.replace("/", "-"))
        assert complaints(page, number, count=1) == [], path
    assert page.noise == []


def test_a_message_opens_from_the_log_and_pages_fit_a_phone(page, site):
    page.goto(f"{site.url}/p/support/alerts?tab=sent")
    page.get_by_role("link", name="Loop detected: search_web").click()
    expect(page.get_by_role("heading", name="Alerts", exact=True)).to_be_visible()
    look(page, "alerts-message")
    assert complaints(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("alerts", "alerts?tab=sent", "insights"):
        page.goto(f"{site.url}/p/support/{path}")
        look(page, f"phone-{path.partition('?')[2] or path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_the_preview_of_a_route_is_that_of_the_form_also_of_a_restored_one(page, site):
    page.goto(f"{site.url}/p/support/alerts/routes/new")
    preview, agents = page.locator(".preview"), page.get_by_label("for agents")
    expect(preview).to_contain_text("1 more was silenced")
    expect(preview.locator(".updating")).to_be_hidden()
    page.route("**/alerts/routes/new", lambda route: (page.wait_for_timeout(700), route.continue_()))
    agents.fill("nobody")
    expect(preview.locator(".updating")).to_be_visible()
    expect(preview).not_to_contain_text("silenced")
    expect(preview.locator(".updating")).to_be_hidden()
    page.unroute("**/alerts/routes/new")
    page.reload()
    expect(agents).to_have_value("nobody")
    expect(preview).not_to_contain_text("silenced")
