"""The administration in a real browser, both themes, wide and narrow: nothing serious for axe, no violation of the policy."""

import pytest
from django.contrib.auth.models import Group
from playwright.sync_api import Page

from detection.models import ApiKey, Override, Project, ToolOverride
from tests.admin.records import make_records
from tests.browser.test_screens import SIZES, sign_in, troubles
from tests.support.http_receiver import receiving

# Django's SelectFilter2.js (5.2) gives the icon beside the filter of a two-column list an aria-label, which a span without a role
# may not have. The input beside it has a name of its own, so nothing is lost to a reader of the screen.
NOT_OURS = (
    'aria-prohibited-attr: <span class="help-tooltip search-label-icon" aria-label="Type into this box',
)


@pytest.fixture
def records(site, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as receiver:
        world, rows = make_records(receiver)
    world.user.is_staff = world.user.is_superuser = True
    world.user.save()
    rows["session"] = world.session
    for model in (Override, ToolOverride, ApiKey, Project):
        rows[model._meta.model_name] = model.objects.order_by("pk").last()
    return world, rows


def pages_of(world, rows) -> dict[str, str]:
    """Every kind of page of the administration by name."""
    detection, auth = "/admin/detection", "/admin/auth"
    found = {"index": "/admin/"}
    for name, row in rows.items():
        found[f"{name} list"] = f"{detection}/{name}/"
        found[f"{name} page"] = f"{detection}/{name}/{row.pk}/change/"
    for name in ("override", "tooloverride"):
        found[f"{name} deleting"] = f"{detection}/{name}/{rows[name].pk}/delete/"
    for name in ("override", "tooloverride", "apikey", "project"):
        found[f"{name} adding"] = f"{detection}/{name}/add/"
    group = Group.objects.create(name="operators")
    return found | {
        "users": f"{auth}/user/",
        "user": f"{auth}/user/{world.user.pk}/change/",
        "user adding": f"{auth}/user/add/",
        "groups": f"{auth}/group/",
        "group": f"{auth}/group/{group.pk}/change/",
    }


def complaints(page: Page) -> list[str]:
    """What axe calls serious or critical in both sizes, as far as it is ours, and whether the page is too wide."""
    found = []
    for size in SIZES.values():
        page.set_viewport_size(size)
        found += [one for one in troubles(page) if not one.startswith(NOT_OURS)]
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            found.append(f"scrolls sideways by {too_wide} px at {size['width']}")
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_for_people_with_other_senses(site, records, page, theme):
    world, rows = records
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.emulate_media(color_scheme=theme)
    sign_in(page, site, world.user.get_username())
    told = {}
    for name, url in pages_of(world, rows).items():
        answer = page.goto(site.url + url)
        assert answer is not None
        assert answer.status == 200, name
        assert ("dark" in (page.get_attribute("html", "class") or "")) == (theme == "dark"), name
        told[name] = complaints(page)
    assert {name: found for name, found in told.items() if found} == {}
    assert noise == []


def test_deleting_a_strict_override_is_refused_until_a_reason_is_typed(site, records, page):
    world, _ = records
    stored = Override.objects.get(project=world.project, backend="asking")
    sign_in(page, site, world.user.get_username())
    page.goto(f"{site.url}/admin/detection/override/{stored.pk}/delete/")
    page.get_by_role("button", name="Yes, I’m sure").click()
    page.get_by_text("This weakens detection").wait_for()
    assert Override.objects.filter(pk=stored.pk).exists()
    page.get_by_label("Note").fill("the tools are mended")
    page.get_by_role("button", name="Yes, I’m sure").click()
    page.get_by_text("deleted successfully").wait_for()
    assert not Override.objects.filter(pk=stored.pk).exists()
