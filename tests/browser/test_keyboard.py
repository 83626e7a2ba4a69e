"""The keys: one table binds them and writes the help; they are silent while one types, and can be switched off."""

import pytest
from django.conf import settings
from playwright.sync_api import expect

from detection.engine.scopes import PROJECT
from detection.models import AlertSilence
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.browser.pages import sign_in
from tests.console.scenes import PASSWORD, loop, make_world


@pytest.fixture
def world(site, page):
    world = make_world()
    loop(world.project, "second", tool="bash")
    sign_in(page, site, world.user)
    return world


def test_the_question_mark_lists_the_keys_which_are_letters_while_one_types(site, world, page):
    page.goto(f"{site.url}{world.base}/sessions?q=")
    page.keyboard.press("?")
    help_ = page.locator("#help")
    assert help_.is_visible()
    for words in ("Next row", "Done", "Later", "Undo", "Go to Sessions", "Show new rows"):
        assert words in help_.inner_text()
    page.keyboard.press("Escape")
    assert not help_.is_visible()
    page.keyboard.press("/")
    page.keyboard.type("gi?")
    assert page.input_value("input[name=q]") == "gi?"
    assert page.url.endswith("/sessions?q=")
    assert not help_.is_visible()


def test_keys_change_how_times_are_shown_and_go_to_a_screen(site, world, page):
    page.goto(f"{site.url}{world.base}/sessions")
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert "UTC" in page.locator("td.c-age time").first.inner_text()
    page.reload()
    assert "UTC" in page.locator("td.c-age time").first.inner_text()
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url("**/insights")


def test_rows_are_walked_selected_and_opened(site, world, page):
    page.goto(f"{site.url}{world.base}/loops")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("[data-bulk-count]").inner_text() == "1 selected"
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url("**/loops/loop_*")


def test_selected_rows_stay_while_new_ones_arrive_and_come_in_afterwards(site, world, page):
    page.goto(f"{site.url}{world.base}/loops")
    tab = page.locator("#list-tabs a", has_text="Open")
    expect(tab).to_contain_text("2")
    page.locator("[data-select-all]").check()
    page.mouse.move(5, 5)
    loop(world.project, "third", tool="grep")
    expect(tab).to_contain_text("3")  # the number is current, the rows stay
    assert page.locator("[data-rows] :checked").count() == 2
    assert page.locator("[data-bulk-count]").inner_text() == "2 selected"
    assert page.locator("[data-rows] > tr").count() == 2
    page.locator("[data-select-all]").uncheck()
    page.mouse.move(5, 5)
    expect(page.locator("[data-rows] > tr")).to_have_count(3)
    page.keyboard.press("j")
    name_ = page.evaluate("document.activeElement.textContent")
    loop(world.project, "fourth", tool="find")
    expect(tab).to_contain_text("4")
    assert page.evaluate("document.activeElement.textContent") == name_  # nothing moves under the focus


def test_typing_after_the_sign_in_has_ended_stays_on_the_page(site, world, page):
    page.goto(f"{site.url}{world.base}/policies/settings")
    page.context.clear_cookies(name="loopguard")
    page.fill("[name=set_max_repeats]", "7")
    with page.expect_response(lambda one: one.status == 401):
        page.fill("[name=note]", "slow tools")
    expect(page.locator("#toasts")).to_contain_text("You are signed out. Your input is kept")
    assert page.url.endswith("/policies/settings")
    assert page.input_value("[name=set_max_repeats]") == "7"


def test_one_key_closes_and_one_takes_it_back(site, world, page):
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    page.keyboard.press("r")
    page.wait_for_selector("text=Resolve is now Done: press d.")
    page.keyboard.press("d")
    page.wait_for_selector("text=1 loop closed")
    page.keyboard.press("u")
    page.wait_for_selector("text=1 loop restored")
    world.incident.refresh_from_db()
    assert world.incident.status == "open"


def test_one_key_puts_a_loop_off(site, world, page):
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    page.wait_for_url(f"**/loops/{world.incident.loop.public_id}?run={world.incident.public_id}")
    page.keyboard.press("l")
    page.get_by_role("button", name="For 1 hour").click()
    page.wait_for_selector("text=put off by")
    assert AlertSilence.objects.get().loop_id == world.incident.loop_id


