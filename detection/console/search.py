"""Search: contents of calls, results and messages, and by name everything that a person may go to.

The palette asks the same question with each key, and gets what has a name; contents are searched on the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.context_processors import NAVIGATION
from detection.console.permalinks import loop_url, session_url
from detection.console.policies.change_here import change_url
from detection.engine.fields import FIELDS
from detection.engine.scopes import PROJECT
from detection.filtering.language import FilterError, Term, Value, term, write
from detection.filtering.signatures import MAX_CHARACTERS
from detection.models import Membership, Role, Session
from detection.selectors.filters import complete, list_query
from detection.selectors.lists import LOOPS, SESSIONS
from detection.selectors.loops import list_loops
from detection.selectors.pages import BadCursor
from detection.selectors.search import SECONDS, FoundWord, Hit, search
from detection.services.redaction.redaction import Redactor
from detection.services.search.records import record_search

HITS: Final = 30
OF_A_GROUP: Final = 5
MAX_NAME_CHARACTERS: Final = 100
_TABS: Final = (
    ("calls", "Calls", ()),
    ("loops", "Loops", ("Loop",)),
    ("sessions", "Sessions", ("Session", "Agent", "Model", "Tool")),
    ("settings", "Settings", ("Setting", "Go to", "Do", "Member")),
)
"""Of the page: address, words, and the groups of names in it; the first has what is in calls and results."""
_MORE_SCREENS: Final = (
    ("loop_history", "History of runs", Role.VIEWER),
    ("connect", "Connect", Role.VIEWER),
    ("agents", "Agents", Role.VIEWER),
    ("keys", "Keys", Role.VIEWER),
    ("gateway", "Gateway", Role.VIEWER),
    ("ingest", "Ingest", Role.VIEWER),
    ("alerts", "Alerts", Role.VIEWER),
    ("members", "Members", Role.VIEWER),
    ("project_settings", "Project", Role.VIEWER),
    ("audit", "Audit", Role.VIEWER),
    ("system", "System", Role.VIEWER),
    ("message_templates", "Message templates", Role.VIEWER),
    ("what_ifs", "What-ifs", Role.VIEWER),
    ("policy_settings", "All settings", Role.VIEWER),
    ("tool_rules", "Tool rules", Role.VIEWER),
    ("policy_history", "History of policies", Role.VIEWER),
    ("gateway_traffic", "Traffic of the gateway", Role.VIEWER),
    ("prices", "Prices of models", Role.VIEWER),
    ("imports", "Imports of past runs", Role.VIEWER),
    ("quarantine", "Quarantined events", Role.VIEWER),
    ("erasures", "Erasure", Role.ADMIN),
)
_ACTIONS: Final = (
    ("connect", "Connect an agent", Role.VIEWER),
    ("held", "Answer held calls", Role.OPERATOR),
    ("keys", "Create a key", Role.ADMIN),
    ("members", "Invite a member", Role.ADMIN),
    ("new_alert_route", "Add an alert route", Role.ADMIN),
    ("what_ifs", "Try a change on history", Role.VIEWER),
    ("prices", "Set the price of a model", Role.ADMIN),
    ("erasures", "Erase data of a customer, session or agent", Role.ADMIN),
)
"""Pages on which something is done, by what is done there, and the role that it takes."""


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """Somewhere to go."""

    group: str
    words: str
    url: str


@never_cache
@in_project()
@require_safe
def palette(request: ProjectRequest) -> HttpResponse:
    """Return what a person may go to by name."""
    text = request.GET.get("q", "").strip()[:MAX_NAME_CHARACTERS]
    return JsonResponse({"items": [asdict(entry) for entry in _entries(request, text)]})


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the contents that have the words, and in further tabs what has them in its name."""
    text, cursor = request.GET.get("q", "").strip(), request.GET.get("cursor", "")
    context: dict[str, object] = {"q": text, "max_characters": MAX_CHARACTERS}
    if text:
        entries = [*_entries(request, text)] if len(text) <= MAX_NAME_CHARACTERS else []
        chosen = next((one for one in _TABS if one[0] == request.GET.get("in")), _TABS[0])
        context["tabs"] = [
            (
                name,
                words,
                sum(entry.group in groups for entry in entries) if groups else None,
                name == chosen[0],
            )
            for name, words, groups in _TABS
        ]
        if chosen[2]:
            context["entries"] = [entry for entry in entries if entry.group in chosen[2]]
            return render(request, "search/page.html", context)
        try:
            found = search(request.project.pk, text, cursor, HITS, SECONDS)
        except FilterError as error:
            context["error"] = error.detail
        except BadCursor:
            raise Http404 from None
        else:
            if not cursor:
                record_search(request.project.pk, actor_of(request), len(found.items))
            context |= {"results": found, "hits": [_shown(request.project.slug, hit) for hit in found.items]}
    return render(request, "search/page.html", context)


