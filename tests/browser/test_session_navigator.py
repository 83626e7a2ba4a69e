"""The navigator in a browser: zoom by dragging and by keyboard, and the same windows without scripts."""

from playwright.sync_api import Page, expect

from tests.browser.pages import noise_of, sign_in, violations
from tests.console.scenes import make_world
from tests.support.runs import make_long_run

CALLS = 10_000


def drag(page: Page, start: float, end: float) -> None:
    """Drag over a part of the map."""
    box = page.locator("#run-map svg.map").bounding_box()
    assert box
    y = box["y"] + 40
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=3)
    page.mouse.up()


def test_a_run_is_walked_by_mouse_and_keyboard_and_without_scripts(site, page, browser):
    world = make_world()
    make_long_run(world.project, CALLS)
    noise = noise_of(page)
    sign_in(page, site, world.user)
    address = f"{site.url}{world.base}/sessions/long"
    shown = page.locator("#run-count")
    page.goto(address)
    expect(shown).to_have_text("Calls 9,901 to 10,000 of 10,000")
    drag(page, 0.25, 0.5)
    page.wait_for_url("**calls=*")
    expect(shown).to_contain_text("Calls 2,5")
    page.keyboard.press("n")
    expect(shown).to_have_text("Calls 3,991 to 4,490 of 10,000")
    assert violations(page) == []
    page.keyboard.press("-")
    expect(shown).to_have_text("Calls 3,741 to 4,740 of 10,000")
    page.focus("#run-slider")
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_text("Calls 4,241 to 5,240 of 10,000")
    expect(page.locator("#run-slider")).to_be_focused()
    page.goto(f"{address}?from=101&calls=50")
    page.click(".tree summary")
    page.click(".tree a >> nth=2")
    expect(page.locator("#call h2")).to_have_text("Call 103")
    page.wait_for_url("**call=205")
    page.keyboard.press("]")
    expect(page.locator("#call h2")).to_have_text("Call 104")
    assert noise == []

    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    sign_in(plain, site, world.user)
    plain.goto(address)
    plain.click("#run-map a >> nth=0", position={"x": 4, "y": 20})
    expect(plain.locator("#run-count")).to_have_text("Calls 55 to 154 of 10,000")
    plain.fill("input[name=q]", "needle")
    plain.press("input[name=q]", "Enter")
    expect(plain.locator("#call mark")).to_have_text("Needle")
    context.close()


def test_a_finger_zooms_by_dragging_and_scrolls_up_and_down(site, browser):
    world = make_world()
    make_long_run(world.project, 1_000)
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    sign_in(page, site, world.user)
    page.goto(f"{site.url}{world.base}/sessions/long")
    page.locator("#run-map").scroll_into_view_if_needed()
    box = page.locator("#run-map svg.map").bounding_box()
    assert box
    wire = context.new_cdp_session(page)

    def swipe(points):
        for kind, (x, y) in zip(("touchStart", *["touchMove"] * (len(points) - 1)), points, strict=True):
            wire.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
        wire.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    x, y = box["x"] + box["width"] * 0.25, box["y"] + 40
    swipe([(x, y), (x + 20, y), (x + 50, y), (box["x"] + box["width"] * 0.5, y)])
    page.wait_for_url("**calls=*")
    expect(page.locator("#run-count")).to_contain_text(" of 1,000")
    zoomed = page.url
    swipe([(x, y), (x, y - 30), (x, y - 90), (x, y - 150)])
    page.wait_for_function("scrollY > 0")
    assert page.url == zoomed
    context.close()
