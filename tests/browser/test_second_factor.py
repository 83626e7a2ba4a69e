"""Setting up a second factor and signing in with it, by keyboard alone, on pages that are accessible in every view."""

import base64

from django_otp.oath import totp
from playwright.sync_api import expect

from tests.browser.pages import complaints, noise_of
from tests.console.scenes import PASSWORD
from tests.support.projects import make_member, make_project


def type_and_send(page, label, text):
    page.get_by_label(label, exact=True).focus()
    page.keyboard.type(text)
    with page.expect_navigation():
        page.keyboard.press("Enter")


def sign_in(page, site):
    page.goto(f"{site.url}/sign-in")
    page.get_by_label("Username").fill("ana")
    type_and_send(page, "Password", PASSWORD)


def test_a_second_factor_is_set_up_and_used_by_keyboard(site, page):
    make_member(make_project(), username="ana")
    noise = noise_of(page)
    sign_in(page, site)
    page.goto(f"{site.url}/account")
    page.get_by_role("link", name="Set up second factor").press("Enter")
    type_and_send(page, "Current password", PASSWORD)
    assert complaints(page) == []
    drawn = page.get_by_role("img", name="QR code with the key below")
    assert drawn.evaluate("image => image.complete && image.naturalWidth > 100")
    key = base64.b32decode(page.locator("#text-key").inner_text().replace(" ", ""))
    expect(page.get_by_label("Code", exact=True)).to_be_focused()
    type_and_send(page, "Code", f"{totp(key):06}")
    codes = page.locator("#recovery-codes").inner_text().split()
    assert len(codes) == 10
    assert complaints(page) == []
    page.goto(f"{site.url}/account/second-factor")
    assert complaints(page) == []

    page.context.clear_cookies()
    sign_in(page, site)
    expect(page.get_by_role("heading", name="Enter your code")).to_be_visible()
    assert complaints(page) == []
    type_and_send(page, "Code", codes[0])
    page.goto(f"{site.url}/account")
    expect(page.get_by_text("9 recovery codes left.")).to_be_visible()
    assert noise == []
