"""Actions on rows of the incident and loop lists, selected or all matching, and undo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils import timezone

from detection.console.access import ProjectRequest, actor_of, next_page
from detection.console.listing import Listing
from detection.models import BulkAction, Incident, Loop
from detection.selectors.filters import ListQuery, ListSpec
from detection.services.audit import Actor
from detection.services.errors import Invalid, ServiceError
from detection.services.incidents import bulk_actions

MAX_NAMED: Final = 500
_BULK: Final = "bulk_"
_NAMED_IN_FORM: Final = 20
_WORDS: Final = {
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "reopen": "reopened",
    "snooze": "snoozed",
    "label": "labelled",
    "done": "closed",
    "later": "put off",
    "fine": "marked as fine",
    "confirm": "confirmed",
    "assign": "assigned",
    "undo": "restored",
}


class Triage(Protocol):
    """What both modules of triage do with rows that are named by their public ids."""

    def bulk(  # noqa: D102
        self, project_id: int, public_ids: list[str], action: str, actor: Actor, **arguments: Any
    ) -> dict[str, str]: ...
    def comment(self, project_id: int, public_id: str, actor: Actor, note: str) -> object: ...  # noqa: D102
    def latest_activity(self, project_id: int) -> int: ...  # noqa: D102
    def changed_since(  # noqa: D102
        self, project_id: int, latest: int, public_ids: Sequence[str], by: str
    ) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class ListActions:
    """The differences between the two lists.

    Attributes
    ----------
    noun
        Of a row.
    model
        Of a row; has a `public_id`.
    matching
        Returns the row ids that a query selects: project id, query, newest row id, limit.
    triage
        `incidents.triage` or `exceptions.fine`, which have the same functions.
    arguments
        Reads the arguments of an action: request, action, option.
    """

    spec: ListSpec
    noun: str
    model: type[Incident | Loop]
    matching: Callable[[int, ListQuery, int, int], list[int]]
    triage: Triage
    arguments: Callable[[ProjectRequest, str, str], dict[str, Any]]


def act(request: ProjectRequest, rows: ListActions) -> HttpResponse:
    """Apply an action to the selected rows, report the outcome, and offer to undo exactly that."""
    # A button carries action and option: "snooze:8h", "label:false_alarm", "assign:me".
    action, _, option = request.POST.get("action", "").partition(":")
    back = next_page(request, reverse(f"console:{rows.spec.name}", args=[request.project.slug]))
    try:
        if request.POST.get("matching") == "yes":
            _act_on_many(request, rows, _matching(request, rows), action, option)
        else:
            _act_on_named(request, rows, action, option)
    except ServiceError as error:
        messages.error(request, error.detail)
    return HttpResponseRedirect(back)


def _act_on_named(request: ProjectRequest, rows: ListActions, action: str, option: str) -> None:
    given = [part for text in request.POST.getlist("ids") for part in text.split()]
    ids = [*dict.fromkeys(one for one in given if one.isprintable())][:MAX_NAMED]
    project_id, actor = request.project.pk, actor_of(request)
    if action == "undo" and len(ids) == 1 and ids[0].startswith(_BULK):
        _report(
            request, bulk_actions.undo(project_id, ids[0], actor, seconds=bulk_actions.IN_REQUEST_SECONDS)
        )
    elif action == "comment" and len(ids) == 1:
        rows.triage.comment(project_id, ids[0], actor, request.POST.get("note", ""))
    elif len(ids) > _NAMED_IN_FORM and action != "undo":
        found = dict(
            rows.model.objects.filter(project_id=project_id, public_id__in=ids).values_list("public_id", "pk")
        )
        _act_on_many(request, rows, [found[one] for one in ids if one in found], action, option)
    elif ids:
        latest = rows.triage.latest_activity(project_id)
        outcome = rows.triage.bulk(project_id, ids, action, actor, **rows.arguments(request, action, option))
        done = [public_id for public_id, code in outcome.items() if code == "done"]
        codes = [code for code in outcome.values() if code != "done"]
        touched = rows.triage.changed_since(project_id, latest, done, actor.name)
        changed = [public_id for public_id in done if public_id in touched]
        undo = "" if action == "undo" else " ".join(changed)
        _say(request, rows.noun, action, len(changed), undo, len(done) - len(changed))
        _say_failed(request, dict.fromkeys(codes), len(codes))
    else:
        messages.error(request, f"No {rows.noun} was selected.")


def _matching(request: ProjectRequest, rows: ListActions) -> list[int]:
    """Return all rows that match the filter and existed when the page was rendered; newer rows are excluded."""
    up_to = request.POST.get("up_to", "")
    if not (up_to.isascii() and up_to.isdigit() and len(up_to) < 19):
        return []
    request.GET = QueryDict(request.POST.get("filter", ""))
    listing = Listing(request, rows.spec)
    if listing.is_invalid:  # the rows shown match a part of it only
        raise Invalid(
            "The filter is not valid. Correct it before acting on all matching rows.", field="filter"
        )
    query = listing.query
    return rows.matching(request.project.pk, query, int(up_to), bulk_actions.MAX_TARGETS)


def _act_on_many(
    request: ProjectRequest, rows: ListActions, keys: list[int], action: str, option: str
) -> None:
    if not keys:
        messages.error(request, f"No {rows.noun} was selected.")
        return
    arguments = rows.arguments(request, action, option)
    done = bulk_actions.start(
        request.project.pk,
        rows.spec.name,
        keys,
        action,
        actor_of(request),
        seconds=bulk_actions.IN_REQUEST_SECONDS,
        **arguments,
    )
    _report(request, done)


def _report(request: ProjectRequest, done: BulkAction) -> None:
    """Report what was done; if a worker continues, the list shows the progress."""
    if done.finished_at is not None:
        undo = "" if done.reverts else done.public_id
        noun = done.list.removesuffix("s")
        _say(request, noun, done.action, done.changed, undo, bulk_actions.unchanged(done))
        _say_failed(request, done.failures, sum(done.failures.values()))


def _say(request: ProjectRequest, noun: str, action: str, count: int, undo: str, unchanged: int) -> None:
    if count or unchanged:
        more = f", {unchanged:,} unchanged" if unchanged else ""
        words = f"{count:,} {noun}{'' if count == 1 else 's'} {_WORDS[action]}{more}."
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
