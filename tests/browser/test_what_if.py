"""From a loop to a saved exception, as a person does it: reason, what-if in the form, expiry, undo."""

import pytest
from playwright.sync_api import expect

from detection.models import Incident, ToolOverride
from detection.services.what_if import worker
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import make_world


@pytest.fixture
def world(site):
    return make_world()


def test_a_loop_is_fine_with_an_exception_that_was_tried_first(site, world, page):
    noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", name="this is fine for…")).to_be_visible()
    page.get_by_label("These calls").check()
    page.get_by_label("Reason").select_option("poll")
    page.get_by_label("Note").fill("a mock")
    page.get_by_role("button", name="Try on history").click()
    beside = page.locator("#what-if")
    expect(beside).to_contain_text("Waiting for a worker")
    beside.get_by_role("button", name="Cancel").click()
    expect(beside).to_contain_text("Cancelled by")
    page.get_by_role("button", name="Try on history").click()
    expect(beside).to_contain_text("Waiting for a worker")
    worker.run_waiting(lambda: False)
    expect(beside).to_contain_text("Finished", timeout=10_000)
    expect(beside).to_contain_text("1 loop no longer found")
    expect(page.get_by_label("Note")).to_have_value("a mock")
    # A result of another form says so.
    outdated = beside.get_by_text("The form was changed after this replay.")
    expect(outdated).to_be_hidden()
    page.get_by_label("Everywhere").check()
    expect(outdated).to_be_visible()
    page.get_by_label("These calls").check()
    expect(outdated).to_be_hidden()
    assert complaints(page) == []
    page.get_by_label("For", exact=True).select_option("7d")
    page.get_by_role("button", name="This is fine", exact=True).click()
    expect(page.locator(".banner", has_text="Treat it as polling: higher limits apply until")).to_be_visible()
    assert Incident.objects.get(pk=world.incident.pk).label_reason == "poll"
    assert ToolOverride.objects.get(pattern="search_web").expires_at is not None
    page.get_by_role("button", name="Undo exception").click()
    expect(page.locator(".toast", has_text="Exception undone")).to_be_visible()
    assert not ToolOverride.objects.filter(pattern="search_web").exists()
    # A scope without settings says so, until one is edited.
    page.goto(f"{site.url}{world.base}/policies/settings?scope=agent:new-one")
    nothing = page.get_by_text("Nothing is set here")
    expect(nothing).to_be_hidden()
    page.get_by_label("Changed only").check()
    expect(nothing).to_be_visible()
    page.get_by_label("Changed only").uncheck()
    page.get_by_label("Reaction to repeats", exact=True).fill("ask")
    page.get_by_label("Changed only").check()
    expect(nothing).to_be_hidden()
    expect(page.get_by_label("Reaction to repeats", exact=True)).to_be_visible()
    no_match = page.get_by_text("No setting matches.")
    expect(no_match).to_be_hidden()
    page.get_by_label("Search settings").fill("cycles")
    expect(page.locator(".setting-group:visible, .setting:visible")).to_have_count(0)
    expect(no_match).to_be_visible()
    page.get_by_label("Changed only").uncheck()
    expect(no_match).to_be_hidden()
    page.get_by_label("Search settings").fill("no such setting")
    expect(no_match).to_be_visible()
    # A weaker ladder says why it needs a reason, and the browser asks for it.
    page.goto(f"{site.url}{world.base}/policies/settings?scope=model:openai/gpt-5")
    page.get_by_label("Reaction to repeats", exact=True).fill("ask")
    expect(page.locator(".changes")).to_contain_text("weaker than stop (the run ends)")
    reason, needed = (
        page.get_by_label("Reason", exact=True),
        page.get_by_text("Weaker settings need a reason."),
    )
    expect(reason).to_have_attribute("required", "")
    colour = needed.evaluate("one => getComputedStyle(one).color")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(reason).to_be_focused()
    expect(reason).to_have_attribute("aria-invalid", "true")
    expect(needed).not_to_have_css("color", colour)
    reason.fill("a person decides")
    expect(needed).to_have_css("color", colour)
    assert noise == []
