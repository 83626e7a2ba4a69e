"""The form of an alert route: a sentence, more conditions, and what the route would have sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import available_timezones

from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console import edits
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.alerting.alert_pages import (
    SHOWN_FIELDS,
    create_destination,
    outcome_words,
    show,
    text_of,
    words_of,
)
from detection.console.alerting.route_sentences import AT_LEAST, CUSTOM, EVENT_TYPES, WHEN, choice_of
from detection.console.single_submission import shows_secret
from detection.engine.detectors import DETECTORS
from detection.models import AlertEventType, AlertRoute, Role, Severity
from detection.selectors import alerts as selector
from detection.services import report_links
from detection.services.alerting import alert_routes, notifications, routing
from detection.services.alerting import destinations as alert_destinations
from detection.services.alerting.route_preview import preview_route
from detection.services.errors import Invalid, ServiceError
from detection.services.projects import reports
from detection.services.versions import ChangedMeanwhile

_NUMBERS = {
    "position": ("Position", alert_routes.MAX_POSITION),
    "group_wait_seconds": ("Group wait in seconds", alert_routes.MAX_GROUP_WAIT_SECONDS),
    "repeat_interval_hours": ("Repeat interval in hours", alert_routes.MAX_REPEAT_INTERVAL_HOURS),
}
_FLAGS = ("is_enabled", "continue_matching", "includes_demo", "quiet_delays_critical")
_TEXTS = (
    ("tools", "tools", "Tools", "search_*, mcp__*"),
    ("backends", "backends", "Backends", "openai"),
    ("models", "model_names", "Models", "gpt-*"),
    ("tags", "tags", "Tags", "checkout, team-*"),
)


@never_cache
@in_project(Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest, public_id: str = "") -> HttpResponse:
    """Create or edit a route, or show what it would have sent."""
    row = (
        selector.get_route(request.project.pk, public_id)
        if public_id
        else AlertRoute(
            project=request.project,
            event_types=list(WHEN.get(request.GET.get("when", ""), WHEN["changes"])[0]),
            group_by=["session", "loop"],
        )
    )
    if row is None:
        raise Http404
    if request.method != "POST":
        return _page(request, row, _shown(request, row))
    form = request.POST
    if form.get("action") == "create_destination":
        return _with_new_destination(request, row)
    if form.get("action") == "preview":
        shown = _preview(request, row, form)
        if request.headers.get("HX-Request"):
            return render(request, "alerting/_preview.html", shown)
        return _page(request, row, form, shown)
    try:
        values = _values(form)
        if not values["destinations"]:
            raise Invalid("Choose at least one destination.", field="destinations")
        values["name"] = values["name"] or _default_name(request, form)
        alert_routes.save_route(
            request.project.pk,
            actor_of(request),
            public_id=public_id or None,
            version=form.get("version") or None,
            **values,
        )
    except ChangedMeanwhile as error:
        conflict = edits.compare(error.current, {name: values.get(name) for name in error.current})
        return _page(request, row, form, {"conflict": conflict}, problem=error)
    except ServiceError as error:
        return _page(request, row, form, problem=error)
    messages.success(request, "Route saved.")
    return redirect(f"{reverse('console:alerts', args=[request.project.slug])}?tab=routes")


def _with_new_destination(request: ProjectRequest, row: AlertRoute) -> HttpResponse:
    """Create a destination, send a test to it, and show the outcome above a route to it."""
    try:
        made, secret = create_destination(request)
    except ServiceError as error:
        if error.field not in SHOWN_FIELDS:  # else it stands at its field
            messages.error(request, error.detail)
        return show(request, "routes", given=request.POST, error=error)
    shows_secret(request, reverse("console:new_alert_route", args=[request.project.slug]))
    tested = notifications.send_test(request.project.pk, made.public_id, actor_of(request))
    form = _shown(request, row)
    form.setlist("destinations", [made.public_id])
    shown = {
        "made": made,
        "secret": secret,
        "tested": tested,
        "outcome": outcome_words(tested),
        **_preview(request, row, form),
    }
    return _page(request, row, form, shown)


def _default_name(request: ProjectRequest, form: QueryDict) -> str:
    """Return a name from the route's sentence, for a route without a name."""
    _, words = WHEN.get(form.get("when", ""), ((), "alerts"))
    rows = selector.list_destinations(request.project.pk).filter(public_id__in=form.getlist("destinations"))
    names = ", ".join(row.name for row in rows)
    return f"{words} → {names}"[: alert_destinations.MAX_NAME_CHARACTERS]


def _page(
    request: ProjectRequest,
    row: AlertRoute,
    form: QueryDict,
    shown: dict[str, Any] | None = None,
    problem: ServiceError | None = None,
) -> HttpResponse:
    chosen = form.getlist("destinations")
    is_conflict = isinstance(problem, ChangedMeanwhile)
    context = {
        "row": row,
        "form": form,
        # Of another attempt, the form keeps the version that it was filled with.
        "version": alert_routes.route_version(row) if is_conflict else form.get("version", ""),
        "problem": problem,
        "whens": [*((name, words) for name, (_, words) in WHEN.items()), (CUSTOM, "one of the chosen below")],
        "at_leasts": [
            *((name, words) for name, (_, words) in AT_LEAST.items()),
            (CUSTOM, "the chosen below"),
        ],
        "destinations": [
            (one, one.public_id in chosen) for one in selector.list_destinations(request.project.pk)
        ],
        "texts": [(name, words, example, form.get(name, "")) for name, _, words, example in _TEXTS],
        "checks": [
            (name, words, [(value, label, value in form.getlist(name)) for value, label in choices])
            for name, words, choices in _checks()
        ],
        "zones": sorted(available_timezones()),
        **(shown if shown is not None else {} if problem else _preview(request, row, form)),
    }
    return render(
        request, "alerting/route.html", context, status=409 if is_conflict else 422 if problem else 200
    )


