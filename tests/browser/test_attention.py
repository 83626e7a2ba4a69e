"""Held calls in the browser: announced on whatever page is open, answered where one is, gone once anyone has answered."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from django.contrib.auth import get_user_model
from playwright.sync_api import expect

from detection.engine.scopes import PROJECT
from detection.models import Approval, Membership, Role
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.policies import overrides
from tests.browser.pages import complaints, sign_in
from tests.console.scenes import ask
from tests.support.projects import make_member, make_project

NOTIFICATIONS = """
window.asked = 0;
window.Notification = class extends EventTarget {
    static permission = "default";
    static async requestPermission() {
        window.asked += 1;
        return Notification.permission = "granted";
    }
    constructor(title, options) {
        super();
        const all = JSON.parse(localStorage.getItem("shown") ?? "[]");
        localStorage.setItem("shown", JSON.stringify([...all, `${title}|${options.tag}`]));
    }
    close() {
        localStorage.setItem("closed", "yes");
    }
};
"""


@pytest.fixture
def project(transactional_db):
    project = make_project("support")
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    make_member(project, username="ana")
    return project


def hold(project, session="s-1", tool="search_web"):
    for number in range(4):
        ask(project, session, number, tool=tool, agent="triage")
    return Approval.objects.get(session__external_id=session, state="open")


@pytest.fixture
def insights_page(site, project, page):
    """An open page that has nothing to do with held calls."""
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/p/support/insights")
    expect(page.locator("#attention")).to_be_hidden()
    return page


def test_a_held_call_is_announced_and_answered_on_any_page_without_taking_the_focus(insights_page, project):
    page, focused = insights_page, insights_page.get_by_role("link", name="Settings")
    focused.focus()
    first = hold(project)
    panel = page.locator("#attention")
    expect(panel).to_be_visible()
    expect(panel).to_contain_text("1 held")
    expect(panel.locator("[data-first]")).to_contain_text(re.compile(r"first: [\d min]+ s left"))
    # The pill covers nothing: it stands in the head, behind the actions of the page.
    place = panel.bounding_box()
    assert place["y"] + place["height"] <= 52
    for action in page.locator("main > .page-head > *").all():
        box = action.bounding_box()
        assert not box or box["x"] + box["width"] <= place["x"]
    expect(panel.locator("summary")).to_contain_text(
        re.compile(r"search_web\s+[\d min]+ s left\s+triage in\s+s-1")
    )
    expect(panel).to_contain_text("If nobody decides in time, the call is skipped and the run continues.")
    expect(page.locator("#attention-announcer")).to_contain_text("Held call: search_web of triage")
    expect(focused).to_be_focused()
    expect(page).to_have_title(re.compile(r"^\(1\) Insights"))
    assert "held" in page.locator("link[rel=icon]").get_attribute("href")
    expect(page.locator("[data-held-count]")).to_have_text("1")
    second = hold(project, "s-2", tool="read_file")
    expect(panel.locator("[data-held]")).to_have_count(2)
    assert [one.get_attribute("open") for one in panel.locator("[data-held]").all()] == ["", None]
    page.keyboard.press("h")
    expect(panel.get_by_role("button", name="Skip this call")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("allowed the call once: search_web in s-1")
    first.refresh_from_db()
    assert (first.choice, first.decided_by) == ("allow_once", "ana")
    expect(panel.locator("[data-held]")).to_have_count(1)
    # Answered elsewhere: the card goes, and who answered is said.
    decisions.decide(project.pk, second.public_id, "skip", Actor("ben"))
    expect(panel).to_be_hidden()
    expect(page.locator("#attention-announcer")).to_contain_text("Skipped by ben: read_file in s-2.")
    expect(page).to_have_title(re.compile("^Insights"))
    assert page.url.endswith("/insights")


def test_the_pill_leaves_the_line_of_a_containment_its_button(insights_page, project):
    hold(project)
    containments.contain(project.pk, Wanted("agent", "other", "stop"), SYSTEM)
    insights_page.reload()
    for place in ("#attention", "#contained .banner"):
        expect(insights_page.locator(place)).to_be_visible()
    pill = insights_page.locator("#attention").bounding_box()
    line = insights_page.locator("#contained .banner").bounding_box()
    assert line["x"] + line["width"] <= pill["x"]
    insights_page.locator("#contained").get_by_role("button", name="Undo").click(timeout=5000)
    expect(insights_page.locator("#contained .banner")).to_have_count(0)


def test_a_held_call_is_announced_in_the_administration_with_a_link_to_it(site, project, page):
    ana = get_user_model().objects.get(username="ana")
    ana.is_staff = ana.is_superuser = True
    ana.save()
    sign_in(page, site, ana)
    other = make_project("travel")
    for one in (project, other):
        # The two minutes of the default end while axe looks at four views on a busy machine.
        overrides.save_override(one.pk, PROJECT, {"mode": "ask", "answer_timeout_seconds": 1_800}, SYSTEM)
    page.goto(f"{site.url}/admin/")
    bar = page.get_by_role("region", name="Held calls")
    expect(bar).to_be_hidden()
    page.wait_for_function("import('/static/js/link.js').then(({ link }) => link.isOpen)")
    held = hold(project)
    expect(bar).to_contain_text(re.compile(r"search_web of triage, \d+ min left"))
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    expect(page.locator("#held-bar-announcer")).to_contain_text("Held call: search_web of triage")
    assert complaints(page, count=4, dark_by_class=True) == []
    Membership.objects.create(project=other, user=ana, role=Role.OPERATOR)
    hold(other, "s-9")
    page.reload()
    expect(bar).to_contain_text("and 1 more")
    bar.get_by_role("link").click()
    page.wait_for_url(f"**/p/support/held#{held.public_id}")
    page.goto(f"{site.url}/admin/detection/")
    expect(bar).to_contain_text("and 1 more")
    expect(page.locator("#held-bar-announcer")).to_be_empty()  # both were spoken before
    page.goto(f"{site.url}/admin/detection/session/")
    # No project was opened by hand, so the page is one of that with the newest event: the other one.
    expect(bar).to_contain_text(
        re.compile(r"search_web of triage in project Support, \d+ min left, and 1 more")
    )
    decisions.decide(project.pk, held.public_id, "skip", Actor("ben"))
    expect(bar).to_contain_text(re.compile(r"search_web of triage, \d+ min left\s*Open"))
    decisions.decide(other.pk, Approval.objects.get(state="open").public_id, "skip", Actor("ben"))
    expect(bar).to_be_hidden()
    expect(page).not_to_have_title(re.compile(r"^\("))


def test_a_held_call_of_another_project_is_announced_and_answered_here(insights_page, project):
    page, ana = insights_page, get_user_model().objects.get(username="ana")
    other = make_project("research")
    Membership.objects.create(project=other, user=ana, role=Role.OPERATOR)
    theirs = make_project("theirs")
    for one in (other, theirs):
        overrides.save_override(one.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    ask(project, "watched", 1)
    # The page of a session filters its hints.
    page.goto(page.url.replace("/insights", "/sessions/watched"))
    page.wait_for_timeout(500)
    hold(theirs, "secret")
    approval = hold(other, "elsewhere")
    panel = page.locator("#attention")
    expect(panel).to_be_visible(timeout=2000)
    expect(panel.locator("[data-held]")).to_have_count(1)
    expect(page).to_have_title(re.compile(r"^\(1\) watched"))
    expect(page.locator("#attention-announcer")).to_contain_text("of triage in project")
    page.goto(page.url.replace("/sessions/watched", "/held"))
    expect(panel).to_be_visible()
    panel.get_by_role("button", name="Answer").click()
    expect(panel.locator("summary")).to_contain_text(f"project {other.name}, elsewhere")
    panel.get_by_role("button", name="Allow once").click()
    expect(panel).to_be_hidden()
    approval.refresh_from_db()
    assert (approval.choice, approval.decided_by) == ("allow_once", "ana")


def test_a_double_click_answers_one_call_not_the_one_that_follows(insights_page, project):
    page = insights_page
    hold(project)
    hold(project, "s-2", tool="read_file")
    cards = page.locator("#attention [data-held]")
    expect(cards).to_have_count(2)
    page.keyboard.press("h")
    place = cards.first.locator("button[value=allow_once]").bounding_box()
    at = (place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.mouse.click(*at)
    expect(cards).to_have_count(1)
    page.mouse.click(*at)
    page.wait_for_timeout(300)
    assert [one.state for one in Approval.objects.order_by("pk")].count("decided") == 1
    page.wait_for_timeout(700)
    page.locator("#attention [data-held][open] button[value=allow_once]").click()
    expect(cards).to_have_count(0)


def test_a_held_call_on_a_phone_survives_a_lost_connection(insights_page, project):
    page = insights_page
    page.set_viewport_size({"width": 375, "height": 740})
    page.context.set_offline(True)
    approval = hold(project)
    page.context.set_offline(False)
    panel = page.locator("#attention")
    expect(panel).to_be_visible(timeout=10_000)
    panel.get_by_role("button", name="Answer").click()
    assert complaints(page) == []
    page.set_viewport_size({"width": 375, "height": 740})
    for button in panel.locator("button[name=choice]").all():
        assert button.bounding_box()["height"] >= 44
    page.context.set_offline(True)
    panel.get_by_role("button", name="Skip this call").click()
    expect(page.locator(".toast.error")).to_contain_text("LoopGuard cannot be reached")
    page.context.set_offline(False)
    # An error replaces the one before.
    for amount in ("0", ""):
        panel.get_by_label(re.compile("Raise the limit of")).fill(amount)
        panel.get_by_role("button", name="Raise the limit").click()
        expect(page.locator(".toast.error")).to_have_text("Raise the limit by 1 to 10,000.")
    panel.get_by_role("button", name="Skip this call").click()
    expect(panel).to_be_hidden()
    approval.refresh_from_db()
    assert approval.choice == "skip"


def test_of_several_tabs_one_notifies_and_permission_is_asked_on_a_click_only(site, project, page):
    context = page.context
    context.add_init_script(NOTIFICATIONS)
    # A headless page always has the focus; these are in the background.
    context.add_init_script("document.hasFocus = () => false")
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/preferences")
    assert page.evaluate("asked") == 0
    page.get_by_role("group", name="Notifications").get_by_role("radio", name="On").click()
    expect(page.locator("#announcer")).to_have_text("Notifications enabled in this browser.")
    assert page.evaluate("asked") == 1
    tabs = [page, context.new_page(), context.new_page()]
    for tab in tabs:
        tab.add_init_script("Notification.permission = 'granted'")
        tab.goto(f"{site.url}/p/support/system")
        expect(tab.locator("#attention")).to_be_hidden()
    approval = hold(project)
    for tab in tabs:
        expect(tab.locator("#attention")).to_be_visible()
    page.wait_for_timeout(1500)  # what the other tabs would do
    assert page.evaluate("JSON.parse(localStorage.shown)") == [
        f"Held: search_web of triage|{approval.public_id}"
    ]
    decisions.decide(project.pk, approval.public_id, "skip", SYSTEM)
    for tab in tabs:
        expect(tab.locator("#attention")).to_be_hidden()
    assert page.evaluate("localStorage.closed") == "yes"


@pytest.fixture
def full_chromium(page):
    """A page of the whole browser; the headless shell has no notifications."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Only the headless shell of Chromium was found.")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = page.context.browser.browser_type.launch(executable_path=program, args=sandbox)
    yield browser.new_page()
    browser.close()


