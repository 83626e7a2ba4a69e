"""Journeys about settings, as a person walks them: only clicks on what the screens offer, at most four each."""

import re

import pytest
from playwright.sync_api import expect

from detection.engine.scopes import Scope
from detection.models import Override
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.what_if import worker
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import loop, make_world

MODEL = Scope.of(backend="openai", model="gpt-5")


@pytest.fixture
def world(site):
    world = make_world()
    overrides.save_override(world.project.pk, MODEL, {"max_repeats": 10}, SYSTEM, "a test")
    loop(world.project, "s-2", calls=12)
    return world


def test_which_setting_blocked_it_and_change_it_there(site, world, page):
    """Journey p: the session with the call selected, Change here, Save."""
    noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/sessions/s-2")
    page.get_by_role("link", name="Change here: Limit for identical calls").click()
    dialog = page.get_by_role("dialog", name="Limit for identical calls")
    expect(dialog).to_contain_text("because model openai / gpt-5 says so")
    value = dialog.get_by_label("New value")
    expect(value).to_be_focused()
    value.fill("6")
    expect(dialog.get_by_role("status")).to_contain_text("1 loop would get a stricter reaction.")
    expect(dialog.get_by_role("status")).to_contain_text("Replayed all 2 sessions of the last 7 days.")
    expect(dialog).to_contain_text("Does not weaken detection, so no reason is needed.")
    assert complaints(page) == []
    dialog.get_by_role("button", name="Save 6").click()
    line = page.locator(".settings li", has_text="Limit for identical calls")
    expect(line).to_contain_text("6")
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 6}
    # The same line leads to what verifies it.
    line.get_by_role("link", name="Verify").click()
    verifies = page.get_by_role("dialog", name="Limit for identical calls")
    expect(verifies).to_contain_text("No matching call since")
    verifies.get_by_role("link", name="Close").click()
    expect(verifies).to_be_hidden()
    assert noise == []


def test_what_a_weaker_value_would_have_lost_is_red_and_needs_a_reason(site, world, page):
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/policies/change?setting=max_repeats&scope={MODEL}")
    page.get_by_label("New value").fill("40")
    expect(page.locator("#change-effect .act")).to_contain_text("You would no longer block or stop 1 loop")
    page.get_by_role("button", name="Save 40").click()
    expect(page.get_by_role("alert")).to_contain_text("Give a reason")
    expect(page.get_by_label("New value")).to_have_value("40")
    page.get_by_label(re.compile("Reason")).fill("a slow search")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast")).to_contain_text("is now 40 for model openai / gpt-5")


def test_the_limit_of_a_model_to_six_and_verify(site, world, page):
    """Journey f: Ctrl K "limit identical", 6 for the model, Save 6; the tester says 6."""
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/now")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search or jump").fill("limit identical")
    page.get_by_role("option", name=re.compile("Limit for identical calls")).click()
    page.get_by_label("For", exact=True).select_option(str(MODEL))
    page.get_by_label("New value").fill("6")
    page.get_by_role("button", name="Save 6").click()
    expect(page.get_by_label("Which value applies?")).to_contain_text("is 6 from model openai / gpt-5")
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 6}
    page.get_by_role("link", name="Verify").click()
    expect(page.get_by_role("dialog")).to_contain_text("No matching call since")


def test_what_a_change_would_have_done(site, world, page):
    """Journey i: a cell of the matrix, a new value, Details."""
    noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/policies")
    assert complaints(page) == []
    page.locator(".matrix .set a").first.click()
    dialog = page.get_by_role("dialog", name="Limit for identical calls")
    dialog.get_by_label("New value").fill("40")
    expect(dialog.locator(".act")).to_contain_text("You would no longer block or stop 1 loop")
    dialog.get_by_role("button", name="Details").click()
    expect(page).to_have_url(re.compile("/policies/what-ifs/wif_"))
    worker.run_waiting(lambda: False)
    expect(page.get_by_text("You would no longer block or stop 1 loop").first).to_be_visible(timeout=10_000)
    assert noise == []


def test_a_preset_is_replayed_as_soon_as_its_dialog_opens(site, world, page):
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/policies")
    page.get_by_role("link", name="Try on history: strict").click()
    dialog = page.get_by_role("dialog", name="Preset")
    expect(dialog).to_contain_text("Replayed all 2 sessions of the last 7 days.")
    expect(dialog.get_by_role("button", name="Save strict")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("link", name="Try on history: strict")).to_be_focused()