def _checks() -> tuple[tuple[str, str, list[tuple[str, str]]], ...]:
    grouping = [(name, "Detector" if name == "kind" else name.capitalize()) for name in routing.GROUP_FIELDS]
    return (
        ("event_types", "Alerts", [(value, str(words)) for value, words in EVENT_TYPES]),
        ("severities", "Severities", [(value, str(words)) for value, words in Severity.choices]),
        ("kinds", "Detectors (all, if none is selected)", [(one.kind, one.label) for one in DETECTORS]),
        ("group_by", "Group by", grouping),
    )


def _preview(request: ProjectRequest, row: AlertRoute, form: QueryDict) -> dict[str, Any]:
    """Return what the route would have sent, or why that is unknown."""
    try:
        values = _values(form)
        if not values["destinations"]:
            return {"preview_problem": "Choose a destination to see what the route would have sent."}
        found = preview_route(request.project.pk, public_id=row.public_id if row.pk else None, **values)
    except ServiceError as error:
        return {"preview_problem": error.detail}
    sends_report = AlertEventType.WEEKLY_REPORT in values["event_types"]
    return {
        "preview": found,
        "excludes_demo": not values["includes_demo"],
        "report": report_links.sentence(reports.of_today(request.project.pk)) if sends_report else "",
    }


def _shown(request: ProjectRequest, row: AlertRoute) -> QueryDict:
    """Return a stored or new route as its form shows it; a new one goes to the destination with the latest success."""
    form = QueryDict(mutable=True)
    if row.pk:
        form.setlist(
            "destinations", [one.public_id for one in row.destinations.filter(project_id=row.project_id)]
        )
    else:
        enabled = selector.list_destinations(request.project.pk).filter(is_enabled=True)
        working = sorted(
            enabled, key=lambda one: (one.last_success_at is None, one.failures_in_row, one.name)
        )
        form.setlist("destinations", [one.public_id for one in working[:1]])
    for name in ("event_types", "severities", "kinds", "group_by"):
        form.setlist(name, getattr(row, name))
    for name, column, *_ in (*_TEXTS, ("agents", "agents")):
        form[name] = ", ".join(getattr(row, column))
    form["version"] = alert_routes.route_version(row)
    form["when"], form["at_least"] = choice_of(WHEN, row.event_types), choice_of(AT_LEAST, row.severities)
    for name in ("name", "position", "group_wait_seconds", "repeat_interval_hours", "quiet_zone"):
        form[name] = str(getattr(row, name))
    for name in ("quiet_from", "quiet_until"):
        moment = getattr(row, name)
        form[name] = moment.strftime("%H:%M") if moment else ""
    for name in _FLAGS:
        if getattr(row, name):
            form[name] = "on"
    return form


def _values(form: QueryDict) -> dict[str, Any]:
    """Return the values of a submitted form as `alert_routes.save_route` takes them."""

    def number(name: str) -> int:
        text, (words, maximum) = text_of(form, name) or "0", _NUMBERS[name]
        # Texts of very many digits are not converted.
        if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= maximum):
            raise Invalid(f"{words} must be a whole number from 0 to {maximum:,}.", field=name)
        return int(text)

    def clock(name: str) -> Any:
        text = text_of(form, name)
        if not text:
            return None
        try:
            return datetime.strptime(text[:5], "%H:%M").time()  # noqa: DTZ007  (its zone is a field of its own)
        except ValueError as error:
            raise Invalid("Quiet hours must be times such as 22:00.", field=name) from error

    quiet_from, quiet_until = clock("quiet_from"), clock("quiet_until")
    if (quiet_from is None) != (quiet_until is None):
        raise Invalid("Give both times of the quiet hours, or neither.", field="quiet_from")
    when, at_least = WHEN.get(form.get("when", "")), AT_LEAST.get(form.get("at_least", ""))
    return {
        "name": text_of(form, "name"),
        "destinations": form.getlist("destinations"),
        "position": number("position"),
        "group_wait_seconds": number("group_wait_seconds"),
        "repeat_interval_hours": number("repeat_interval_hours"),
        "quiet_from": quiet_from,
        "quiet_until": quiet_until,
        "quiet_zone": text_of(form, "quiet_zone"),
        "event_types": list(when[0]) if when else form.getlist("event_types"),
        "severities": list(at_least[0]) if at_least else form.getlist("severities"),
        "kinds": form.getlist("kinds"),
        "group_by": form.getlist("group_by"),
        "tools": words_of(form, "tools"),
        "agents": words_of(form, "agents"),
        "backends": words_of(form, "backends"),
        "model_names": words_of(form, "models"),
        "tags": words_of(form, "tags"),
        **{name: name in form for name in _FLAGS},
    }
