"""Reads held calls that wait for a person, grouped by what one answer is for: a loop, a containment, or one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Count, F, Min, Q, QuerySet, Sum, Window
from django.db.models.functions import DenseRank, RowNumber

from detection import clock
from detection.models import Approval, ApprovalState
from detection.models.approvals import Decider
from detection.selectors.approval_group import held_by, with_group
from detection.selectors.approvals import ALL_APPROVALS, arguments_of, with_names
from detection.selectors.filters import ListQuery
from detection.selectors.pages import Order, Page, SortKey, cut

MAX_NAMES: Final = 20
"""Tools and agents that a group names; their numbers are exact. A judgement."""
MAX_ARGUMENTS: Final = 1000
"""Characters of the arguments that a group shows; a judgement."""
MAX_OTHERS: Final = 3
"""Different calls that a group shows beside the oldest; a judgement."""
_ORDER: Final = Order(SortKey("deadline", "first_deadline"), is_descending=False)


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Held calls that one answer is for.

    Attributes
    ----------
    group
        Id of the loop or containment that holds them; where there is neither, ``call_`` and the key of the call.
    held_by
        ``loop``, ``containment`` or ``call``.
    id
        Number of the oldest approval.
    first_deadline, oldest_at
        When the first unattended reaction applies, and when the first call was held.
    approvals, sessions, calls
        How many decisions they wait for, of how many sessions, and how many calls wait.
    variants
        How many different calls there are, by tool and arguments.
    tools, agents
        The first `MAX_NAMES` by name; `tool_count` and `agent_count` are exact.
    kinds
        The detectors; ``containment`` for calls that a containment holds.
    unattended
        What applies to calls that nobody decides, each of `Unattended` that occurs.
    first, arguments
        The oldest approval, with the names of its session and incident, and the arguments of its call.
    others
        Tool and arguments of different calls, at most `MAX_OTHERS`.
    """

    group: str
    held_by: str
    id: int
    first_deadline: datetime
    approvals: int
    sessions: int
    calls: int
    variants: int
    tools: tuple[str, ...]
    tool_count: int
    agents: tuple[str, ...]
    agent_count: int
    kinds: tuple[str, ...]
    unattended: tuple[str, ...]
    oldest_at: datetime
    first: Approval
    arguments: str
    others: tuple[tuple[str, str], ...]

    @property
    def summary(self) -> str:
        """Why the first call is held, as a sentence."""
        return self.first.summary


def waiting(project_ids: Collection[int]) -> QuerySet[Approval]:
    """Return the approvals of projects that wait for a person; overdue ones are about to be closed."""
    return Approval.objects.filter(
        project_id__in=project_ids,
        state=ApprovalState.OPEN,
        decider=Decider.PERSON,
        deadline__gt=clock.now(),
    )


def list_groups(
    project_id: int, query: ListQuery = ALL_APPROVALS, cursor: str = "", limit: int = 50
) -> Page[HeldGroup]:
    """List the groups of held calls, the first deadline first; three queries.

    Parameters
    ----------
    query
        Of the list `APPROVALS`; counts what matches.

    Raises
    ------
    BadCursor
        For a cursor of another list.
    """
    rows = _ORDER.page(_grouped(waiting((project_id,)).filter(query.condition())), cursor, "first_id")
    return cut(_groups(rows[: limit + 1]), limit, _ORDER.cursor)


def first_groups(project_ids: Collection[int], limit: int) -> list[HeldGroup]:
    """Return the groups of projects with the first deadlines, each of one project; three queries."""
    return _groups(_grouped(waiting(project_ids)).order_by("first_deadline", "first_id")[:limit])


def _grouped(rows: QuerySet[Approval]) -> QuerySet[Any, Any]:
    grouped: QuerySet[Any, Any] = (
        with_group(rows)
        .order_by()
        .values("project_id", "group")
        .annotate(
            first_id=Min("pk"),
            first_deadline=Min("deadline"),
            approvals=Count("pk"),
            sessions=Count("session_id", distinct=True),
            calls=Sum("held_calls"),
            variants=Count("call_key", distinct=True),
            tools=ArrayAgg("tool", distinct=True, order_by="tool"),
            agents=ArrayAgg("agent", distinct=True, order_by="agent", filter=~Q(agent=""), default=[]),
            kinds=ArrayAgg("kind", distinct=True, order_by="kind"),
            reactions=ArrayAgg("unattended", distinct=True, order_by="unattended"),
            oldest_at=Min("requested_at"),
        )
    )
    return grouped


def _groups(rows: Iterable[Any]) -> list[HeldGroup]:
    found = [*rows]
    projects = {one["project_id"] for one in found}
    examples = Approval.objects.filter(project_id__in=projects, pk__in=[one["first_id"] for one in found])
    first = {one.pk: one for one in with_names(examples)} if found else {}
    others = _others(first.values(), [one["group"] for one in found if one["variants"] > 1])
    shown = (*first.values(), *(one for of_group in others.values() for one in of_group))
    arguments = {pk: text[:MAX_ARGUMENTS] for pk, text in arguments_of(shown).items()} if shown else {}
    return [
        HeldGroup(
            group=one["group"],
            held_by=held_by(one["group"]),
            id=one["first_id"],
            first_deadline=one["first_deadline"],
            approvals=one["approvals"],
            sessions=one["sessions"],
            calls=one["calls"],
            variants=one["variants"],
            tools=tuple(one["tools"][:MAX_NAMES]),
            tool_count=len(one["tools"]),
            agents=tuple(one["agents"][:MAX_NAMES]),
            agent_count=len(one["agents"]),
            kinds=tuple(one["kinds"]),
            unattended=tuple(one["reactions"]),
            oldest_at=one["oldest_at"],
            first=first[one["first_id"]],
            arguments=arguments.get(one["first_id"], ""),
            others=tuple(
                (other.tool, arguments.get(other.pk, ""))
                for other in others.get((one["project_id"], one["group"]), ())
            ),
        )
        for one in found
        if one["first_id"] in first  # it may be erased meanwhile
    ]


def _others(first: Collection[Approval], groups: Sequence[str]) -> dict[tuple[int, str], list[Approval]]:
    """Return an approval of each call that differs from the first ones, by project and group; one query, or none."""
    found: dict[tuple[int, str], list[Approval]] = defaultdict(list)
    if not groups:
        return found
    rows = with_group(waiting({one.project_id for one in first})).filter(group__in=groups)
    ranked = rows.annotate(
        of_call=Window(RowNumber(), partition_by=[F("project_id"), F("group"), F("call_key")], order_by="pk"),
        call=Window(DenseRank(), partition_by=[F("project_id"), F("group")], order_by="call_key"),
    )
    known = {one.pk for one in first}
    for one in ranked.filter(of_call=1, call__lte=MAX_OTHERS + 1).order_by("pk"):
        others = found[one.project_id, one.group]
        if one.pk not in known and len(others) < MAX_OTHERS:
            others.append(one)
    return found
