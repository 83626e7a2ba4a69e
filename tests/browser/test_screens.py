"""Every screen in a real browser, both themes: nothing serious for axe, no violation of the policy, within its weight."""

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.scenes import PASSWORD, make_world, screens

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
MAX_PAGE_BYTES, MAX_SCRIPT_BYTES = 250_000, 90_000
SIZES = {"wide": {"width": 1440, "height": 900}, "narrow": {"width": 390, "height": 844}}


def sign_in(page: Page, site, username: str) -> None:
    page.goto(f"{site.url}/sign-in")
    page.fill("#username", username)
    page.fill("#password", PASSWORD)
    page.click("button.primary")
    page.wait_for_load_state()


def troubles(page: Page) -> list[str]:
    """What axe calls serious or critical. The script runs as the debugger's, so the page's policy stays strict."""
    # The debugger may evaluate where the page may not.
    page.evaluate(AXE + "\nundefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


@pytest.fixture
def world(site):
    return make_world()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_for_people_with_other_senses(site, world, page, theme, size):
    complaints: dict[str, list[str]] = {}
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.set_viewport_size(SIZES[size])
    page.emulate_media(color_scheme=theme)
    page.goto(f"{site.url}/sign-in")
    complaints["sign-in"] = troubles(page)
    sign_in(page, site, world.user.get_username())
    for name, url in screens(world).items():
        answer = page.goto(site.url + url)
        assert answer is not None
        assert answer.status == 200, name
        complaints[name] = troubles(page)
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            complaints[name].append(f"scrolls sideways by {too_wide} px")
    assert {name: found for name, found in complaints.items() if found} == {}
    assert noise == []


def test_pages_stay_light_and_fetch_nothing_from_elsewhere(site, world, page):
    sign_in(page, site, world.user.get_username())
    for name in ("live", "session", "incident", "policies"):
        page.goto(site.url + screens(world)[name])
        fetched = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        urls = {page.url, *(url for url in fetched if not url.startswith("ws"))}
        assert all(url.startswith(site.url) for url in urls), name
        # As a proxy or the static files' own compressed copies send it.
        weights = {url: len(gzip.compress(page.request.get(url).body())) for url in urls}
        assert sum(size for url, size in weights.items() if url.endswith(".js")) < MAX_SCRIPT_BYTES, name
        assert sum(weights.values()) < MAX_PAGE_BYTES, name


def test_a_page_is_of_use_before_any_script_runs(site, world, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, site, world.user.get_username())
    page.goto(f"{site.url}{world.base}/live")
    page.click("a.name >> text=s-1")
    page.click("text=Table")
    expect(page.locator("tbody tr >> nth=3")).to_be_visible()
    page.click("tbody tr >> nth=0 >> a.name")
    expect(page.locator("#call >> text=Arguments")).to_have_count(1)
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    with page.expect_navigation():
        page.click("button >> text=Resolve")
    world.incident.refresh_from_db()
    assert world.incident.status == "resolved"
    context.close()
