"""Verbs on loops, on one, on those that are selected or on all that match, and undo."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils import timezone

from detection.console.access import ProjectRequest, actor_of, next_page
from detection.console.accounts import preferences
from detection.console.formatting import visible
from detection.console.listing import Listing
from detection.console.policies.policy_pages import expiry_of
from detection.models import BulkAction, Loop
from detection.selectors import loops as selector
from detection.selectors.lists import LOOPS
from detection.services.errors import Invalid, NotFound, ServiceError
from detection.services.exceptions import fine
from detection.services.incidents import bulk_actions

MAX_NAMED: Final = 500
SPANS: Final = {"1h": timedelta(hours=1), "7d": timedelta(days=7)}
MORNING: Final = time(9)
"""When a loop that was put off until a day comes back."""
_BULK: Final = "bulk_"
_NAMED_IN_FORM: Final = 20
_WORDS: Final = {
    "reopen": "reopened",
    "done": "closed",
    "later": "put off",
    "fine": "marked as fine",
    "confirm": "confirmed",
    "assign": "assigned",
    "undo": "restored",
}


def act(request: ProjectRequest) -> HttpResponse:
    """Apply an action to the selected rows, report the outcome, and offer to undo exactly that."""
    # A button carries action and option: "later:7d", "assign:me".
    action, _, option = request.POST.get("action", "").partition(":")
    back = next_page(request, reverse("console:loops", args=[request.project.slug]))
    try:
        if request.POST.get("matching") == "yes":
            _act_on_many(request, _matching(request), action, option)
        else:
            _act_on_named(request, action, option)
    except ServiceError as error:
        messages.error(request, error.detail)
    return HttpResponseRedirect(back)


def _act_on_named(request: ProjectRequest, action: str, option: str) -> None:
    given = [part for text in request.POST.getlist("ids") for part in text.split()]
    ids = [*dict.fromkeys(one for one in given if one.isprintable())][:MAX_NAMED]
    project_id, actor = request.project.pk, actor_of(request)
    if action == "undo" and len(ids) == 1 and ids[0].startswith(_BULK):
        _report(
            request,
            bulk_actions.undo(
                project_id, ids[0], actor, verbs=fine.ACTIONS, seconds=bulk_actions.IN_REQUEST_SECONDS
            ),
        )
    elif action == "comment" and len(ids) == 1:
        fine.comment(project_id, ids[0], actor, request.POST.get("note", ""))
    elif len(ids) > _NAMED_IN_FORM and action != "undo":
        found = dict(
            Loop.objects.filter(project_id=project_id, public_id__in=ids).values_list("public_id", "pk")
        )
        _act_on_many(request, [found[one] for one in ids if one in found], action, option)
    elif ids:
        latest = fine.latest_activity(project_id)
        arguments = _arguments_of(request, action, option)
        saved = _exception_of(project_id, ids, arguments) if action == "fine" else ""
        outcome = fine.bulk(project_id, ids, action, actor, **arguments)
        done = [public_id for public_id, code in outcome.items() if code == "done"]
        codes = [code for code in outcome.values() if code != "done"]
        touched = fine.changed_since(project_id, latest, done, actor.name)
        changed = [public_id for public_id in done if public_id in touched]
        undo = "" if action == "undo" else " ".join(changed)
        _say(request, action, len(changed), undo, len(done) - len(changed), saved)
        _say_failed(request, dict.fromkeys(codes), len(codes))
    else:
        messages.error(request, "No loop was selected.")


def _matching(request: ProjectRequest) -> list[int]:
    """Return all rows that match the filter and existed when the page was rendered; newer rows are excluded."""
    up_to = request.POST.get("up_to", "")
    if not (up_to.isascii() and up_to.isdigit() and len(up_to) < 19):
        return []
    request.GET = QueryDict(request.POST.get("filter", ""))
    listing = Listing(request, LOOPS)
    if listing.is_invalid:  # the rows shown match a part of it only
        raise Invalid(
            "The filter is not valid. Correct it before acting on all matching rows.", field="filter"
        )
    query = listing.query
    return selector.matching_keys(request.project.pk, query, int(up_to), bulk_actions.MAX_TARGETS)


def chosen(request: ProjectRequest) -> list[int]:
    """Return the row ids of what is selected in a list: the marked rows, or all that match."""
    if request.POST.get("matching") == "yes":
        return _matching(request)
    ids = [one for one in request.POST.getlist("ids") if one.isprintable()][:MAX_NAMED]
    found = Loop.objects.filter(project_id=request.project.pk, public_id__in=ids).order_by("pk")
    return [*found.values_list("pk", flat=True)]


def _act_on_many(request: ProjectRequest, keys: list[int], action: str, option: str) -> None:
    if not keys:
        messages.error(request, "No loop was selected.")
        return
    arguments = _arguments_of(request, action, option)
    done = bulk_actions.start(
        request.project.pk,
        keys,
        action,
        actor_of(request),
        verbs=fine.ACTIONS,
        seconds=bulk_actions.IN_REQUEST_SECONDS,
        **arguments,
    )
    _report(request, done)


def _report(request: ProjectRequest, done: BulkAction) -> None:
    """Report what was done; if a worker continues, the list shows the progress."""
    if done.finished_at is not None:
        undo = "" if done.reverts else done.public_id
        _say(request, done.action, done.changed, undo, bulk_actions.unchanged(done))
        _say_failed(request, done.failures, sum(done.failures.values()))


def _exception_of(project_id: int, ids: list[str], arguments: Mapping[str, Any]) -> str:
    """Return what will be saved with one loop that is fine, and until when."""
    if len(ids) != 1 or arguments["where"] in ("", fine.RUN):
        return ""
    try:
        found = fine.choices(project_id, ids[0], arguments["reason"], arguments.get("run", ""))
    except NotFound:
        return ""
    option = next((one.option for one in found if one.where == arguments["where"]), None)
    if option is None:
        return ""
    end = arguments["expires_at"]
    until = f"until {end:%-d %b %Y}" if end is not None else "for good"
    return f" {option.where}: {option.words[:1].lower()}{option.words[1:]}, {until}."


def _say(
    request: ProjectRequest, action: str, count: int, undo: str, unchanged: int, saved: str = ""
) -> None:
    if count or unchanged:
        more = f", {unchanged:,} unchanged" if unchanged else ""
        words = f"{count:,} loop{'' if count == 1 else 's'} {_WORDS[action]}{more}.{visible(saved) if count else ''}"
        # The names are part of the message, so Undo restores exactly these.
        messages.success(request, words, extra_tags=undo)


def _say_failed(request: ProjectRequest, codes: Mapping[str, object], count: int) -> None:
    if count:
        words = ", ".join(sorted(code.replace("_", " ") for code in codes))
        messages.error(request, f"{count:,} could not be changed: {words}.")


def progress(request: ProjectRequest, shown: BulkAction | None) -> dict[str, Any]:
    """Return what the list shows about an action that a worker is running or has just finished."""
    if shown is None:
        return {}
    undo_until = shown.finished_at + bulk_actions.UNDO_WITHIN if shown.finished_at else None
    is_own = shown.reverts is None and shown.actor == request.user.get_username()
    return {
        "bulk": shown,
        "bulk_words": _WORDS[shown.action],
        "bulk_unchanged": bulk_actions.unchanged(shown) if shown.finished_at else 0,
        "may_undo_bulk": is_own and (undo_until is None or timezone.now() <= undo_until),
        "undo_bulk_until": undo_until,
    }


def _arguments_of(request: ProjectRequest, action: str, option: str) -> dict[str, Any]:
    """Read the arguments of an action."""
    if action == "later":
        reason = request.POST.get("reason", "")[:300]
        until = _later_until(request, option)
        return {"until": until, "reason": reason} if until else {"until_worse": True, "reason": reason}
    if action == "fine":
        given = request.POST
        return {
            "reason": given.get("reason", ""),
            "note": given.get("note", "")[:1000],
            "where": given.get("where", ""),
            "expires_at": expiry_of(request) if given.get("where", "") not in ("", fine.RUN) else None,
            **({"run": given["run"][:64]} if given.get("run") else {}),
            **({"siblings": False} if given.get("siblings") == "no" else {}),
        }
    if action == "assign":
        me = request.user.get_username()
        return {"assignee": me if option == "me" else request.POST.get("assignee", "")}
    return {}


def _later_until(request: ProjectRequest, option: str) -> datetime | None:
    """Return until when a loop is put off; None for until it gets worse. Days are those of the person."""
    zone = preferences.zone(request)
    if option == "tomorrow":
        return datetime.combine(timezone.now().astimezone(zone).date() + timedelta(days=1), MORNING, zone)
    if option == "date":
        try:
            day = date.fromisoformat(request.POST.get("until_date", ""))
        except ValueError:
            raise Invalid("Enter the day until which it is put off.", field="until_date") from None
        return datetime.combine(day, MORNING, zone)
    if option and option not in SPANS:
        raise Invalid("Choose until when it is put off.", field="action")
    return timezone.now() + SPANS[option] if option else None
