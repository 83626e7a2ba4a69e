"""What people do with loops, from the console's screens alone: see why it fired, accept it for good, close many, stop."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from detection.models import Incident, Loop, Session, ToolOverride
from detection.services.incidents import bulk_actions
from tests.browser.pages import Walk, complaints
from tests.console.scenes import ask, loop
from tests.support.projects import make_member, make_project


@pytest.fixture
def project(transactional_db):
    project = make_project("support")
    make_member(project, username="ana")
    return project


@pytest.fixture
def walk(page, site, project):
    return Walk(page, site)


def test_why_did_it_fire(walk, page, project):
    for number in range(3):
        loop(project, f"desk-{number}", tool="get_order", calls=9, model="gpt-5-mini", cost_usd=0.25)
    walk.begin()
    walk.click("link", "Loops")
    walk.click("link", "Repeated call: get_order")
    assert walk.clicks <= 4
    expect(page.locator("#loop-said")).to_contain_text("get_order is called again with identical arguments")
    expect(page.locator("#loop-said")).to_contain_text("3 runs since")
    expect(page.get_by_role("heading", name="Evidence")).to_be_visible()
    evidence = page.locator("table.evidence tbody")
    expect(evidence).to_contain_text("identical")
    expect(evidence).to_contain_text("stopped")
    expect(page.get_by_role("heading", name="Settings that decided")).to_be_visible()
    expect(page.get_by_role("link", name="Change here: Limit for identical calls")).to_be_visible()
    assert complaints(page) == []
    first = page.url
    page.keyboard.press("]")
    page.wait_for_url("**?run=inc_*")
    page.keyboard.press("]")
    page.keyboard.press("[")
    assert page.url != first
    assert walk.noise == []


def test_not_a_loop_and_never_again(walk, page, project):
    run = loop(project, "poller", tool="get_job", calls=4)
    walk.begin(f"loops/{run.loop.public_id}")
    walk.click("link", "This is fine…")
    expect(page.get_by_role("radio", name="These calls")).to_be_checked()
    expect(page.get_by_text("No other loop of the last 7 days would be lost").first).to_be_visible()
    assert complaints(page) == []
    walk.click("button", "This is fine", exact=True)
    assert walk.clicks == 2
    expect(page.locator(".toast")).to_contain_text("1 loop marked as fine.")
    expect(page.locator("#loop-said")).to_contain_text("Fine")
    for number in range(9):
        ask(project, "poller-2", number, tool="get_job")
    assert not Incident.objects.filter(session_name="poller-2").exists()
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text("1 loop restored.")
    assert not ToolOverride.objects.filter(project=project).exists()
    assert Incident.objects.get().label == ""
    assert walk.noise == []


def test_forty_open_ones_in_bulk(walk, page, project, monkeypatch):
    monkeypatch.setattr(bulk_actions, "IN_REQUEST_SECONDS", 60.0)
    for number in range(40):
        loop(project, f"s-{number}", tool=f"tool_{number:02}", calls=4)
    walk.begin()
    walk.click("link", "Loops")
    page.locator("[data-select-all]").check()
    walk.clicks += 1
    expect(page.locator("[data-bulk-count]")).to_have_text("40 selected")
    walk.click("button", "Done")
    assert walk.clicks <= 4
    expect(page.locator(".toast")).to_contain_text("40 loops closed.", timeout=60_000)
    expect(page.get_by_text("No open loops")).to_be_visible()
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".toast")).to_contain_text("40 loops restored.", timeout=60_000)
    assert Loop.objects.filter(done_at=None).count() == 40
    page.goto(f"{walk.site.url}/p/support/loops")
    page.locator("[data-select-all]").check()
    walk.click("button", "This is fine…")
    expect(page.get_by_role("heading", name="40 loops: this is fine for…")).to_be_visible()
    assert complaints(page) == []
    walk.click("button", "This is fine", exact=True)
    expect(page.locator(".toast")).to_contain_text("40 loops marked as fine.", timeout=60_000)
    assert ToolOverride.objects.filter(project=project).count() == 40
    assert walk.noise == []


def test_what_is_stuck_now_is_stopped(walk, page, project):
    loop(project, "burning", tool="get_order", calls=4)
    walk.begin()
    expect(page.get_by_text("1 session is looping now")).to_be_visible()
    walk.click("button", "Stop session")
    assert walk.clicks == 1
    expect(page.locator("#now")).to_contain_text("Stopping")
    ask(project, "burning", 9, tool="get_order")
    expect(page.locator("#now")).to_contain_text("Stopped")
    assert complaints(page) == []
    assert walk.noise == []


def test_a_loop_is_stopped_from_its_page(walk, page, project):
    run = loop(project, "burning", tool="get_order", calls=4)
    walk.begin(f"loops/{run.loop.public_id}")
    expect(page.locator("#loop-said")).to_contain_text("1 looping now")
    expect(page.get_by_text("It stops before its next call.")).to_be_visible()
    walk.click("button", "Stop session")
    expect(page.locator(".toast")).to_contain_text("burning stops before its next call.")
    expect(page.locator("#loop-runs .state")).to_contain_text("Stopping")
    assert Session.objects.get(external_id="burning").stopped_by_kind == "person"
    ask(project, "burning", 9, tool="get_order")
    page.reload()
    expect(page.locator("#loop-runs .state")).to_contain_text("Stopped")
    assert walk.noise == []


def test_every_run_is_in_the_history_and_leads_to_its_loop(walk, page, project):
    run = loop(project, "older", tool="get_order", calls=4)
    loop(project, "newer", tool="get_order", calls=4)
    walk.begin()
    walk.click("link", "Loops")
    walk.click("link", "History")
    expect(page.get_by_role("heading", name="History of runs")).to_be_visible()
    expect(page.locator("[data-rows] > tr")).to_have_count(2)
    page.locator("[data-rows] > tr").nth(1).locator("a.name").click()
    page.wait_for_url(f"**/loops/{run.loop.public_id}?run={run.public_id}")
    expect(page.locator("#evidence-title")).to_contain_text("older")
    assert complaints(page) == []
    assert walk.noise == []
