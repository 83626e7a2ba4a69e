"""What people do at the edges of the console, from its screens alone: connect, get messages, invite, erase."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from playwright.sync_api import expect

from detection.engine.scopes import PROJECT
from detection.models import AlertRoute, ApiKey, Approval, Invitation, Session
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.retention import erasure
from detection.services.search import indexing
from tests.browser.pages import SIZES, Walk, complaints
from tests.console.scenes import ask
from tests.support.http_receiver import receiving
from tests.support.projects import make_member, make_project


@pytest.fixture
def project(transactional_db, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    project = make_project("support")
    make_member(project, username="ana")
    return project


@pytest.fixture
def walk(page, site, project):
    return Walk(page, site)


def posted(url, document, key=""):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def test_an_agent_is_connected_and_its_first_blocked_call_appears(walk, page, site):
    walk.begin()
    walk.click("link", "Set up")
    walk.click("link", "Claude Code")
    walk.click("button", "Get the command")
    command = page.locator("#connect-command").inner_text()
    walk.click("button", "Copy")
    assert walk.clicks == 4
    expect(page.get_by_text("Waiting for the command")).to_be_visible()
    assert complaints(page) == []
    code = command.rpartition(" ")[2]
    made = posted(f"{site.url}/api/v1/install-codes/exchange", {"code": code, "machine": "build-07"})
    expect(page.get_by_text("Installed on build-07")).to_be_visible()
    for number in range(4):
        body = {
            "hook_event_name": "PreToolUse", "session_id": "first-run", "tool_name": "Read",
            "tool_input": {"path": "config.yml"}, "tool_use_id": f"c{number}",
        }  # fmt: skip
        posted(f"{site.url}/api/v1/hooks/claude-code", body, made["key"])
    expect(page.get_by_text("Blocked the 4th identical call")).to_be_visible()
    assert ApiKey.objects.get().scopes == ["guard"]
    assert complaints(page) == []
    assert walk.noise == []


def hold(project, *sessions):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    for session in sessions:
        for number in range(4):
            ask(project, session, number, tool="run_sql", agent="finance")


def test_held_calls_are_answered_from_another_page(walk, page, project):
    hold(project, "s-1", "s-2", "s-3")
    walk.begin("settings")
    walk.click("button", "Answer")
    walk.click("button", "Skip all 3")
    expect(page.locator(".toast", has_text="You skipped 3 held calls.")).to_be_visible()
    assert {*Approval.objects.values_list("state", flat=True)} == {"decided"}
    assert walk.clicks == 2
    assert walk.noise == []


def test_held_calls_are_answered_on_a_phone(walk, page, project):
    page.set_viewport_size(SIZES["narrow"])
    hold(project, "s-1", "s-2", "s-3")
    walk.begin("sessions")
    expect(page.locator("#attention")).to_contain_text("3 held")
    walk.click("button", "Answer")
    walk.click("button", "Skip all 3")
    expect(page.locator(".toast", has_text="You skipped 3 held calls.")).to_be_visible()
    page.goto(f"{walk.site.url}/p/support/approvals")
    page.wait_for_url("**/p/support/now")


def test_a_viewer_is_invited(walk, page):
    walk.begin()
    walk.click("link", "Settings")
    walk.click("link", "Members")
    page.get_by_label("For optional").fill("ben@example.org")
    page.get_by_role("radio", name="Viewer").check()
    walk.click("button", "Invite")
    expect(page.locator("#new-link")).to_contain_text("/invitations/lgi_")
    assert walk.clicks == 3
    assert Invitation.objects.get().role == "viewer"
    assert complaints(page) == []


def test_a_session_is_found_by_a_text_inside_an_argument(walk, page, project):
    for number in range(3):
        ask(project, "found-me", number, tool="search_web", agent="triage")
    indexing.index_texts()
    walk.begin()
    page.keyboard.press("Control+k")
    page.keyboard.type("reset")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?**")
    walk.click("link", "found-me")
    page.wait_for_url("**/sessions/found-me?**")
    assert "call=" in page.url
    assert walk.clicks == 1


def test_the_data_of_a_customer_is_erased(walk, page, project):
    ask(project, "of-a-customer", 0, tool="search_web", agent="triage")
    indexing.index_texts()
    walk.begin()
    walk.click("link", "Settings")
    walk.click("link", "Erasure")
    page.get_by_label("Name, or words").fill("reset")
    walk.click("button", "Find")
    expect(page.get_by_label("of-a-customer")).to_be_checked()
    page.get_by_label("Number of sessions to erase").fill("1")
    assert complaints(page) == []
    walk.click("button", "Erase")
    assert walk.clicks == 4
    expect(page.locator(".toast")).to_contain_text("requested")
    erasure.run_waiting(lambda: False)
    assert not Session.objects.exists()
    assert walk.noise == []


def test_the_first_steps_stay_in_the_navigation_until_they_are_hidden(walk, page):
    walk.begin("connect")
    expect(page.get_by_role("link", name="Set up 0 of 6")).to_be_visible()
    walk.click("button", "$5")
    expect(page.locator(".toast")).to_contain_text("$5")
    expect(page.get_by_text("Set up 1 of 6").first).to_be_attached()
    walk.click("button", "Hide from the navigation")
    expect(page.get_by_role("link", name="Set up")).to_have_count(0)
    assert walk.noise == []


def test_an_alert_route_is_made_with_a_test(walk, page):
    with receiving() as receiver:
        walk.begin()
        walk.click("link", "Set up")
        walk.click("link", "Webhook")
        page.get_by_label("Address").fill(receiver.url)
        walk.click("button", "Send a test")
        expect(page.get_by_text("delivered in")).to_be_visible()
        expect(page.locator("#new-secret")).to_have_text(re.compile("^whsec_"))
        assert complaints(page) == []
        walk.click("button", "Save route")
        assert walk.clicks == 4
        expect(page.get_by_text("Route saved.")).to_be_visible()
    assert AlertRoute.objects.get().destinations.get().name == "Webhook"
    assert complaints(page) == []
    assert walk.noise == []
