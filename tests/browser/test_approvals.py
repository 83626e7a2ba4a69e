"""The Approvals screen in a real browser, and an agent that waits for the decision on the live server."""

from __future__ import annotations

import re
import threading

import httpx
import pytest
from django.contrib.auth import get_user_model
from playwright.sync_api import expect

from detection.engine.scopes import PROJECT
from detection.models import Approval, Session
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.policies import overrides
from tests.browser.pages import complaints, sign_in
from tests.support.projects import make_key, make_member, make_project


@pytest.fixture
def project(transactional_db):
    project = make_project("support")
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    make_member(project, username="ana")
    return project


class Script(threading.Thread):
    """An agent: repeats a call until it is held, then waits for the decision at the URL of the verdict."""

    def __init__(self, site, key, session="s-1"):
        super().__init__(daemon=True)
        self.site, self.key, self.session = site, key, session
        self.held, self.answer = threading.Event(), None

    def run(self):
        headers = {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(headers=headers, timeout=70) as http:
            for number in range(4):
                call = {"call_id": f"c-{number}", "tool": "search_web", "arguments": {"q": "reset password"}}
                body = {"session": self.session, "agent": "triage", "calls": [call]}
                verdict = http.post(f"{self.site.url}/api/v1/guard", json=body).json()["verdicts"][0]
            assert verdict["decision"] == "hold", verdict
            self.held.set()
            while self.answer is None or self.answer["state"] == "open":
                self.answer = http.get(verdict["approval"]["wait_url"]).json()


@pytest.fixture
def script(site, project):
    started = Script(site, make_key(project))
    started.start()
    assert started.held.wait(20)
    yield started
    for approval in Approval.objects.filter(state="open"):
        decisions.decide(project.pk, approval.public_id, "skip", SYSTEM)
    started.join(10)


def open_approvals(page, site):
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/p/support/held")


def test_a_click_answers_the_agent_that_waits(page, site, script):
    open_approvals(page, site)
    card = page.locator(".approval")
    expect(card).to_contain_text("search_web")
    expect(card).to_contain_text("If nobody decides in time, the call is skipped and the run continues.")
    expect(card).to_contain_text(re.compile(r"\d+ s left|\d+ min"))
    card.get_by_role("button", name="Allow once").click()
    script.join(10)
    assert script.answer["decision"] == "allow"
    expect(page.get_by_role("status").filter(has_text="allowed the call once")).to_be_visible()
    expect(page.get_by_text("No call waits")).to_be_visible()


def test_an_approval_appears_on_the_open_page(page, site, project):
    open_approvals(page, site)
    expect(page.get_by_text("No call waits")).to_be_visible()
    started = Script(site, make_key(project))
    started.start()
    expect(page.locator(".approval")).to_contain_text("search_web", timeout=15_000)
    assert page.title().startswith("(1)")
    page.locator(".approval").get_by_role("button", name="Skip this call").click()
    started.join(10)
    assert started.answer["decision"] == "block"


def test_the_second_operator_sees_who_answered_first(page, site, script, project):
    open_approvals(page, site)
    card = page.locator(".approval")
    card.hover()
    decisions.decide(project.pk, Approval.objects.get().public_id, "skip", Actor("ben"))
    card.get_by_role("button", name="Disable detection").click()
    expect(
        page.get_by_role("status").filter(has_text="ben has already decided: skip this call.")
    ).to_be_visible()
    assert Session.objects.get().policy_values == {}


def test_the_limit_is_raised_and_the_answer_remembered_and_forgotten(page, site, script):
    open_approvals(page, site)
    card = page.locator(".approval")
    card.get_by_label(re.compile("Raise the limit of")).fill("7")
    card.get_by_label(re.compile("Remember")).check()
    card.get_by_role("button", name="Raise the limit").click()
    script.join(10)
    assert (script.answer["choice"], script.answer["raise_by"]) == ("raise", 7)
    expect(page.get_by_role("heading", name="Remembered decisions")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Remembered decisions")).to_be_hidden()


def test_an_approval_fits_a_phone_and_has_no_serious_accessibility_problems(page, site, script):
    page.set_viewport_size({"width": 375, "height": 740})
    open_approvals(page, site)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for button in page.locator(".approval button").all():
        assert button.bounding_box()["height"] >= 44
    assert complaints(page) == []
    page.locator(".approval").get_by_role("button", name="Skip this call").click()
    script.join(10)
    assert script.answer["decision"] == "block"


def test_an_approval_is_answered_without_scripts(browser, site, script):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    open_approvals(page, site)
    page.locator(".approval").get_by_role("button", name="Exempt the tool").click()
    script.join(10)
    assert script.answer["choice"] == "exempt"
    context.close()
