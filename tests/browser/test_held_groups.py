"""Held calls in number, in the browser: one click for a loop in many sessions, one by one, undo, and Now."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model
from playwright.sync_api import expect

from detection.engine.scopes import PROJECT
from detection.models import Approval
from detection.services.approvals import decisions, group_decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.policies import overrides
from tests.browser.pages import complaints, sign_in
from tests.console.scenes import ask
from tests.support.patience import PATIENCE_SECONDS
from tests.support.projects import make_member, make_project


@pytest.fixture
def project(transactional_db):
    project = make_project("support")
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    make_member(project, username="ana")
    return project


def hold(project, *sessions, tool="run_sql"):
    for session in sessions:
        for number in range(4):
            ask(project, session, number, tool=tool, agent="finance")


def open_page(page, site, path="held"):
    sign_in(page, site, get_user_model().objects.get(username="ana"))
    page.goto(f"{site.url}/p/support/{path}")


def states():
    return sorted(Approval.objects.values_list("state", flat=True))


def test_thirty_holds_are_answered_with_one_click_and_undone(page, site, project):
    hold(project, *(f"s-{number}" for number in range(30)))
    open_page(page, site)
    (card,) = page.locator(".held-group").all()
    expect(card).to_contain_text("30 sessions of finance")
    expect(card).to_contain_text("If nobody decides in time, the call is skipped and the run continues.")
    assert complaints(page) == []
    card.get_by_role("button", name="Skip all 30").click()
    toast = page.locator(".toast")
    expect(toast).to_contain_text("You skipped 30 held calls.")
    assert states() == ["decided"] * 30
    expect(page.get_by_text("No call waits")).to_be_visible()
    received = Approval.objects.first()
    decisions.hand_out(project.pk, received.public_id)
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_contain_text(
        "29 calls wait again. 1 call stays answered: it has reached the agent.",
        timeout=PATIENCE_SECONDS * 1000,
    )
    assert states() == ["decided"] + ["open"] * 29
    expect(page.get_by_role("button", name="Skip all 29")).to_be_visible()


def test_one_is_answered_by_itself(page, site, project):
    hold(project, "s-1", "s-2")
    open_page(page, site)
    group = page.locator(".held-group")
    group.get_by_text("One by one").click()
    group.locator(".approval").filter(has_text="s-2").get_by_role("button", name="Allow once").click()
    expect(page.locator(".toast")).to_contain_text("allowed the call once: run_sql in s-2")
    assert [*Approval.objects.order_by("pk").values_list("session__external_id", "choice")] == [
        ("s-1", ""), ("s-2", "allow_once"),
    ]  # fmt: skip
    expect(page.locator(".held-group")).to_have_count(0)
    expect(page.locator(".approval")).to_have_count(1)


def test_the_panel_of_any_page_answers_a_group_and_undoes_it(page, site, project):
    open_page(page, site, "insights")
    hold(project, "s-1", "s-2")
    panel = page.locator("#attention")
    expect(panel.locator("[data-held]")).to_have_count(1)
    page.keyboard.press("h")
    expect(panel.get_by_role("button", name="Skip both")).to_be_focused()
    # A third one comes while the card has the focus: its button says so before it is pressed.
    hold(project, "s-3")
    expect(panel.get_by_role("button", name="Skip all 3")).to_be_focused()
    page.wait_for_timeout(800)  # a click right after the card changed is not for what it says now
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("You skipped 3 held calls.")
    expect(panel).to_be_hidden()
    page.keyboard.press("u")
    expect(page.locator(".toast").filter(has_text="3 calls wait again.")).to_be_visible()
    expect(panel.locator("[data-part=skip]")).to_have_text(re.compile("Skip all 3"))  # folded again
    assert states() == ["open"] * 3
    # Answered by another person: the card goes, and who answered is said.
    group_decisions.decide(
        project.pk, panel.locator("[data-held]").get_attribute("data-held"), "skip", Actor("ben")
    )
    expect(panel).to_be_hidden()
    expect(page.locator("#attention-announcer")).to_contain_text("Skipped by ben")


def test_who_comes_second_hears_who_was_first(page, site, project):
    hold(project, "s-1", "s-2")
    open_page(page, site)
    group = page.locator(".held-group")
    group.hover()
    group_decisions.decide(project.pk, group.get_attribute("id"), "allow_once", Actor("ben"))
    group.get_by_role("button", name="Skip both").click()
    expect(page.locator(".toast.error")).to_contain_text("ben has already decided")
    assert set(Approval.objects.values_list("choice", flat=True)) == {"allow_once"}


def test_now_has_the_groups_and_answers_in_place(page, site, project):
    hold(project, "s-1", "s-2", "s-3")
    hold(project, "s-4", tool="delete_branch")
    open_page(page, site, "now")
    expect(page.get_by_role("heading", name=re.compile("Waiting for an answer"))).to_contain_text("4")
    groups = page.locator(".held-group")
    expect(groups).to_have_count(2)
    groups.first.get_by_role("button", name="Allow all 3 once").click()
    page.wait_for_url("**/p/support/now")
    expect(page.locator(".toast")).to_contain_text("You allowed 3 held calls once.")
    expect(groups).to_have_count(1)
    assert states() == ["decided"] * 3 + ["open"]


@pytest.mark.parametrize("width", [390, 1440])
def test_a_group_without_scripts_and_on_a_phone(width, browser, site, project):
    hold(project, "s-1", "s-2", "s-3")
    context = browser.new_context(java_script_enabled=False, viewport={"width": width, "height": 800})
    page = context.new_page()
    open_page(page, site)
    group = page.locator(".held-group")
    group.get_by_text("More").click()
    answers = group.locator(".group-more")
    answers.get_by_label(re.compile("Raise the limit of")).fill("4")
    answers.get_by_role("button", name=re.compile("Raise the limit")).click()
    expect(page.locator(".toast")).to_contain_text("You raised the limit by 4 for 3 held calls.")
    assert set(Approval.objects.values_list("choice", "raise_by")) == {("raise", 4)}
    context.close()
