"""The page *Stop everything of…*: what a containment would reach, those in force, and lifting them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse
from django.http.request import QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from detection import clock
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.models import Containment, ContainmentReaction, ContainmentScope, Role
from detection.models.containments import WITHOUT_VALUE
from detection.selectors.containments import describe, list_containments
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.errors import Conflict, ServiceError

MAX_SHOWN = 50
ENDS = (
    ("", "Until it is lifted"),
    ("15", "15 minutes"),
    ("60", "1 hour"),
    ("480", "8 hours"),
    ("1440", "1 day"),
)
_LIFTED = "Lifted. Calls are judged again."


@dataclass(frozen=True, slots=True)
class ContainmentLine:
    """A containment as the page lists it."""

    row: Containment
    words: str
    may_lift: bool


@never_cache
@in_project(write_role=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show what a containment would reach and those there are; create or lift one."""
    given = request.POST if request.method == "POST" else request.GET
    error: ServiceError | None = None
    preview = None
    try:
        if request.method == "POST":
            return _act(request)
        if given.get("scope"):
            preview = containments.preview(_project_of(request, given), _wanted(given))
    except ServiceError as problem:
        error = problem
    known = list_containments(request.project.pk, limit=MAX_SHOWN, is_in_force=True)
    past = list_containments(request.project.pk, limit=MAX_SHOWN, is_in_force=False)
    scopes = [
        one for one in ContainmentScope.choices if one[0] != ContainmentScope.SERVER or request.user.is_staff
    ]
    context = {
        "given": given,
        "error": error,
        "preview": preview,
        "preview_reach": preview and _reached(preview),
        "preview_words": preview and describe(preview.scope, preview.value, preview.tool),
        "button": preview and _button(preview),
        "scopes": scopes,
        "reactions": ContainmentReaction.choices,
        "ends": ENDS,
        "in_force": [_line(request, row) for row in known],
        "past": [_line(request, row) for row in past],
    }
    return render(request, "now/contain.html", context, status=error.status if error else 200)


@never_cache
@in_project()
@require_safe
def line(request: ProjectRequest) -> HttpResponse:
    """Show the line that all pages have while something is contained; open pages fetch it again after a hint."""
    return render(request, "now/_contained.html")


def _act(request: ProjectRequest) -> HttpResponse:
    given = request.POST
    if lifted := given.get("lift"):
        row = Containment.objects.filter(public_id=lifted).first()
        is_of_server = row is not None and row.project_id is None
        project_id = None if is_of_server and request.user.is_staff else request.project.pk
        with suppress(Conflict):  # another person has lifted it, or its time is over
            containments.lift(project_id, lifted, actor_of(request))
        messages.success(request, _LIFTED)
    else:
        row = containments.contain(_project_of(request, given), _wanted(given), actor_of(request))
        messages.success(
            request, f"In force for {describe(row.scope, row.value, row.tool)}: {_reached(row)}."
        )
    return redirect("console:containments", request.project.slug)


def _project_of(request: ProjectRequest, given: QueryDict) -> int | None:
    """Return the project that is contained; None for the server, which only staff may."""
    is_server = given.get("scope") == ContainmentScope.SERVER and request.user.is_staff
    return None if is_server else request.project.pk


def _wanted(given: QueryDict) -> Wanted:
    """Return what the form asks for, without what it hides for the chosen scope."""
    scope = given.get("scope", "")
    minutes = given.get("minutes", "")
    is_known = any(minutes == value for value, _ in ENDS)
    until = clock.now() + timedelta(minutes=int(minutes)) if minutes and is_known else None
    return Wanted(
        scope,
        "" if scope in WITHOUT_VALUE else given.get("value", ""),
        given.get("reaction", ""),
        given.get("tool", "") if scope == ContainmentScope.AGENT_TOOL else "",
        given.get("reason", ""),
        until,
        include_new=given.get("existing_only") != "yes",
    )


def _line(request: ProjectRequest, row: Containment) -> ContainmentLine:
    may_lift = row.project_id is not None or request.user.is_staff
    return ContainmentLine(row, describe(row.scope, row.value, row.tool), may_lift)


def _reached(row: Containment) -> str:
    """Return what a containment reaches, in words, without what there is none of."""
    counts = (
        (row.can_stop, "can be stopped"),
        (row.can_block, "can be blocked"),
        (row.watch_only, "only watched, where nothing enforces it"),
    )
    return ", ".join(f"{count:,} {words}" for count, words in counts if count) or "no session so far"


def _button(row: Containment) -> str:
    """Return the words of the button, which say what it does."""
    if row.reaction == ContainmentReaction.STOP:
        parts = [
            f"{verb} {count:,}" for verb, count in (("stop", row.can_stop), ("block", row.can_block)) if count
        ]
        return ", ".join(parts).capitalize() or "Stop new sessions"
    verb = "Hold calls of" if row.reaction == ContainmentReaction.HOLD else "Block calls of"
    return f"{verb} {row.can_stop + row.can_block:,}"
