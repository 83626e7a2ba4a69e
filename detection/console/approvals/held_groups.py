"""Groups of held calls on pages: a card for each, the answers for all of it, and their undo."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.approvals.decisions import (
    ERRORS,
    UNATTENDED,
    Waiting,
    is_budget,
    raise_by_of,
    unit_of_raise,
    waiting,
)
from detection.console.formatting import visible
from detection.console.loops import incident_text
from detection.console.sessions.differences import Difference, between
from detection.models import Approval, Choice, Role
from detection.models.approvals import CONTAINMENT
from detection.selectors import approvals as selector
from detection.selectors import held_groups
from detection.selectors.held_groups import HeldGroup
from detection.services.approvals import decisions, group_decisions
from detection.services.errors import ServiceError

MAX_GROUPS = 50
"""Groups on a page, those with the first deadlines; a judgement."""
_DID = {
    Choice.SKIP: "You skipped {}",
    Choice.ALLOW_ONCE: "You allowed {} once",
    Choice.RAISE: "You raised the limit by {by} for {}",
    Choice.EXEMPT: "You exempted the tool in the sessions of {}",
    Choice.DISABLE: "You disabled detection in the sessions of {}",
    Choice.STOP: "You requested a stop of the sessions of {}",
}


@dataclass(frozen=True, slots=True)
class GroupCard:
    """A group of held calls that wait for one answer.

    Attributes
    ----------
    one
        The oldest call, until the first deadline of the group.
    calls
        The single calls, as far as the page has read them.
    """

    held: HeldGroup
    one: Waiting
    calls: list[Waiting] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What is held: the loop, or the call and its containment."""
        if self.is_contained:
            tools = ", ".join(self.held.tools[:3])
            more = self.held.tool_count - 3
            return f"Held by a containment: {tools}{f' and {more:,} more' if more > 0 else ''}"
        return incident_text.title(self.held.first)

    @property
    def is_contained(self) -> bool:
        """Whether a containment holds the calls: there is no limit and no detection to change."""
        return self.held.held_by == "containment"

    @property
    def is_rememberable(self) -> bool:
        """Whether the answer may be remembered."""
        return not self.is_contained and not any(is_budget(kind) for kind in self.held.kinds)

    @property
    def varying(self) -> list[tuple[str, str, tuple[Difference, ...]]]:
        """Tool and arguments of different calls of the group, and of those with the same tool what differs."""
        first = self.held.first.tool
        return [
            (tool, arguments, between(self.held.arguments, arguments) if tool == first else ())
            for tool, arguments in self.held.others
        ]

    @property
    def unshown(self) -> int:
        """How many different calls are not shown."""
        return max(0, self.held.variants - 1 - len(self.held.others))

    @property
    def is_budget(self) -> bool:
        """Whether limits of the run are reached."""
        return all(is_budget(kind) for kind in self.held.kinds)

    @property
    def all_words(self) -> str:
        """What the buttons call all of its approvals."""
        return {1: "", 2: "both"}.get(self.held.approvals, f"all {self.held.approvals:,}")

    @property
    def unattended(self) -> str:
        """What applies if nobody decides."""
        return " or ".join(UNATTENDED[one] for one in self.held.unattended)

    @property
    def unread(self) -> int:
        """How many single calls the page has not read."""
        return max(0, self.held.approvals - len(self.calls))


def cards(project_ids: Collection[int], limit: int = MAX_GROUPS) -> list[GroupCard]:
    """Return the groups of projects with the first deadlines; three queries."""
    now = timezone.now()
    return [
        GroupCard(one, waiting_of_group(one, (one.first_deadline - now).total_seconds()))
        for one in held_groups.first_groups(project_ids, limit)
    ]


def waiting_of_group(held: HeldGroup, seconds_left: float) -> Waiting:
    """Return the oldest call of a group with the time that is left for the first of it."""
    first = held.first
    return Waiting(
        first,
        round(max(0.0, seconds_left), 1),
        round((held.first_deadline - first.requested_at).total_seconds(), 1),
        UNATTENDED[first.unattended],
        unit_of_raise(first),
        max(1, min(first.limit, decisions.MAX_RAISE)),
        held.arguments,
        first.kind != CONTAINMENT and not is_budget(first.kind),
    )


def with_calls(found: Sequence[GroupCard], approvals: Sequence[Approval]) -> list[Waiting]:
    """Give groups their single calls, and return those that no group has; two queries."""
    groups = selector.groups_of(approvals)
    of_group: dict[str, list[Waiting]] = defaultdict(list)
    for one in waiting(approvals):
        of_group[groups.get(one.approval.pk, "")].append(one)
    for card in found:
        card.calls.extend(of_group.pop(card.held.group, ()))
    return [one for rest in of_group.values() for one in rest]


@in_project(Role.OPERATOR)
@require_POST
def decide(request: ProjectRequest) -> HttpResponse:
    """Decide all calls of a group that wait now; a script that asks for JSON gets the outcome instead of a page."""
    undo, remember = "", request.POST.get("remember") == "yes"
    try:
        done = group_decisions.decide(
            request.project.pk,
            request.POST.get("group", "")[:64].replace("\x00", ""),
            request.POST.get("choice", ""),
            actor_of(request),
            raise_by=raise_by_of(request),
            remember=remember,
        )
    except ServiceError as error:
        status, text = error.status, ERRORS.get(error.code, error.detail)
    else:
        status, text = 200, _done(done, remember=remember)
        undo = done.id if done.undo_until else ""
    if request.headers.get("Accept") == "application/json":
        undo_url = reverse("console:undo_answer", args=[request.project.slug])
        return JsonResponse({"detail": visible(text), "undo": undo, "undo_url": undo_url}, status=status)
    if status == 200:
        messages.success(request, text, extra_tags=undo)
    else:
        messages.error(request, text)
    return _back(request)


def _done(done: group_decisions.GroupDecision, *, remember: bool) -> str:
    text = _DID[Choice(done.choice)].format(_calls(done.decided), by=done.raise_by) + "."
    if done.already_decided:
        text += f" Others had decided {_calls(done.already_decided)}."
    if done.expired + done.withdrawn:
        text += f" {_calls(done.expired + done.withdrawn)} no longer waited."
    if done.left:
        text += f" {_calls(done.left)} still wait."
    if remember:
        days = decisions.REMEMBERED_FOR.days
        text += f" Later calls are answered alike for {days} days, also after an undo."
    return text


def _calls(count: int) -> str:
    return f"{count:,} held call{'s' if count != 1 else ''}"


@in_project(Role.OPERATOR)
@require_POST
def undo(request: ProjectRequest) -> HttpResponse:
    """Undo an answer, as far as no agent has received it, and say how far that was."""
    answer = request.POST.get("ids", "")[:64].replace("\x00", "")
    try:
        undone = group_decisions.undo(request.project.pk, answer, actor_of(request))
    except ServiceError as error:
        status, text = error.status, error.detail
    else:
        status, text = 200, group_decisions.undone_words(undone)
    if request.headers.get("Accept") == "application/json":
        return JsonResponse({"detail": visible(text)}, status=status)
    (messages.success if status == 200 else messages.error)(request, text)
    return _back(request)


def _back(request: ProjectRequest) -> HttpResponseRedirect:
    return HttpResponseRedirect(next_page(request, reverse("console:held", args=[request.project.slug])))
