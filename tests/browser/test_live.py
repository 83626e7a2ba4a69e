"""The live list in a real browser, on a real socket and a real broker."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone
from playwright.sync_api import expect

from detection.models import Loop, Session
from detection.services.audit import SYSTEM
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.events.event_records import EventRecord
from detection.services.incidents import loop_triage
from detection.services.ingestion.ingest import ingest
from detection.services.retention import retention
from detection.services.sessions import actions as service
from detection.services.sessions.evaluation import evaluate
from tests.browser.pages import SIZES, complaints, sign_in
from tests.console.scenes import ask, loop, principal
from tests.support.projects import make_member, make_project


@pytest.fixture
def project(transactional_db):
    project = make_project("support")
    make_member(project, username="ana")
    return project


@pytest.fixture
def live(site, project, page):
    """The open live list of a signed-in member, its socket up."""
    ask(project, "first", 1)
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/p/support/sessions")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    return page


def names(page):
    return page.locator("#live-rows tr").evaluate_all("rows => rows.map(row => row.dataset.session)")


def test_a_stopped_loop_shows_on_its_row(live, project):
    loop(project, "first", calls=8)
    expect(live.locator('tr[data-session="first"] .state')).to_have_text("Stopped", timeout=3000)
    expect(live.locator('tr[data-session="first"]')).to_contain_text("by detection")
    ask(project, "first", 8, tool="read_file")
    expect(live.locator('tr[data-session="first"] .state')).to_have_text("Looping now", timeout=3000)


@pytest.mark.parametrize("path", ["live", "session", "settings"])
def test_the_line_of_a_containment_comes_and_goes_on_open_pages_and_lifts_it(live, site, project, path):
    address = {"live": "sessions", "session": "session?name=first", "settings": "settings"}[path]
    live.goto(f"{site.url}/p/support/{address}")
    line = live.locator("#contained")
    for act in (0, 1):
        found = containments.contain(project.pk, Wanted("agent", "triage", "block"), SYSTEM)
        expect(line).to_contain_text("everything of the agent triage", timeout=4000)
        if act:
            line.get_by_role("button", name="Undo").click()
            expect(live.locator("#content")).to_contain_text("Nothing is stopped, held or blocked.")
        else:
            containments.lift(project.pk, found.public_id, SYSTEM)
            expect(line).not_to_contain_text("Contained", timeout=4000)


def test_sessions_appear_change_in_their_places_and_log_no_error(live, project):
    noise = []
    live.on("console", lambda one: noise.append(one.text) if one.type in ("error", "warning") else None)
    live.on("pageerror", lambda error: noise.append(str(error)))
    live.reload()
    expect(live.locator("#live-state")).to_have_attribute("data-state", "live")
    ask(project, "second", 1)
    expect(live.locator('tr[data-session="second"]')).to_be_visible()
    call = EventRecord(type="call", session="reported", call_id="c1", tool="read_file", arguments="{}")
    ingest(principal(project), [call])
    evaluate(Session.objects.get(external_id="reported").key)
    expect(live.locator('tr[data-session="reported"] .c-calls')).to_have_text("1")
    before = names(live)
    ask(project, before[-1], 2)
    expect(live.locator(f'tr[data-session="{before[-1]}"]')).to_contain_text("2")
    assert names(live) == before
    assert noise == []


def test_new_rows_wait_while_the_pointer_is_in_the_table_and_while_the_page_is_paused(live, project):
    live.locator('tr[data-session="first"]').hover()
    for name in ("second", "third"):
        ask(project, name, 1)
    bar = live.locator("#live-new")
    expect(bar).to_have_text("2 newer \u2013 press . to show")
    assert names(live) == ["first"]
    live.keyboard.press(".")
    expect(bar).to_be_hidden()
    assert set(names(live)) == {"first", "second", "third"}

    live.mouse.move(0, 0)
    live.keyboard.press("p")
    expect(live.locator("#live-state")).to_have_attribute("data-state", "paused")
    ask(project, "fourth", 1)
    live.wait_for_timeout(800)
    assert set(names(live)) == {"first", "second", "third"}
    live.keyboard.press("p")
    expect(live.locator('tr[data-session="fourth"]')).to_be_visible()


def test_of_several_new_rows_one_enters_and_the_rest_waits_until_rows_may_move_again(live, project):
    for number in range(14):
        ask(project, f"older-{number}", 1)
    live.reload()
    expect(live.locator("#live-state")).to_have_attribute("data-state", "live")
    for name in ("second", "third"):
        ask(project, name, 1)
    expect(live.locator("#live-new")).to_have_text("1 newer \u2013 press . to show")
    expect(live.locator("#live-new")).to_be_hidden(timeout=10_000)
    assert names(live)[:3] == ["third", "second", "older-13"]


def test_on_a_phone_new_rows_wait_for_a_tap_also_when_the_list_is_full(browser, project, site):
    for number in range(49):
        ask(project, f"older-{number}", 1)
    Session.objects.update(last_event_at=timezone.now() - timedelta(minutes=1))
    for name in ("first", "second"):
        ask(project, name, 1)
    phone = browser.new_context(viewport=SIZES["narrow"], has_touch=True, is_mobile=True).new_page()
    sign_in(phone, site, get_user_model().objects.get(username="ana"))
    phone.goto(f"{site.url}/p/support/sessions")
    expect(phone.locator("#live-state")).to_have_attribute("data-state", "live")
    phone.locator('tr[data-session="first"]').tap(position={"x": 200, "y": 50})
    expect(phone).to_have_url(f"{site.url}/p/support/sessions/first")
    phone.go_back()
    expect(phone.locator("#live-state")).to_have_attribute("data-state", "live")
    ask(project, "third", 1)
    expect(phone.locator("#live-new")).to_have_text("Show 1 newer")
    phone.locator("#live-new").tap()
    assert names(phone)[:4] == ["third", "second", "first", "older-48"]
    phone.locator('tr[data-session="second"] td.check').tap(position={"x": 3, "y": 3})
    expect(phone.locator("[data-bulk-count]")).to_have_text("1 selected")
    phone.locator("th.check").tap()
    expect(phone.locator("[data-bulk-count]")).to_have_text("50 selected")
    assert phone.locator("[data-select-all]").is_checked()
    assert complaints(phone) == []
    phone.context.close()


def test_a_session_that_no_longer_fits_the_filter_leaves_and_is_not_counted_as_selected(live, project, site):
    live.goto(f"{site.url}/p/support/sessions?q=is:running")
    expect(live.locator("#live-state")).to_have_attribute("data-state", "live")
    live.locator('tr[data-session="first"] input').check()
    expect(live.locator("[data-bulk-count]")).to_have_text("1 selected")
    live.mouse.move(0, 0)
    live.evaluate("document.activeElement.blur()")
    service.stop(project.pk, "first", SYSTEM)
    expect(live.locator("#live-rows tr")).to_have_count(0)
    expect(live.locator("[data-bulk]")).to_be_hidden()
    expect(live.locator("#live-empty")).to_be_visible()


def test_a_session_that_became_idle_shows_so_without_a_change(live, project):
    Session.objects.update(last_event_at=timezone.now() - timedelta(minutes=11))
    live.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    expect(live.locator('tr[data-session="first"] .state')).to_have_text("Idle")


def test_an_abandoned_loop_leaves_the_open_page(live, project, site):
    observed = [
        EventRecord(type="call", session="first", call_id=f"seen-{n}", tool="read_file", arguments="{}")
        for n in range(9)
    ]
    ingest(principal(project), observed)
    evaluate(Session.objects.get().key)
    live.goto(f"{site.url}/p/support/sessions?q=is:looping")
    row = live.locator('tr[data-session="first"]')
    expect(row.locator(".state")).to_have_text("Looping now")
    expect(row).to_contain_text("would have been stopped")
    row.hover()
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    expect(row).to_have_class("is-gone")
    live.mouse.move(0, 0)
    expect(row).to_have_count(0)


def test_without_a_socket_the_page_polls(live, project):
    live.route_web_socket("**/ws/**", lambda socket: socket.close())
    live.reload()
    ask(project, "second", 1)
    expect(live.locator("#live-state")).to_have_attribute("data-state", "polling")
    expect(live.locator('tr[data-session="second"]')).to_be_visible(timeout=9000)


@pytest.mark.promise("REL-21")
def test_after_a_lost_connection_the_page_catches_up(live, project):
    live.context.set_offline(True)
    for name in ("second", "third"):
        ask(project, name, 1)
    service.stop(project.pk, "first", SYSTEM, "enough")
    live.context.set_offline(False)
    expect(live.locator("#live-rows tr")).to_have_count(3, timeout=10_000)
    expect(live.locator('tr[data-session="first"] .state')).to_have_text("Stopping", timeout=10_000)


def test_an_open_session_page_follows_its_session(live, project, site):
    live.goto(f"{site.url}/p/support/sessions/first")
    live.wait_for_timeout(500)
    ask(project, "first", 2)
    expect(live.locator("#session-line b").first).to_have_text("2")


def test_an_open_loop_page_follows_its_incidents_and_leaves_what_is_typed(live, project, site):
    loop(project, "one", calls=4)
    row = Loop.objects.get()
    loop_triage.done(project.pk, row.public_id, SYSTEM)
    live.goto(f"{site.url}/p/support/loops/{row.public_id}")
    expect(live.locator("#loop-said")).to_contain_text("Done")
    live.get_by_label("Comment").fill("half a sentence")
    live.wait_for_timeout(500)
    loop(project, "two", calls=4)
    expect(live.locator("#loop-said")).to_contain_text("1 looping now", timeout=5000)
    expect(live.locator("#loop-facts")).to_contain_text("2")
    expect(live.locator("#loop-banners")).to_contain_text("1 run is open again")
    expect(live.locator("#done-button")).to_be_visible()
    expect(live.get_by_label("Comment")).to_have_value("half a sentence")


def test_signing_out_elsewhere_leads_the_page_to_the_sign_in_page(live, project):
    cookie = next(one for one in live.context.cookies() if one["name"] == "loopguard")
    import_module(settings.SESSION_ENGINE).SessionStore(cookie["value"]).delete()
    expect(live.get_by_role("button", name="Sign in")).to_be_visible()


def test_scripts_write_times_as_the_server_does(site, page):
    cases = json.loads(Path(__file__).with_name("durations.json").read_text())
    page.goto(f"{site.url}/sign-in")
    found = page.evaluate(
        """async cases => {
            const words = await import("/static/js/durations.js");
            const write = ([name, rows]) => [name, rows.map(([seconds]) => [seconds, words[name](seconds)])];
            return Object.fromEntries(Object.entries(cases).map(write));
        }""",
        cases,
    )
    assert found == cases