def test_a_menu_that_a_key_opened_is_used_with_the_arrows(site, world, page):
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    page.keyboard.press("l")
    entries = page.locator("details[open] .sheet button")
    expect(entries.first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(entries.last).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(entries.nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("summary[data-key=l]")).to_be_focused()
    page.keyboard.press("l")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Reopen")).to_be_visible()


def test_keys_can_be_switched_off(site, world, page):
    page.goto(f"{site.url}/preferences")
    page.check("input[name=shortcuts][value=off]")
    page.click("button >> text=Save")
    page.goto(f"{site.url}{world.base}/sessions")
    page.keyboard.press("?")
    assert not page.locator("#help").is_visible()


def test_a_call_opens_beside_the_strip_without_leaving_the_page(site, world, page):
    page.goto(f"{site.url}{world.base}/sessions/s-1?tab=calls")
    page.evaluate("window.stays = true")
    page.click("tbody tr >> nth=0 >> a.name")
    page.wait_for_selector("#call >> text=Arguments")
    assert "call=" in page.url
    assert page.evaluate("window.stays")


def test_the_palette_finds_screens_commands_and_searches(site, world, page):
    page.goto(f"{site.url}{world.base}/incidents/{world.incident.public_id}")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("combobox", name="Search or jump")
    expect(palette).to_be_focused()
    palette.fill("done")
    expect(page.locator("#palette-list [role=option]").first).to_contain_text("Done")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1 loop closed")
    page.keyboard.press("Control+k")
    palette.fill("insights")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/insights")
    page.keyboard.press("Control+k")
    palette.fill("read_file")
    page.get_by_role("option", name="Search for “read_file”").click()
    page.wait_for_url("**/search?q=read_file")
    page.keyboard.press("Control+k")
    # The server knows what has no link on this page.
    palette.fill("invite")
    page.get_by_role("option", name="Invite a member").click()
    page.wait_for_url("**/members")
    page.keyboard.press("y")
    expect(page.locator(".toast").last).to_contain_text("Address copied.")


def test_a_draft_survives_a_lost_network_and_is_gone_once_sent(site, world, page):
    address = f"{site.url}{world.base}/incidents/{world.incident.public_id}"
    page.goto(address)
    note = page.locator("form:has(input[value=comment]) [name=note]")
    note.fill("what I found out")
    page.context.set_offline(True)
    note.evaluate("one => one.form.requestSubmit()")
    note.evaluate("one => one.form.requestSubmit()")
    offline = page.get_by_text("You are offline. Nothing was sent")
    expect(offline).to_have_count(1)
    expect(offline).to_be_in_viewport()
    assert note.evaluate("one => one.form.querySelector('.offline') !== null")
    page.context.set_offline(False)
    expect(offline).to_have_count(0)
    page.goto(f"{site.url}{world.base}/sessions")
    page.goto(address)
    expect(note).to_have_value("what I found out")
    expect(page.get_by_role("status").filter(has_text="is restored")).to_be_visible()
    note.evaluate("one => one.form.requestSubmit(one.form.querySelector('button:not([type=button])'))")
    expect(page.get_by_text("what I found out")).to_be_visible()
    page.goto(address)
    expect(note).to_have_value("")


def test_a_draft_of_a_form_that_no_server_has_answered_is_restored(site, world, page):
    address = f"{site.url}{world.base}/incidents/{world.incident.public_id}"
    page.goto(address)
    note = page.locator("form:has(input[value=comment]) [name=note]")
    note.fill("what I found out")
    send = "one => one.form.requestSubmit(one.form.querySelector('button:not([type=button])'))"
    page.route("**/loops/act", lambda route: route.abort("connectionrefused"))
    with page.expect_event("requestfailed"):
        note.evaluate(send)
    page.unroute("**/loops/act")
    page.goto(address)
    expect(note).to_have_value("what I found out")
    assert "[object" not in page.evaluate("Object.keys(sessionStorage).join()")
    # A rejection by a redirect has lost the text, too.
    note.evaluate("one => { one.form.querySelector('[name=ids]').value = 'loop_unknown'; }")
    note.evaluate(send)
    expect(page.locator(".toast.error")).to_be_visible()
    expect(note).to_have_value("what I found out")
    note.evaluate(send)
    expect(page.get_by_text("what I found out")).to_be_visible()
    page.goto(address)
    expect(note).to_have_value("")


def test_a_kept_form_lists_what_was_entered_and_not_what_was_filled_in(site, world, page):
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 7}, SYSTEM, "slow")
    page.goto(f"{site.url}{world.base}/policies/settings")
    page.get_by_label("Reason", exact=True).fill("stricter for the weekend")
    page.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Username").fill(world.user.get_username())
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("stricter for the weekend")).to_be_visible()
    expect(page.get_by_text("Limit for identical calls")).to_be_hidden()
    page.get_by_role("button", name="Send now").click()
    expect(page.get_by_text("Override saved.")).to_be_visible()
    expect(page.get_by_label("Reason", exact=True)).to_have_value("")


def test_a_restored_draft_of_a_policy_is_marked_and_compared_like_a_typed_one(site, world, page):
    page.goto(f"{site.url}{world.base}/policies/settings")
    limit = page.get_by_label("Limit for identical calls")
    limit.fill("7")
    expect(page.locator(".changes")).to_contain_text("Limit for identical calls")
    page.reload()
    expect(limit).to_have_value("7")
    expect(page.locator(".setting.edited")).to_have_count(1)
    expect(page.locator(".changes")).to_contain_text("Limit for identical calls")
    page.get_by_role("button", name="Discard").click()
    expect(limit).to_have_value("")
    expect(page.locator(".setting.edited")).to_have_count(0)
    expect(page.locator(".changes")).not_to_contain_text("Limit for identical calls")


def test_the_error_of_a_field_goes_once_the_field_is_edited(site, world, page):
    page.goto(f"{site.url}{world.base}/policies/settings")
    limit = page.get_by_label("Limit for identical calls")
    limit.fill("0")
    page.get_by_role("button", name="Save", exact=True).click()
    wrong = page.get_by_text("Must be between 2 and 1,000.", exact=True)
    expect(wrong).to_be_visible()
    expect(limit).to_have_attribute("aria-invalid", "true")
    limit.fill("4")
    expect(wrong).to_be_hidden()
    expect(limit).not_to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("Not saved.")).to_be_hidden()
    # Where the error stands above the form.
    page.goto(f"{site.url}{world.base}/settings/project")
    days = page.get_by_label("Retention in days")
    days.fill("0")
    days.press("Enter")
    expect(page.get_by_text("Not saved:")).to_be_visible()
    days.fill("30")
    expect(page.get_by_text("Not saved:")).to_be_hidden()


def test_shift_s_leads_to_stopping_everything_from_any_page(site, world, page):
    page.goto(f"{site.url}{world.base}/policies")
    page.keyboard.press("Shift+S")
    page.wait_for_url("**/contain")
    expect(page.get_by_role("heading", name="Stop everything of…")).to_be_visible()
