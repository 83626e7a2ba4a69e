"""The Alerts page: where alerts go and by which routes, what was sent, and silences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import orjson
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponsePermanentRedirect, HttpResponseRedirect, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from detection.console import edits
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.console.alerting.alert_services import ALERT_SERVICES, SERVICES
from detection.console.alerting.route_sentences import route_sentence
from detection.console.listing import Listing
from detection.console.loops import loop_text
from detection.console.single_submission import shows_secret
from detection.engine.detectors import DETECTORS
from detection.engine.durations import milliseconds
from detection.models import AlertDestination, AlertSilence, Notification, NotificationState, Role
from detection.models.alerts import DestinationKind
from detection.selectors import alerts as selector
from detection.selectors import loops
from detection.selectors.lists import NOTIFICATIONS
from detection.selectors.pages import BadCursor
from detection.services.alerting import alert_routes, destinations, notifications, silences
from detection.services.errors import Invalid, ServiceError, found
from detection.services.versions import ChangedMeanwhile

TABS = (("routes", "Routes"), ("sent", "Sent"), ("silences", "Silences"))
EARLIER_TABS = {"destinations": "routes", "notifications": "sent"}
"""Names of before in addresses, which lead to where the same is now."""
STATES = {
    "ok": ("ok", "Working"),
    "new": ("plain", "Not used yet"),
    "failing": ("warn", "Failing"),
    "paused": ("stop", "Paused"),
    "disabled": ("idle", "Disabled"),
    "waiting": ("idle", "Waiting"),
    "sending": ("watch", "Sending"),
    "delivered": ("ok", "Delivered"),
    "failed": ("stop", "Failed"),
}
SILENCE_SPANS = (("1", "1 hour"), ("4", "4 hours"), ("24", "A day"), ("168", "A week"), ("720", "30 days"))
PAGE_ROWS = 50
SHOWN_FIELDS = ("address", "name")
"""Fields of a new destination at which an error stands, so that no message repeats it."""


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show one of the three tabs."""
    earlier = EARLIER_TABS.get(request.GET.get("tab", ""))
    if earlier is not None:
        query = request.GET.copy()
        query["tab"] = earlier
        return HttpResponsePermanentRedirect(f"{request.path}?{query.urlencode()}")
    return show(request)


def show(request: ProjectRequest, tab: str = "", **more: Any) -> HttpResponse:
    """Show a tab, also as the answer to a form that was not accepted."""
    tab = tab or next((key for key, _ in TABS if key == request.GET.get("tab")), TABS[0][0])
    project_id, now = request.project.pk, timezone.now()
    context: dict[str, Any] = {"tab": tab, "tabs": [(key, words, key == tab) for key, words in TABS], **more}
    if tab == "routes":
        rows = selector.list_destinations(project_id)
        context["destinations"] = [
            (row, STATES[selector.destination_state(row, now)], destinations.destination_version(row))
            for row in rows
        ]
        context["alert_services"] = ALERT_SERVICES
        wanted = (more.get("given") or request.GET).get("service", "")
        context["service"] = SERVICES.get(wanted)
        context["has_route"] = selector.has_enabled_route(project_id)
        context["unrouted"] = selector.unrouted_today(project_id) if context["has_route"] else 0
        context["routes"] = [
            (row, route_sentence(row), alert_routes.route_version(row))
            for row in selector.list_routes(project_id)
        ]
    elif tab == "silences":
        active, over = selector.list_silences(project_id), selector.list_silences(project_id, ended=True)[:10]
        urls = _loop_urls(request, [*active, *over])
        context["silences"] = [(row, _conditions(row, urls), silences.silence_version(row)) for row in active]
        context["over"] = [(row, _conditions(row, urls)) for row in over]
        context["spans"] = SILENCE_SPANS
        context["now"] = now
        context["detectors"] = DETECTORS
        context["silence"] = _silence_form(more.get("given"), request.GET)
    else:
        listing = Listing(request, NOTIFICATIONS, kept=("tab",))
        if listing.moved:
            return HttpResponseRedirect(listing.moved)
        try:
            sent = selector.list_notifications(project_id, listing.query, listing.cursor, PAGE_ROWS)
        except BadCursor as error:
            raise Http404 from error
        context["listing"] = listing
        context["notifications"] = [(row, STATES[row.state]) for row in sent.items]
        context["next_page"] = listing.next_page(sent.next_cursor)
        context["states"] = listing.tabs((("", "All"), *NotificationState.choices), None)
    rejected = more.get("edit_error")
    return render(request, f"alerting/{tab}.html", context, status=rejected.status if rejected else 200)


