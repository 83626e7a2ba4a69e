"""Every screen in a real browser: accessible in both sizes and themes, strict in its policy, small in bytes."""

import gzip

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import PASSWORD, add_gateway, make_world, screens
from tests.support.alerts import make_incident

MAX_PAGE_BYTES, MAX_SCRIPT_BYTES = 250_000, 90_000


def type_password(page: Page, site, username: str) -> None:
    page.goto(f"{site.url}/sign-in")
    page.fill("#username", username)
    page.fill("#password", PASSWORD)
    page.click("button.primary")
    page.wait_for_load_state()


@pytest.fixture
def world(site):
    world = make_world()
    add_gateway(world)
    for _ in range(3):
        make_incident(world.project, tool="poller", label="false_alarm", label_reason="poll")
    return world


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("views", [1, pytest.param(4, marks=pytest.mark.long)])
def test_no_screen_has_serious_accessibility_problems(site, world, page, half, views):
    noise = noise_of(page)
    found: dict[str, list[str]] = {}
    if half == 0:
        page.goto(f"{site.url}/sign-in")
        found["sign-in"] = complaints(page)
    sign_in(page, site, world.user)
    for number, (name, url) in enumerate([*screens(world).items()][half::2]):
        answer = page.goto(site.url + url)
        assert answer is not None
        assert answer.status == 200, name
        found[name] = complaints(page, number, count=views)
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert noise == []


def test_pages_stay_light_and_fetch_nothing_from_elsewhere(site, world, page):
    sign_in(page, site, world.user)
    for name in ("live", "session", "incident", "policies"):
        page.goto(site.url + screens(world)[name])
        fetched = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        urls = {page.url, *(url for url in fetched if not url.startswith("ws"))}
        assert all(url.startswith(site.url) for url in urls), name
        # As a proxy or the static files' own compressed copies send it.
        weights = {url: len(gzip.compress(page.request.get(url).body())) for url in urls}
        assert sum(size for url, size in weights.items() if url.endswith(".js")) < MAX_SCRIPT_BYTES, name
        assert sum(weights.values()) < MAX_PAGE_BYTES, name


def test_a_page_works_without_scripts(site, world, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    type_password(page, site, world.user.get_username())
    page.goto(f"{site.url}{world.base}/live")
    page.click("a.name >> text=s-1")
    page.click("text=Table")
    expect(page.locator("tbody tr >> nth=3")).to_be_visible()
    page.click("tbody tr >> nth=0 >> a.name")
    expect(page.locator('#call >> text="Arguments"')).to_have_count(1)
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    with page.expect_navigation():
        page.click("button >> text=Resolve")
    world.incident.refresh_from_db()
    assert world.incident.status == "resolved"
    context.close()
