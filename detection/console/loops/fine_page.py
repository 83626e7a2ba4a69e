"""The form of the verb *This is fine*, a page or a dialog of scripts: where and why, for one loop or for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from detection.console import formatting
from detection.console.access import ProjectRequest, in_project, next_page
from detection.console.loops import loop_actions
from detection.models import Incident, Loop, Role
from detection.models.incidents import LabelReason
from detection.selectors import loops as selector
from detection.services.errors import NotFound, ServiceError
from detection.services.exceptions import fine
from detection.services.exceptions.exceptions import ExceptionOption
from detection.services.exceptions.losses import LOST_WITHIN, Lost, lost_with

MAX_COMPARED_LOOPS: Final = 20
"""Loops whose exceptions are looked at together; each takes some milliseconds."""
FIRST_CHOICES: Final = ("tool", "agent", "model", "everywhere", "run", "")
"""Choices, the best first."""
EXPIRIES: Final = (("30d", "30 days"), ("7d", "7 days"), ("", "Always"))
_WORDS: Final = {
    "run": "Only this run",
    "tool": "These calls",
    "agent": "Everything of this agent",
    "model": "Everything of this model",
    "everywhere": "Everywhere",
    "": "Only the runs so far",
}


@dataclass(frozen=True, slots=True)
class FineChoice:
    """A place where a loop may be fine.

    Attributes
    ----------
    name
        The tool, agent or model that it is about; empty for several.
    does
        What will be saved.
    effect
        What it is about, or would lose; `is_loss` if it would.
    """

    where: str
    words: str
    name: str
    does: str
    effect: str
    is_loss: bool


def _choices(
    request: ProjectRequest,
    loops: Sequence[Loop],
    options: Sequence[dict[str, ExceptionOption]],
    run: Incident | None,
) -> list[FineChoice]:
    """Return the choices, narrowest first; those that save an exception only to people who may."""
    found = [_only_run(run, options[0].get("run"))] if run is not None else []
    names = {name for one in options for name in one if name != "run"} if _may_except(request) else set()
    places = [one for one in fine.PLACES if one in names]
    lost = lost_with(
        request.project.pk, loops, [[one[place] for one in options if place in one] for place in places]
    )
    for place, loss in zip(places, lost, strict=True):
        of_it = [one[place] for one in options if place in one]
        found.append(_place(place, loops, of_it, loss))
    if not places:
        found.append(
            FineChoice(
                "", _WORDS[""], "", "", "Nothing is saved: when they loop again, you see them again", False
            )
        )
    return found


def _may_except(request: ProjectRequest) -> bool:
    return request.membership.allows(Role.ADMIN)


def _only_run(run: Incident, option: ExceptionOption | None) -> FineChoice:
    effect = f"{run.session_name}, {'until it ends' if option else 'which has ended'}"
    return FineChoice("run", _WORDS["run"], "", option.words if option else "", effect, False)


def _place(place: str, loops: Sequence[Loop], options: Sequence[ExceptionOption], loss: Lost) -> FineChoice:
    does = f"{options[0].where}: {options[0].words}" if len(options) == 1 else f"{len(options):,} exceptions"
    name = ""
    if len(options) == 1:
        scope = options[0].change.scope
        name = {"tool": loops[0].tool, "agent": scope.agent, "model": scope.model}.get(place, "")
    if not loss.loops:
        effect = f"No other loop of the last {LOST_WITHIN.days} days would be lost"
    else:
        many = f"{loss.loops:,}{'+' if loss.is_capped else ''} other loop{'' if loss.loops == 1 else 's'}"
        cost = f", which cost {formatting.money(loss.cost_usd)}" if loss.cost_usd else ""
        effect = f"You would lose at most {many} of the last {LOST_WITHIN.days} days{cost}"
    return FineChoice(place, _WORDS[place], name, does, effect, loss.loops > 0)


def _form(
    request: ProjectRequest,
    loops: Sequence[Loop],
    *,
    title: str,
    number: int,
    back: str,
    run: Incident | None = None,
    more: dict[str, Any] | None = None,
) -> HttpResponse:
    options = [
        {
            one.where: one.option
            for one in fine.choices(request.project.pk, loop.public_id, "", run.public_id if run else "")
        }
        for loop in loops
    ]
    choices = _choices(request, loops, options, run) if loops else _many(request)
    known = {one.where for one in choices}
    context = {
        "title": title,
        "choices": choices,
        "chosen": next(one for one in FIRST_CHOICES if one in known),
        "reasons": [one for one in LabelReason.choices if one[0]],
        "chosen_reason": LabelReason.OTHER.value,
        "expiries": EXPIRIES,
        "number": number,
        "back": back,
        "run": run,
        "ids": [loop.public_id for loop in loops],
        **(more or {}),
    }
    return render(request, "loops/fine.html", context)


def _many(request: ProjectRequest) -> list[FineChoice]:
    """Return the choices for more loops than are compared."""
    places = [one for one in fine.PLACES if one != "run"] if _may_except(request) else []
    effect = "Each loop gets the exception of its newest run"
    found = [FineChoice(one, _WORDS[one], "", "", effect, False) for one in places if one != "model"]
    return found or [
        FineChoice(
            "", _WORDS[""], "", "", "Nothing is saved: when they loop again, you see them again", False
        )
    ]


@in_project()
@require_safe
def page(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Ask about one loop, from a run of it."""
    project = request.project
    loop = selector.get_loop(project.pk, public_id)
    if loop is None:
        raise Http404
    row = selector.row_of(loop)
    try:
        run = fine.run_of(project.pk, public_id, request.GET.get("run", "")[:64])
    except NotFound:
        raise Http404 from None
    back = reverse("console:loop", args=[project.slug, public_id])
    return _form(request, [loop], title=row.title, number=row.incidents, back=back, run=run)


@in_project(Role.OPERATOR)
@require_POST
def of_several(request: ProjectRequest) -> HttpResponse:
    """Ask about the loops that are selected in the list."""
    back = next_page(request, reverse("console:loops", args=[request.project.slug]))
    try:
        keys = loop_actions.chosen(request)
    except ServiceError as error:
        messages.error(request, error.detail)
        return HttpResponseRedirect(back)
    if not keys:
        messages.error(request, "No loop was selected.")
        return HttpResponseRedirect(back)
    rows = Loop.objects.filter(project_id=request.project.pk, pk__in=keys[:MAX_COMPARED_LOOPS]).order_by("pk")
    loops = [*rows] if len(keys) <= MAX_COMPARED_LOOPS else []
    given = request.POST
    kept = {name: given[name] for name in ("matching", "filter", "up_to") if name in given}
    if "matching" not in kept:
        kept = {}
    return _form(
        request,
        loops,
        title=f"{len(keys):,} loop{'' if len(keys) == 1 else 's'}",
        number=0,
        back=back,
        more={"kept": kept, "ids": given.getlist("ids")[: loop_actions.MAX_NAMED]},
    )
