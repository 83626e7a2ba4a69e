"""Journeys about figures, as a person walks them: only clicks on what the screens offer, at most four each."""

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from detection.models import Incident, Session
from detection.services.maintenance.hourly_counts import count_calls
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import ask, loop, make_world

HOSTILE = "<b>agent</b> \u202e" + "n" * 100


@pytest.fixture
def world(site):
    world = make_world()
    for number in range(6):
        loop(
            world.project,
            f"mini-{number}",
            calls=8,
            agent=("order-desk", "finance")[number % 2],
            model="gpt-5-mini",
            backend="openai",
            cost_usd=0.5,
        )
        for call in range(20):
            arguments = f'{{"n": {call}}}'
            ask(
                world.project,
                f"big-{number}",
                call,
                model="gpt-5",
                backend="openai",
                agent="finance",
                arguments=arguments,
            )
    ask(world.project, "hostile", 1, agent=HOSTILE)
    count_calls()
    return world


@pytest.fixture
def insights(site, world, page):
    page.noise = noise_of(page)
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/now")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Insights").click()
    expect(page.get_by_role("heading", name="Insights", level=1)).to_be_visible()
    return page


def test_the_cost_of_loops_by_agent_and_model_is_shown_and_exported(insights, world):
    """Journey g: Insights, Models, Export, CSV."""
    page = insights
    agents = page.get_by_role("region", name="By agent")
    expect(agents.get_by_role("row", name=re.compile("finance"))).to_contain_text("$12.00")
    page.get_by_role("navigation", name="Group by").get_by_role("link", name="Models").click()
    models = page.get_by_role("region", name="By model")
    mini = models.get_by_role("row", name=re.compile("gpt-5-mini"))
    expect(mini).to_contain_text("$24.00")
    assert not (found := complaints(page)), "\n".join(found)
    page.get_by_text("Export", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    loops = Incident.objects.filter(model="gpt-5-mini")
    assert float(rows["gpt-5-mini"]["loop_cost_usd"]) == float(sum(one.cost_usd for one in loops)) == 24
    assert int(rows["gpt-5-mini"]["calls"]) == 48
    assert int(rows["gpt-5"]["incidents"]) == 1
    assert page.noise == []


def test_two_models_are_compared_in_a_sentence(insights):
    """Journey m: Insights, Models, two choices; the sentence says by how much, or that none can be seen."""
    page = insights
    page.get_by_role("navigation", name="Group by").get_by_role("link", name="Models").click()
    compare = page.get_by_role("region", name="Compare")
    compare.get_by_label("First").select_option("gpt-5-mini")
    compare.get_by_label("Second").select_option("gpt-5")
    compare.get_by_role("button", name="Compare").click()
    compare = page.get_by_role("region", name="Compare")
    expect(compare).to_contain_text(
        re.compile(r"gpt-5-mini loops about 16 times as often as gpt-5, [\d.]+ to [\d.]+ times\.")
    )
    expect(compare).to_contain_text("On 1 tool that both used")
    compare.get_by_role("link", name="Set a limit for gpt-5-mini").click()
    expect(page.get_by_role("heading", name="Limit for identical calls")).to_be_visible()
    expect(page.get_by_label("For", exact=True)).to_have_value("model:openai/gpt-5-mini")
    assert page.noise == []


def test_a_difference_of_few_calls_is_none(insights, site, world):
    page = insights
    for number in range(4):
        ask(world.project, "few", number, model="few", arguments=f'{{"n": {number}}}')
    count_calls()
    page.goto(f"{site.url}{world.base}/insights?by=model&first=few&second=gpt-5")
    compare = page.get_by_role("region", name="Compare")
    expect(compare).to_contain_text("No difference can be seen in 4 calls.")


@pytest.mark.parametrize("board", ["cost", "rate", "protection"])
def test_a_board_has_five_figures_a_chart_and_its_table(insights, site, world, board):
    page = insights
    page.goto(f"{site.url}{world.base}/insights?board={board}")
    expect(page.locator(".figures > div")).to_have_count(5)
    bars = page.locator(".plot a:not(.note)")
    expect(bars).not_to_have_count(0)
    assert page.locator(".plot rect").first.bounding_box()["height"] > 20
    page.get_by_text("Show as a table").click()
    lines = page.get_by_role("region", name="as a table").locator("tbody tr")
    expect(lines).to_have_count(bars.count())
    assert not (found := complaints(page)), "\n".join(found)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not (found := complaints(page)), "\n".join(found)
    expect(page.locator("b", has_text="agent")).to_have_count(0)  # a name is text, whatever it contains
    assert page.noise == []
    assert Session.objects.filter(agent=HOSTILE[:128]).exists()


def test_a_report_and_all_projects_can_be_read_by_everyone_on_a_phone(insights, site, world):
    page = insights
    page.get_by_role("link", name="Weekly report").click()
    page.get_by_role("button", name="Create a link to the last 7 days").click()
    link = page.get_by_role("status").get_by_role("link").get_attribute("href")
    assert not (found := complaints(page)), "\n".join(found)
    page.goto(f"{site.url}/projects")
    expect(page.get_by_role("region", name="Projects").get_by_role("row")).to_have_count(2)
    assert not (found := complaints(page)), "\n".join(found)
    page.goto("about:blank")
    page.context.clear_cookies()
    page.goto(link)
    expect(page.get_by_role("heading", level=1)).to_contain_text("in these 7 days")
    assert not (found := complaints(page)), "\n".join(found)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.noise == []
