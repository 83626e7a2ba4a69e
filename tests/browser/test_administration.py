"""The administration in a real browser: accessible in both sizes and themes, strict in its policy."""

import gzip
import re

import pytest
from django.contrib.auth.models import Group
from playwright.sync_api import expect

from detection.engine.scopes import Scope
from detection.models import ApiKey, Override, Project, ToolOverride
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.admin.records import make_records
from tests.browser.pages import SIZES, complaints, noise_of, sign_in
from tests.console.scenes import ask
from tests.support.http_receiver import receiving

MAX_SCRIPT_BYTES, MAX_HEIGHT = 100_000, 3_000


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


# The pages of all models have the templates of lists and forms in common: the suite sees a fifth of them.
@pytest.mark.parametrize(
    ("first", "step", "views"),
    [
        (0, 5, 1),
        pytest.param(0, 2, 4, marks=pytest.mark.long),
        pytest.param(1, 2, 4, marks=pytest.mark.long),
    ],
)
def test_no_page_has_serious_accessibility_problems(site, records, page, first, step, views):
    noise = noise_of(page)
    sign_in(page, site, records[0].user)
    found = {}
    for number, (name, url) in enumerate([*pages_of(*records).items()][first::step]):
        answer = page.goto(site.url + url)
        assert answer is not None
        assert answer.status == 200, name
        found[name] = complaints(page, number, count=views, dark_by_class=True)
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert noise == []


def test_the_administration_follows_the_theme_of_the_system(site, records, page):
    sign_in(page, site, records[0].user)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.goto(f"{site.url}/admin/")
        assert ("dark" in (page.get_attribute("html", "class") or "")) == (theme == "dark")


def test_pages_stay_light_and_short_on_a_phone(site, records, page):
    world, _ = records
    sign_in(page, site, world.user)
    page.goto(f"{site.url}/admin/")
    scripts = page.evaluate("[...document.scripts].map(one => one.src).filter(Boolean)")
    weight = sum(len(gzip.compress(page.request.get(url).body())) for url in scripts)
    assert weight < MAX_SCRIPT_BYTES
    for number in range(30):
        ask(world.project, f"long-{number}", 0, agent="an-agent-with-a-name")
    page.set_viewport_size(SIZES["narrow"])
    row = overrides.save_override(
        world.project.pk, Scope.of(agent="a"), {"max_repeats": 3, "cycle_min_laps": 2}, SYSTEM
    )
    for url in ("session/", f"override/{row.pk}/change/"):
        page.goto(f"{site.url}/admin/detection/{url}")
        assert page.evaluate("document.documentElement.scrollHeight") < MAX_HEIGHT, url
    expect(page.get_by_label("Limit for identical calls")).to_be_visible()
    save, delete = (
        page.locator("#submit-row").get_by_text(words)
        for words in (re.compile("^\\s*Save\\s*$"), "Delete override")
    )
    assert save.bounding_box()["y"] < delete.bounding_box()["y"]


def test_deleting_a_strict_override_requires_a_reason(site, records, page):
    world, _ = records
    stored = Override.objects.get(project=world.project, backend="asking")
    sign_in(page, site, world.user)
    page.goto(f"{site.url}/admin/detection/override/{stored.pk}/delete/")
    page.get_by_role("button", name="Yes, I’m sure").click()
    page.get_by_text("This weakens detection").wait_for()
    assert Override.objects.filter(pk=stored.pk).exists()
    page.get_by_label("Reason").fill("the tools are mended")
    page.get_by_role("button", name="Yes, I’m sure").click()
    page.get_by_text("deleted successfully").wait_for()
    assert not Override.objects.filter(pk=stored.pk).exists()


@pytest.mark.promise("SEC-09")
def test_the_scripts_of_the_theme_work_without_eval(site, records, page):
    """Menus, filters, tabs, sorting and the search use the build of Alpine that the policy allows."""
    world, _ = records
    noise = noise_of(page)
    sign_in(page, site, world.user)
    answer = page.goto(f"{site.url}/admin/detection/session/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe-eval" not in policy
    assert "script-src 'self';" in policy
    page.keyboard.press("Control+k")
    search = page.locator("[x-ref=searchInputCommand]")
    expect(search).to_be_focused()
    search.type("keys")
    expect(page.locator("#command-results-list a").first).to_be_visible()
    search.press("Escape")
    search.press("Escape")
    expect(search).to_be_hidden()
    toggle = page.locator("[x-on\\:click='sidebarDesktopOpen = !sidebarDesktopOpen']")
    navigation = page.locator("#nav-sidebar")
    expect(navigation).to_be_visible()
    toggle.click()
    expect(navigation).to_be_hidden()
    page.reload()
    expect(navigation).to_be_hidden()
    toggle.click()
    expect(navigation).to_be_visible()
    page.locator("thead a").first.click()
    page.wait_for_url("**/?o=*")
    page.goto(f"{site.url}/admin/detection/project/{world.project.pk}/change/")
    page.get_by_label("Retention days").fill("45")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("was changed successfully").wait_for()
    assert noise == []
