"""The page of settings: a tile for each part, with its present state."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.models import Role
from detection.selectors.settings_overview import SettingsOverview, settings_overview

_MANY = 1_000


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of the settings.

    Attributes
    ----------
    state
        Its present state, in a few words.
    """

    words: str
    icon: str
    url: str
    state: str


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles that belong together."""

    words: str
    tiles: list[Tile]


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the tiles. Two queries besides those of the frame."""
    return render(request, "projects/tiles.html", {"groups": _groups(request)})


def _groups(request: ProjectRequest) -> list[TileGroup]:
    project, counts = request.project, settings_overview(request.project.pk)

    def tile(words: str, icon: str, name: str, state: str) -> Tile:
        return Tile(words, icon, reverse(f"console:{name}", args=[project.slug]), state)

    agents = [
        tile("Connect", "connect", "connect", "Add an agent, see what is connected"),
        tile("Agents", "person", "agents", "Who called lately, tags, messages"),
        tile("Keys", "keys", "keys", _keys(counts)),
        tile("Gateway", "gateway", "gateway", _number(counts.backends, "backend")),
        tile(
            "Ingest",
            "ingest",
            "ingest",
            f"Requests, {_number(counts.quarantined, 'quarantined event').lower()}",
        ),
        tile("Imports", "audit", "imports", _imports(counts)),
        tile("Prices", "statistics", "prices", f"{_number(counts.prices, 'price')} of your own"),
    ]
    people = [
        tile("Alerts", "alerts", "alerts", _alerts(counts)),
        tile("Members", "person", "members", _members(counts)),
        Tile(
            "My preferences",
            "preferences",
            reverse("console:preferences"),
            "Theme, times, keys, notifications, password, second factor, sign-ins",
        ),
    ]
    retention = f"Name, retention of {_number(project.retention_days, 'day')}, redaction"
    data = [
        tile("Project", "project", "project_settings", retention),
        Tile("All projects", "project", reverse("console:projects"), "Switch, create"),
    ]
    if request.membership.allows(Role.ADMIN):
        data.append(tile("Erasure", "close", "erasures", _erasures(counts)))
    data += [
        tile("Audit", "audit", "audit", "Who changed what, and when"),
        tile("System", "system", "system", "Processes, storage, lag and version"),
    ]
    return [TileGroup("Agents in", agents), TileGroup("People and messages", people), TileGroup("Data", data)]


def _number(count: int, noun: str) -> str:
    many = f"{count:,}{'+' if count >= _MANY else ''}"
    return f"{many if count else 'No'} {noun}{'' if count == 1 else 's'}"


def _keys(counts: SettingsOverview) -> str:
    unused = f", {counts.unused_keys:,} never used" if counts.unused_keys else ""
    return _number(counts.keys, "key") + unused


def _imports(counts: SettingsOverview) -> str:
    running = f", {counts.running_imports:,} running" if counts.running_imports else ""
    return _number(counts.imports, "import") + running


def _alerts(counts: SettingsOverview) -> str:
    return f"{_number(counts.routes, 'route')}, {_number(counts.destinations, 'destination').lower()}"


def _members(counts: SettingsOverview) -> str:
    invited = f", {_number(counts.invitations, 'invitation')}" if counts.invitations else ""
    return _number(counts.members, "member") + invited


def _erasures(counts: SettingsOverview) -> str:
    if counts.open_erasures:
        return f"{_number(counts.open_erasures, 'erasure')} in progress"
    return f"Of a customer, an agent or a session; {_number(counts.erasures, 'receipt').lower()}"