def _shown(project: str, hit: Hit) -> dict[str, object]:
    """Return a hit with its address and its excerpt in parts."""
    url = session_url(project, hit.session)
    if hit.call:
        url += f"{'&' if '?' in url else '?'}call={hit.seq}"
    return asdict(hit) | {"url": url, "parts": [*_in_parts(hit.excerpt, hit.marks)]}


def _in_parts(text: str, marks: Sequence[FoundWord]) -> Iterator[tuple[str, bool]]:
    """Yield an excerpt in parts, each with whether it is a found word."""
    at = 0
    for mark in marks:
        yield text[at : mark.start], False
        yield text[mark.start : mark.end], True
        at = mark.end
    yield text[at:], False


def _entries(request: ProjectRequest, text: str) -> Iterator[PaletteEntry]:
    """Yield at most `OF_A_GROUP` entries of each group; nothing without words. Seven small queries."""
    words = text.lower().split()
    if not words or "\x00" in text:
        return
    for group, all_of_it in (
        ("Go to", _screens(request)),
        ("Do", _pages(request, _ACTIONS)),
        ("Setting", _settings(request)),
        ("Member", _members(request)),
    ):
        fitting = (one for one in all_of_it if all(word in one[0].lower() for word in words))
        yield from (
            PaletteEntry(group, name, url) for (name, url), _ in zip(fitting, range(OF_A_GROUP), strict=False)
        )
    yield from _names(request, text)


def _pages(request: ProjectRequest, pages: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    for name, words, role in pages:
        if request.membership.allows(role):
            yield words, reverse(f"console:{name}", args=[request.project.slug])


def _screens(request: ProjectRequest) -> Iterator[tuple[str, str]]:
    of_navigation = [(name, words, Role.VIEWER) for name, words, *_ in NAVIGATION]
    yield from _pages(request, (*of_navigation, *_MORE_SCREENS))
    yield "Account", reverse("console:account")
    yield "My preferences", reverse("console:preferences")
    yield "API reference, docs", reverse("api:openapi-view")


def _settings(request: ProjectRequest) -> Iterator[tuple[str, str]]:
    slug = request.project.slug
    return (
        (f"{one.label} ({one.name})", change_url(slug, one.name, str(PROJECT))) for one in FIELDS.values()
    )


def _members(request: ProjectRequest) -> Iterator[tuple[str, str]]:
    url = reverse("console:members", args=[request.project.slug])
    rows = Membership.objects.filter(project_id=request.project.pk).order_by("user__username")
    return ((name, url) for name in rows.values_list("user__username", flat=True)[:1_000])


def _names(request: ProjectRequest, text: str) -> Iterator[PaletteEntry]:
    """Yield agents, models, tools, sessions and loops."""
    project = request.project
    text = Redactor.of_project(project).name(text)
    sessions = Session.objects.filter(project_id=project.pk)
    live = reverse("console:sessions", args=[project.slug])
    for field in ("agent", "model", "tool"):
        for name in complete(SESSIONS, sessions, field, text)[:OF_A_GROUP]:
            url = f"{live}?{urlencode({'q': write([term(field, name)])})}"
            yield PaletteEntry(field.capitalize(), name, url)
    named = sessions.filter(external_id__icontains=text).order_by("-last_event_at")
    for name in named.values_list("external_id", flat=True)[:OF_A_GROUP]:
        yield PaletteEntry("Session", name, session_url(project.slug, name))
    query = list_query(LOOPS, terms=(Term("tool", (Value(f"*{text}*"),)),))
    for row in list_loops(project.pk, query, "", OF_A_GROUP).items:
        yield PaletteEntry("Loop", row.title, loop_url(project.slug, row.public_id))
