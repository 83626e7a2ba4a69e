"""The filter in a browser: completion by keyboard, chips, and what was typed stays."""

import pytest
from playwright.sync_api import expect

from tests.browser.pages import sign_in
from tests.console.scenes import loop, make_world


@pytest.fixture
def world(site, page):
    world = make_world()
    loop(world.project, "second", tool="bash", agent="the coder")
    sign_in(page, site, world.user)
    return world


def test_a_filter_is_completed_by_keyboard_applied_and_removed_by_its_chip(site, world, page):
    page.goto(f"{site.url}{world.base}/loops/history?q=")
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Filter")
    box.press_sequentially("ag")
    page.get_by_role("option", name="agent:").wait_for()
    box.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == "filter-option-0"
    box.press("Enter")
    page.get_by_role("option", name="the coder").wait_for()
    box.press("Escape")
    assert page.locator("#filter-options").is_hidden()
    assert box.input_value() == "agent:"
    box.press_sequentially("co")
    page.get_by_role("option", name="the coder").click()
    assert box.input_value() == 'agent:"the coder" '
    box.fill("detector:cy")
    page.get_by_role("option", name="cycle").click()
    assert box.input_value() == "detector:cycle "
    box.fill('agent:"the coder" ')
    box.press_sequentially("-cyc")  # a value without its field
    page.get_by_role("option", name="detector:cycle").wait_for()
    box.press("ArrowDown")
    box.press("Enter")
    box.press("Enter")
    page.wait_for_url("**/loops/history?q=agent*")
    assert page.locator("[data-rows] > tr").count() == 1
    page.get_by_role("link", name='Remove agent:"the coder"').click()
    page.wait_for_url("**/loops/history?q=-detector%3Acycle")
    assert page.locator("[data-rows] > tr").count() == 2
    box.fill("-detector:cycle bash")
    page.locator("details.range > summary").click()
    page.get_by_label("From").fill("2026-01-01T00:00")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**range=*")
    assert box.input_value() == "-detector:cycle bash"
    assert page.locator("[data-rows] > tr").count() == 1


def test_a_value_of_a_row_is_a_filter_by_mouse_and_keyboard_and_the_rows_own_link_stays(site, world, page):
    page.goto(f"{site.url}{world.base}/loops/history?q=")
    page.locator("#filter").fill("-detector:cycle")  # typed, not applied
    page.locator("[data-rows]").get_by_role("button", name="the coder").click()
    page.wait_for_url("**/loops/history?q=-detector%3Acycle+agent*")
    assert page.get_by_role("link", name='Remove agent:"the coder"').is_visible()
    assert page.locator("[data-rows] > tr").count() == 1
    page.get_by_role("link", name="Clear filters").click()
    page.locator("[data-rows] > tr").nth(1).wait_for()
    page.locator("[data-rows]").get_by_role("button", name="search_web").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**tool%3Asearch_web*")
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url("**/loops/loop_*")


def test_the_numbers_of_tabs_follow_the_rows_and_a_tab_keeps_the_focus(site, world, page):
    page.goto(f"{site.url}{world.base}/loops?q=")
    page.locator("[data-rows] > tr").nth(1).wait_for()
    page.locator("#tab-open").focus()
    loop(world.project, "third", tool="grep", agent="the coder")
    page.locator("#loop-list").dispatch_event("refresh")
    page.locator("[data-rows] > tr").nth(2).wait_for()
    assert page.locator("#tab-open .n").inner_text() == "3"
    assert page.evaluate("document.activeElement.id") == "tab-open"


def test_on_a_narrow_screen_the_current_tab_is_in_sight(site, world, page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}{world.base}/loops/history")
    expect(page.locator("#tab-history")).to_be_in_viewport(ratio=1)
    page.goto(f"{site.url}{world.base}/loops")
    expect(page.locator("#tab-open")).to_be_in_viewport(ratio=1)
