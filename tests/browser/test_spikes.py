"""The pages that say that a project reports too much, in a real browser."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from detection.models import ReportedHour
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import make_world


@pytest.fixture
def world(site):
    """A project with a spike, above what was usual yesterday."""
    world = make_world()
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    ReportedHour.objects.create(project=world.project, hour=hour - timedelta(days=1), events=60_000)
    ReportedHour.objects.create(
        project=world.project, hour=hour, events=90_000, rejected=1_234, sampled=56, spiked_at=timezone.now()
    )
    return world


@pytest.mark.parametrize("action", ["observe", "sample", "reject"])
def test_a_spike_is_said_with_what_happens_and_where_it_is_set(site, world, page, action):
    world.project.spike_action = action
    world.project.save()
    noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/now")
    banner = page.get_by_role("status").filter(has_text="The project reports more events than its limit.")
    expect(banner).to_be_visible()
    banner.get_by_role("link", name="Ingest").click()
    expect(banner).to_be_visible()
    expect(banner.get_by_role("link")).to_have_count(0)
    expect(page.get_by_text("10,000 a minute")).to_be_visible()
    expect(page.get_by_text("1,000 a minute")).to_be_visible()
    expect(page.get_by_text("1,234 requests")).to_be_visible()
    expect(page.get_by_text("56 events")).to_be_visible()
    if action == "observe":
        assert complaints(page, count=4) == []
    page.get_by_role("link", name=world.project.get_spike_action_display()).click()
    expect(page.get_by_label("Spikes of reported events")).to_have_value(action)
    page.get_by_label("Limit in events a minute").fill("50000")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_text("Project saved.")).to_be_visible()
    page.goto(f"{site.url}{world.base}/ingest")
    expect(page.get_by_text("50,000 a minute")).to_be_visible()
    assert noise == []
