"""The page of quarantined events in a real browser: accessible with rows and without, and usable by keyboard."""

import pytest
from playwright.sync_api import expect

from detection.models import Event, QuarantinedEvent
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import make_world, screens

TRACEBACK = "Traceback (most recent call last):\n" + '  File "fold.py", line 7, in observe_call\n' * 30


@pytest.fixture
def world(site):
    return make_world()


def quarantine(world):
    """Quarantine the calls of the session, as an evaluation that raises does."""
    for event in Event.objects.filter(session_id=world.session.pk, type="call"):
        QuarantinedEvent.objects.create(
            project=world.project,
            session=world.session,
            seq=event.seq,
            type=event.type,
            tool=event.tool,
            error="call: ZeroDivisionError: " + "a_long_word_without_spaces" * 8,
            traceback=TRACEBACK,
        )


def test_the_page_has_no_serious_accessibility_problems_with_rows(site, world, page):
    quarantine(world)  # without rows, it is among all screens
    noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(site.url + screens(world)["quarantined events"])
    expect(page.get_by_text("No quarantined events")).to_have_count(0)
    for summary in page.locator("summary").all():
        summary.click()
    assert complaints(page) == []
    assert noise == []


def test_a_traceback_is_read_and_an_event_retried_by_keyboard(site, world, page):
    quarantine(world)
    sign_in(page, site, world.user)
    page.goto(site.url + screens(world)["quarantined events"])
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    rows.first.locator("summary").press("Enter")
    expect(rows.first.locator("pre")).to_contain_text("observe_call")
    rows.first.get_by_role("button", name="Retry").press("Enter")
    expect(page.get_by_text("Events retried: 1 evaluated, 0 failed again.")).to_be_visible()
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Retry all").press("Enter")
    expect(page.get_by_text("No quarantined events")).to_be_visible()
    assert not QuarantinedEvent.objects.exists()