def _silence_form(given: QueryDict | None, query: QueryDict) -> dict[str, Any]:
    """Return the values of the silence form, from a rejected submission or from a link."""
    if given is not None:
        form: dict[str, Any] = {
            name: given.get(name, "") for name in ("reason", "hours", "tools", "agents", "models", "tags")
        }
        return form | {"kinds": given.getlist("kinds")}
    return {f"{name}s": query.get(name, "")[:300] for name in ("tool", "agent")}


def _loop_urls(request: ProjectRequest, rows: Iterable[AlertSilence]) -> dict[int, str]:
    """Return the pages of muted loops by loop; those without incidents have none. One query."""
    ids = {row.loop.pk: row.loop.public_id for row in rows if row.loop}
    return {
        pk: reverse("console:loop", args=[request.project.slug, ids[pk]])
        for pk in loops.ids_with_incidents(request.project.pk, ids)
    }


def _conditions(row: AlertSilence, loop_urls: Mapping[int, str]) -> list[tuple[str, str, str]]:
    """Return the conditions of a silence in words, with a link or an empty text; empty when it matches everything."""
    names = (
        ("kinds", "detector"), ("severities", "severity"), ("tools", "tool"), ("agents", "agent"),
        ("backends", "backend"), ("model_names", "model"), ("tags", "tag"),
    )  # fmt: skip
    parts = [(words, ", ".join(getattr(row, name)), "") for name, words in names if getattr(row, name)]
    if row.loop:
        sentence = "".join(part.text for part in loop_text.sentence(row.loop))
        parts.append(("loop", sentence, loop_urls.get(row.loop.pk, "")))
    return parts


