"""Template context of every console page: navigation with counts, preferences, projects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from detection.console import access
from detection.console.access import ProjectRequest
from detection.console.accounts import preferences
from detection.console.now import attention
from detection.console.now.attention import Badge
from detection.console.recent_cache import RecentCache
from detection.models import Role
from detection.selectors.containments import containments_of
from detection.selectors.setup import SetUp, set_up_of
from detection.services.storage.disk_space import disk_monitor

NAVIGATION = (
    ("now", "Now", "live", "n"),
    ("loops", "Loops", "loops", "l"),
    ("sessions", "Sessions", "sessions", "s"),
    ("insights", "Insights", "statistics", "i"),
    ("policies", "Policies", "policies", "p"),
    ("settings", "Settings", "preferences", "e"),
)
"""URL name, words, icon, second key after g. Narrow screens have them in a bar at the bottom."""

COUNTED = {
    "now": "Sessions looping now",
    "loops": "Open loops",
}
"""What the numbers of the entries count."""

_STEPS_SECONDS = 10.0
"""How long the first steps are not looked up again; a page of Connect always does. A judgement."""
_steps_cache: RecentCache[tuple[float, SetUp]] = RecentCache(256)

SECTION_OF = {
    "reports": "insights",
    **dict.fromkeys(("loop", "loop_history", "loop_fine", "loops_fine"), "loops"),
    **dict.fromkeys(("session", "session_by_name", "held"), "sessions"),
    **dict.fromkeys(
        (
            "change_setting",
            "verify_setting",
            "policy_settings",
            "import_policies",
            "tool_rules",
            "policy_history",
            "message_templates",
            "what_ifs",
            "what_if",
            "create_what_if",
        ),
        "policies",
    ),
    **dict.fromkeys(
        (
            *("alerts", "alerts_act", "alert_route", "new_alert_route", "notification"),
            *("gateway", "gateway_act", "gateway_traffic", "prices", "save_price"),
            *("connect", "connect_base_url", "connect_guide", "imports", "import"),
            *("project_settings", "members", "erasures", "containments", "agents"),
            *("ingest", "quarantine", "system", "keys", "audit"),
        ),
        "settings",
    ),
}
"""The entry that is current on a page that has none of its own."""


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """One line of the navigation."""

    name: str
    words: str
    icon: str
    key: str
    url: str
    is_current: bool
    badge: Badge | None

    @property
    def counted(self) -> str:
        """What the number of the entry counts."""
        return COUNTED.get(self.name, "")


def console(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the layout; costs at most seven small queries, and none where the layout is not used."""
    chosen = preferences.of(request)
    context: dict[str, Any] = {"preferences": chosen, "time_mode": chosen.time, "theme": chosen.theme}
    project = getattr(request, "project", None)
    if project is None:
        return context | {"announcing": SimpleLazyObject(partial(_announcing, request))}
    match = request.resolver_match
    page = (match.url_name or "") if match else ""
    membership = cast("ProjectRequest", request).membership
    badges: Any = SimpleLazyObject(partial(attention.badges, project.pk))
    context |= {
        "project": project,
        "membership": membership,
        "page": page,
        "may_operate": membership.allows(Role.OPERATOR),
        "may_administer": membership.allows(Role.ADMIN),
        "live_url": live_url(project.slug),
        "badges": badges,
        "held": SimpleLazyObject(
            lambda: attention.held_calls_of_page(cast("ProjectRequest", request), badges["approvals"].count)
        ),
        "first_steps": SimpleLazyObject(partial(_first_steps, chosen, project.pk)),
        "navigation": SimpleLazyObject(partial(_navigation, project, page, badges)),
        "projects": SimpleLazyObject(partial(_projects, request, project.pk)),
        "storage_is_full": disk_monitor.is_full(),
        "contained": SimpleLazyObject(lambda: containments_of(project).rules),
    }
    return context


def _first_steps(chosen: preferences.Preferences, project_id: int) -> SetUp | None:
    """Return the first steps while they are shown: none once all are done; looked up every ten seconds."""
    if chosen.setup == "hidden":
        return None
    known = _steps_cache.get((project_id,))
    if known is None or (known[0] < time.monotonic() and known[1].done < known[1].total):
        known = (time.monotonic() + _STEPS_SECONDS, set_up_of(project_id))
        _steps_cache.put((project_id,), known)
    return known[1] if known[1].done < known[1].total else None


def _announcing(request: HttpRequest) -> dict[str, Any] | None:
    """Return the project by which a page of the administration announces held calls, and its socket."""
    membership = access.announcing(request)
    if membership is None:
        return None
    return {"project": membership.project, "live_url": live_url(membership.project.slug)}


def live_url(slug: str) -> str:
    """Return the address of a project's socket."""
    parts = urlsplit(settings.LIVE_URL)
    return f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}/ws/p/{slug}/"


def _navigation(project: Any, page: str, badges: Mapping[str, Badge]) -> list[NavigationItem]:
    section = SECTION_OF.get(page, page)
    return [
        NavigationItem(
            name,
            words,
            icon,
            key,
            reverse(f"console:{name}", args=[project.slug]),
            name == section,
            badges.get(name) if name in COUNTED else None,
        )
        for name, words, icon, key in NAVIGATION
    ]


def _projects(request: HttpRequest, current: int) -> list[Any]:
    """Return the projects to choose from: the current one, and those that are not archived."""
    return [row.project for row in access.memberships(request, current)]
