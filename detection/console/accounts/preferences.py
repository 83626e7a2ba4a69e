"""The Preferences page: theme, time format and shortcuts, stored in one cookie, so that the server can render them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import UTC, tzinfo
from functools import cache
from urllib.parse import parse_qsl, unquote, urlencode
from zoneinfo import ZoneInfo, available_timezones

from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from detection.console.access import next_page, own_page

COOKIE = "loopguard-preferences"
ZONE_COOKIE = "loopguard-zone"
"""The time zone of the browser, written by ``times.js``."""
CHOICES = {
    "theme": (("system", "System"), ("light", "Light"), ("dark", "Dark")),
    "time": (
        ("relative", "Relative, like “3 min ago”"),
        ("local", "Local time of this browser"),
        ("utc", "UTC"),
    ),
    "shortcuts": (("on", "On"), ("off", "Off")),
    "notifications": (("on", "On"), ("off", "Off")),
    "setup": (("shown", "Shown"), ("hidden", "Hidden")),
}
TITLES = {
    "theme": "Theme",
    "time": "Times",
    "shortcuts": "Single-key shortcuts",
    "notifications": "Notifications",
    "setup": "First steps",
}
HELP = {
    "time": "Hover over a time to see it in UTC.",
    "shortcuts": "Keys like j, k and r. Press ? on any page for the list.",
    "notifications": "The browser notifies you of held calls while LoopGuard is open in another tab or window.",
    "setup": "The list “Set up” in the navigation, until all six steps are done.",
}


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences of a browser."""

    theme: str = "system"
    time: str = "relative"
    shortcuts: str = "on"
    notifications: str = "off"
    setup: str = "shown"


def of(request: HttpRequest) -> Preferences:
    """Read the cookie; unknown values fall back to the defaults."""
    stored = dict(parse_qsl(request.COOKIES.get(COOKIE, "")[:200]))
    known = {
        field.name: stored[field.name]
        for field in fields(Preferences)
        if stored.get(field.name) in dict(CHOICES[field.name])
    }
    return Preferences(**known)


def zone(request: HttpRequest) -> tzinfo:
    """Return the zone in which a person reads and writes times; UTC where it is preferred or unknown."""
    name = unquote(request.COOKIES.get(ZONE_COOKIE, ""))
    is_chosen = of(request).time != "utc" and name in _zone_names()
    return ZoneInfo(name) if is_chosen else UTC


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())


@own_page
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show or save the preferences."""
    if request.method == "POST":
        given = {name: request.POST.get(name, "") for name in CHOICES}
        chosen = {**asdict(of(request)), **{k: v for k, v in given.items() if v in dict(CHOICES[k])}}
        back = next_page(request, request.path)
        answer = HttpResponseRedirect(back)
        answer.set_cookie(
            COOKIE, urlencode(chosen), max_age=365 * 24 * 3600, secure=request.is_secure(), samesite="Lax"
        )
        if back == request.path:
            messages.success(request, "Preferences saved in this browser.")
        return answer
    current = of(request)
    options = [
        (name, TITLES[name], HELP.get(name, ""), getattr(current, name), CHOICES[name]) for name in CHOICES
    ]
    return render(request, "accounts/preferences.html", {"options": options})


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out; the sockets of the login are closed."""
    logout(request)
    return redirect("console:sign_in")