@never_cache
@in_project(write_role=Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Carry out one of the forms. An invalid form is shown again with its values and the error."""
    action = request.POST.get("action", "")
    known = ACTIONS.get(action)
    if known is None:
        raise Http404
    role, tab, carry_out = known
    if not request.membership.allows(role):
        return missing_role(request, role)
    try:
        shown = carry_out(request, text_of(request.POST, "id"))
    except ChangedMeanwhile as error:
        outcome = "It was not deleted." if action.startswith("delete") else "Nothing was saved."
        messages.error(request, f"{_what_changed(error)} was changed in the meantime. {outcome}")
        if action != "edit":
            return show(request, tab, edit_error=error)
        return show(request, tab, edit_error=error, edited=_edited(request, error))
    except ServiceError as error:
        if action != "create" or error.field not in SHOWN_FIELDS:
            messages.error(request, error.detail)
        if action == "edit":
            return show(request, tab, edit_error=error, edited=_edited(request))
        return show(request, tab, given=request.POST, error=error) if error.field else _back(request, tab)
    return shown or _back(request, tab)


def _what_changed(error: ChangedMeanwhile) -> str:
    if "reason" in error.current:
        return "The silence"
    return f"{'Destination' if 'address' in error.current else 'Route'} {error.current['name']}"


def _edited(request: ProjectRequest, stale: ChangedMeanwhile | None = None) -> dict[str, Any]:
    """Return the form of a destination that was not saved, as it was typed."""
    name, address = text_of(request.POST, "name"), text_of(request.POST, "address")
    form = {"id": text_of(request.POST, "id"), "name": name, "address": address}
    if stale is None:
        return form | {"version": request.POST.get("version", ""), "conflict": None}
    entered = {"name": name, **({"address": "another one"} if address else {})}
    return form | edits.conflict(stale, entered)


def _back(request: ProjectRequest, tab: str) -> HttpResponse:
    return redirect(f"{reverse('console:alerts', args=[request.project.slug])}?tab={tab}")


def _page_with_secret(request: ProjectRequest, secret: str, **more: Any) -> HttpResponse:
    shows_secret(request, f"{reverse('console:alerts', args=[request.project.slug])}?tab=routes")
    return show(request, "routes", secret=secret, **more)


def text_of(form: QueryDict, name: str) -> str:
    """Return a field of a form without surrounding spaces."""
    return form.get(name, "").strip()


def words_of(form: QueryDict, name: str) -> list[str]:
    """Return the parts of a field that are separated by commas."""
    return [part for part in (piece.strip() for piece in text_of(form, name).split(",")) if part]


def create_destination(request: ProjectRequest) -> tuple[AlertDestination, str]:
    """Create the destination of the form, whose address says what it is, and return it with its signing secret."""
    kind, address = destinations.recognised(text_of(request.POST, "address"))
    service = SERVICES.get(request.POST.get("service", ""))
    name = text_of(request.POST, "name") or (service.title if service else _usual_name(kind, address))
    return destinations.create_destination(
        request.project.pk, actor_of(request), name=name, kind=kind, address=address
    )


def _usual_name(kind: str, address: str) -> str:
    """Return what a destination is called that nobody named: the host of a webhook, or the service."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""  # the address is rejected
    host = parts.netloc.rpartition("@")[2]  # without a password
    return (host if kind == DestinationKind.WEBHOOK else parts.scheme.capitalize())[:80]


def _create_destination(request: ProjectRequest, _: str) -> HttpResponse | None:
    row, secret = create_destination(request)
    if secret:
        return _page_with_secret(request, secret, made=row)
    messages.success(request, f"Destination {row.name} created: {row.shown_address}")
    return None


def _switch(request: ProjectRequest, public_id: str) -> None:
    is_enabled = request.POST.get("enabled") == "yes"
    destinations.update_destination(
        request.project.pk,
        public_id,
        actor_of(request),
        is_enabled=is_enabled,
        version=request.POST.get("version"),
    )
    outcome = (
        "Destination enabled. Waiting notifications are being sent."
        if is_enabled
        else "Destination disabled. Its notifications are kept until it is enabled."
    )
    messages.success(request, outcome)


def _edit_destination(request: ProjectRequest, public_id: str) -> None:
    row = destinations.update_destination(
        request.project.pk,
        public_id,
        actor_of(request),
        name=text_of(request.POST, "name"),
        address=text_of(request.POST, "address") or None,
        version=request.POST.get("version"),
    )
    messages.success(request, f"Destination {row.name} saved.")


def _delete_destination(request: ProjectRequest, public_id: str) -> None:
    version = request.POST.get("version")
    destinations.delete_destination(request.project.pk, public_id, actor_of(request), version=version)
    messages.success(request, "Destination deleted.")


def _test(request: ProjectRequest, public_id: str) -> HttpResponse:
    message = notifications.send_test(request.project.pk, public_id, actor_of(request))
    if message.state == NotificationState.DELIVERED:
        messages.success(request, "Test delivered.")
    else:
        messages.error(request, "The test was not delivered. See its attempts.")
    return redirect("console:notification", request.project.slug, message.public_id)


def _add_secret(request: ProjectRequest, public_id: str) -> HttpResponse:
    secret = destinations.add_signing_secret(request.project.pk, public_id, actor_of(request))
    return _page_with_secret(request, secret)


def _retire_secrets(request: ProjectRequest, public_id: str) -> None:
    version = request.POST.get("version")
    destinations.remove_old_secrets(request.project.pk, public_id, actor_of(request), version=version)
    messages.success(
        request, "Old secrets removed. Notifications are now signed with the newest secret only."
    )


def _test_route(request: ProjectRequest, public_id: str) -> None:
    """Send a test to each destination of a route, and say the outcome of each."""
    route = found(selector.get_route(request.project.pk, public_id))
    for one in route.destinations.filter(project_id=request.project.pk, is_enabled=True):
        message = notifications.send_test(request.project.pk, one.public_id, actor_of(request))
        is_delivered = message.state == NotificationState.DELIVERED
        (messages.success if is_delivered else messages.error)(
            request, f"Test to {one.name}: {outcome_words(message)}"
        )


def outcome_words(message: Notification) -> str:
    """Return the outcome of a test, from its last attempt."""
    attempt = message.attempts.filter(project_id=message.project_id).last()
    if attempt is None:
        return "not sent yet."
    if attempt.is_success:
        return f"delivered in {milliseconds(attempt.duration_ms)}."
    return f"not delivered. {attempt.problem}"


def _delete_route(request: ProjectRequest, public_id: str) -> None:
    version = request.POST.get("version")
    alert_routes.delete_route(request.project.pk, public_id, actor_of(request), version=version)
    messages.success(request, "Route deleted.")


def _silence(request: ProjectRequest, _: str) -> None:
    hours = text_of(request.POST, "hours")
    if hours not in dict(SILENCE_SPANS):
        raise Invalid("Choose a duration.", field="hours")
    row = silences.create_silence(
        request.project.pk,
        actor_of(request),
        reason=text_of(request.POST, "reason"),
        ends_at=timezone.now() + timedelta(hours=int(hours)),
        kinds=request.POST.getlist("kinds"),
        tools=words_of(request.POST, "tools"),
        agents=words_of(request.POST, "agents"),
        model_names=words_of(request.POST, "models"),
        tags=words_of(request.POST, "tags"),
    )
    messages.success(request, f"Silence created. It ends on {row.ends_at:%d %b at %H:%M} UTC.")


def _end_silence(request: ProjectRequest, public_id: str) -> None:
    silences.end_silence(
        request.project.pk, public_id, actor_of(request), version=request.POST.get("version")
    )
    messages.success(request, "Silence ended.")


def _resend(request: ProjectRequest, public_id: str) -> None:
    count = notifications.resend(request.project.pk, [public_id] if public_id else None, actor_of(request))
    messages.success(
        request,
        f"{count} notification{'' if count == 1 else 's'} queued again with the same id."
        if count
        else "No failed notifications.",
    )


ACTIONS: dict[str, tuple[Role, str, Callable[[ProjectRequest, str], HttpResponse | None]]] = {
    "create": (Role.ADMIN, "routes", _create_destination),
    "switch": (Role.ADMIN, "routes", _switch),
    "edit": (Role.ADMIN, "routes", _edit_destination),
    "delete": (Role.ADMIN, "routes", _delete_destination),
    "test": (Role.ADMIN, "routes", _test),
    "add_secret": (Role.ADMIN, "routes", _add_secret),
    "retire_secrets": (Role.ADMIN, "routes", _retire_secrets),
    "test_route": (Role.ADMIN, "routes", _test_route),
    "delete_route": (Role.ADMIN, "routes", _delete_route),
    "silence": (Role.OPERATOR, "silences", _silence),
    "end_silence": (Role.OPERATOR, "silences", _end_silence),
    "resend": (Role.OPERATOR, "sent", _resend),
}


@never_cache
@in_project()
@require_safe
def notification(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show a notification with its alerts, attempts and payload; responses of receivers are for admins."""
    row = selector.get_notification(request.project.pk, public_id)
    if row is None:
        raise Http404
    document = orjson.loads(row.payload) if row.payload else None
    context = {
        "row": row,
        "state": STATES[row.state],
        "attempts": list(row.attempts.all()),
        "items": [item.event for item in row.items.all()],
        "text": document["data"]["text"] if document else "",
        "payload": orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() if document else "",
    }
    return render(request, "alerting/notification.html", context)