def test_a_service_worker_notifies_where_pages_may_not(site, project, full_chromium):
    """As in Chrome on Android, whose `Notification` cannot be constructed."""
    page = full_chromium
    page.add_init_script(
        """
        window.Notification = class {
            static permission = "granted";
            static requestPermission = async () => "granted";
            constructor() { throw new TypeError("Illegal constructor"); }
        };
        Document.prototype.hasFocus = () => false;
        """
    )
    page.context.grant_permissions(["notifications"], origin=site.url)
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/p/support/insights")
    expect(page.locator("#attention")).to_be_hidden()
    hold(project, "s-0", tool="read_file")
    page.locator("#attention [data-fold]").click()
    page.locator("#attention button[data-notify]").click()
    approval = hold(project)
    shown = """async (number) => {
        for (let tries = 0; tries < 300; tries += 1) {
            const [one] = await navigator.serviceWorker.getRegistrations();
            const all = await one?.getNotifications() ?? [];
            if (one && all.length === number)
                return [one.scope, all.map(({ title, tag, data }) => [title, tag, data.page])];
            await new Promise((resolve) => setTimeout(resolve, 100));
        }
    }"""
    card = page.locator(f'[data-held="{approval.public_id}"]')
    expect(card).to_be_attached()
    title = "Held: search_web of triage"
    assert page.evaluate(shown, 1) == [f"{site.url}/static/js/", [[title, approval.public_id, page.url]]]
    assert page.evaluate("navigator.serviceWorker.controller") is None
    assert page.evaluate("caches.keys()") == []
    worker = page.context.service_workers[0]
    page.evaluate("document.activeElement.blur()")
    worker.evaluate(
        """async () => {
            const [notification] = await self.registration.getNotifications();
            self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
        }"""
    )
    expect(card.locator("button").first).to_be_visible()
    page.wait_for_function("document.querySelector('#attention').contains(document.activeElement)")
    decisions.decide(project.pk, approval.public_id, "skip", SYSTEM)
    expect(card).to_be_hidden()
    assert page.evaluate(shown, 0) == [f"{site.url}/static/js/", []]
