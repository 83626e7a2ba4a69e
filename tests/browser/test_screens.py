"""Screens in a real browser: small in bytes, from one place, and useful without scripts. Others open every screen."""

import gzip

import pytest
from playwright.sync_api import Page, expect

from detection.services import keys
from detection.services.audit import SYSTEM, Actor
from detection.services.projects import projects
from tests.browser.pages import sign_in
from tests.console.scenes import PASSWORD, make_world, screens

MAX_PAGE_BYTES, MAX_SCRIPT_BYTES = 250_000, 90_000


def type_password(page: Page, site, username: str) -> None:
    page.goto(f"{site.url}/sign-in")
    page.fill("#username", username)
    page.fill("#password", PASSWORD)
    page.click("button.primary")
    page.wait_for_load_state()


@pytest.fixture
def world(site):
    return make_world()


def test_pages_stay_light_and_fetch_nothing_from_elsewhere(site, world, page):
    sign_in(page, site, world.user)
    for name in ("sessions", "session", "loop_run", "policies"):
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
    page.goto(f"{site.url}{world.base}/sessions")
    page.click("a.name >> text=s-1")
    page.click("nav[aria-label=View] >> text=Calls")
    expect(page.locator("tbody tr >> nth=3")).to_be_visible()
    page.click("tbody tr >> nth=0 >> a.name")
    expect(page.locator('#call >> text="Arguments"')).to_have_count(1)
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    with page.expect_navigation():
        page.click("button >> text=Done")
    world.incident.refresh_from_db()
    assert world.incident.status == "done"
    context.close()


def test_connect_says_that_a_key_is_not_one_of_this_project(site, world, page):
    other = projects.create_project(Actor("ben", world.user.pk), name="Other")
    keys_by_project = {one: keys.create_key(one, "k", SYSTEM) for one in (world.project, other)}
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/connect/guides/api")
    page.get_by_text("By hand").click()
    field, foreign = page.get_by_label("Key for the snippets"), page.get_by_text("is not one of this project")
    expect(foreign).to_be_hidden()
    for project, (_, token) in keys_by_project.items():
        field.fill(token)
        expect(page.locator("pre", has_text=token).first).to_have_count(1)
        expect(foreign).to_be_visible(visible=project == other)
    keys.revoke_key(world.project, keys_by_project[world.project][0].public_id, SYSTEM)
    field.fill(keys_by_project[world.project][1])
    page.reload()
    expect(foreign).to_be_visible()
