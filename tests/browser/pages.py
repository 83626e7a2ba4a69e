"""A signed-in browser, the sizes of its window, and what axe finds on the page that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from playwright.sync_api import Page, ViewportSize

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1440, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
VIEWS: tuple[tuple[str, Literal["dark", "light"]], ...] = (
    ("wide", "light"),
    ("narrow", "dark"),
    ("wide", "dark"),
    ("narrow", "light"),
)
_LISTED_IMPACTS = ("moderate", "serious", "critical")
# A sheet of the debugger's, which the page's policy does not restrict.
WITHOUT_TRANSITIONS = """
const sheet = new CSSStyleSheet();
sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important }");
document.adoptedStyleSheets.push(sheet);
"""


def sign_in(page: Page, site: Any, user: Any) -> None:
    """Give the browser a session of this user; the sign-in page has tests of its own."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    page.context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": site.url}])


_WIDEST = """
[...document.querySelectorAll("body *")]
    .map(one => [one.getBoundingClientRect().right, `${one.closest("[class]")?.className}: ${one.outerHTML}`])
    .reduce((one, other) => (other[0] >= one[0] ? other : one), [0, ""])[1]
"""
"""The innermost of the elements that reach farthest to the right."""


def violations(page: Page) -> list[str]:
    """Return what axe calls moderate, serious or critical in the current size and theme."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE}\nundefined")  # the debugger may evaluate where the page's policy forbids it
    found = page.evaluate(
        """impacts => {
            // Rules of less impact would only cost time.
            const values = axe._audit.rules
                .filter(rule => rule.enabled && !rule.tags.includes("experimental") && impacts.includes(rule.impact))
                .map(rule => rule.id)
                .concat("target-size"); // axe leaves it out unless it is named
            return axe.run(document, { runOnly: { type: "rule", values }, resultTypes: ["violations"], preload: false });
        }""",
        _LISTED_IMPACTS,
    )
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in _LISTED_IMPACTS
        for node in one["nodes"][:3]
    ]


def complaints(page: Page, number: int = 0, *, count: int = 2, dark_by_class: bool = False) -> list[str]:
    """Return what is wrong with the page in sizes and themes: violations, and scrolling sideways.

    Parameters
    ----------
    page
        Shown in the light theme.
    number
        Of the page, in a test of many pages: the views of each begin where those of the page before end, so that what pages share
        is seen in all four.
    count
        The number of views: 2 show both sizes and both themes, 4 each size in each theme.
    dark_by_class
        The page's dark theme is a class of the document instead of a media query.
    """
    page.emulate_media(color_scheme="light")
    page.evaluate(WITHOUT_TRANSITIONS)
    found = []
    first = number * count % len(VIEWS)
    for size, theme in VIEWS[first : first + count]:
        page.set_viewport_size(SIZES[size])
        if dark_by_class:
            page.evaluate(
                "isDark => document.documentElement.classList.toggle('dark', isDark)", theme == "dark"
            )
        else:
            page.emulate_media(color_scheme=theme)
        found += [f"{size}, {theme}: {one}" for one in violations(page)]
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if too_wide > 0:
            widest = page.evaluate(_WIDEST)
            found.append(f"{size}: scrolls sideways by {too_wide} px: {widest[:160]}")
    page.emulate_media(color_scheme="light")
    return found


def noise_of(page: Page) -> list[str]:
    """Return a list that fills with the errors of the page's scripts and of its policy."""
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    return noise


class Walk:
    """The member ana of the project support in a browser, whose clicks are counted."""

    def __init__(self, page: Any, site: Any) -> None:
        self.page, self.site, self.clicks = page, site, 0
        self.noise = noise_of(page)
        sign_in(page, site, get_user_model().objects.get(username="ana"))

    def begin(self, path: str = "now") -> None:
        """Open a page of the project, from which the clicks count."""
        self.page.goto(f"{self.site.url}/p/support/{path}")
        self.clicks = 0

    def click(self, role: str, name: Any, **options: Any) -> None:
        """Click what has this role and name."""
        self.page.get_by_role(role, name=name, **options).first.click()
        self.clicks += 1
