"""What is shown on every page: the numbers of the navigation, and the calls that wait for a person."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project, lacks_second_factor, memberships
from detection.console.approvals import decisions, held_groups
from detection.console.approvals.held_groups import GroupCard
from detection.console.formatting import visible
from detection.console.recent_cache import RecentCache
from detection.models import Membership, Role
from detection.selectors import approvals as selector
from detection.selectors import changes, dashboard, loops

MAX_SHOWN = 10
"""Groups of held calls in the panel of every page, the most urgent ones; Held calls has all."""
HOT = frozenset(("now", "approvals"))
_COUNT_SECONDS = 1.0
_counts_cache: RecentCache[tuple[float, dict[str, int]]] = RecentCache(256)


@dataclass(frozen=True, slots=True)
class Badge:
    """A number of the navigation. `is_hot` asks for attention."""

    count: int
    is_hot: bool

    @property
    def text(self) -> str:
        """The number, as far as it is counted."""
        return "999+" if self.count >= dashboard.MAX_IN_NAVIGATION else str(self.count)


def badges(project_id: int) -> dict[str, Badge]:
    """Count what the navigation shows; five bounded queries."""
    return _badges(_counts(project_id))


def _counts(project_id: int) -> dict[str, int]:
    of_loops = loops.navigation_counts(project_id)
    return {
        "now": dashboard.looping_sessions(project_id),
        "approvals": selector.count_waiting(project_id),
        "loops": of_loops.open,
        "later_loops": of_loops.later_but_firing,
    }


def _badges(counts: dict[str, int]) -> dict[str, Badge]:
    return {name: Badge(count, count > 0 and name in HOT) for name, count in counts.items()}


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A group of calls that waits for a person, with their membership in its project.

    `elsewhere` names another project.
    """

    card: GroupCard
    membership: Membership
    elsewhere: str

    @property
    def one(self) -> decisions.Waiting:
        """Its oldest call."""
        return self.card.one

    @property
    def id(self) -> str:
        """Id of the approval; of several, of their group."""
        return self.card.held.first.public_id if self.card.held.approvals == 1 else self.card.held.group

    @property
    def may_operate(self) -> bool:
        """Whether the person may answer."""
        return self.membership.allows(Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """The calls that wait for this person in all their projects: the most urgent ones, and how many there are."""

    shown: list[HeldCall]
    count: int

    @property
    def may_answer(self) -> bool:
        """Whether the person may answer any that is shown."""
        return any(one.may_operate for one in self.shown)

    @property
    def is_elsewhere(self) -> bool:
        """Whether any that is shown waits in another project."""
        return any(one.elsewhere for one in self.shown)

    @property
    def text(self) -> str:
        """The number, as the navigation shows numbers."""
        return Badge(self.count, is_hot=True).text


def _announced(request: ProjectRequest) -> dict[int, Membership]:
    """Return the memberships in projects whose held calls are announced, by project: this one first."""
    own = request.membership
    found = {own.project_id: own}
    for other in memberships(request, own.project_id):
        if other.project.archived_at is None and not lacks_second_factor(request, other.project):
            found.setdefault(other.project_id, other)
    return found


def held_calls_of_page(request: ProjectRequest, count: int) -> HeldCalls:
    """Return the held calls for a page whose own project has `count`."""
    announced = _announced(request)
    others = [one for one in announced if one != request.project.pk]
    elsewhere = selector.count_waiting(*others) if others else 0
    return _held_calls(request.project.pk, announced, count + elsewhere)


def _held_calls(project_id: int, announced: Mapping[int, Membership], count: int) -> HeldCalls:
    """Return the most urgent groups of `count` held calls; three queries if there are any."""
    shown = [
        HeldCall(
            card,
            member := announced[card.one.approval.project_id],
            "" if member.project_id == project_id else visible(member.project.name),
        )
        for card in (held_groups.cards([*announced], MAX_SHOWN) if count else ())
    ]
    return HeldCalls(shown, count)


@in_project()
@require_safe
def attention(request: ProjectRequest) -> HttpResponse:
    """Return badges and held calls for the open pages.

    All open pages fetch them after a change, so they share the numbers until the next commit, for at most a second.
    ``known`` names the cards that the page shows; those that have been answered are returned with the person who
    answered.
    """
    project_id, announced = request.project.pk, _announced(request)
    counts = _shared_counts(project_id, tuple(one for one in announced if one != project_id))
    held = _held_calls(project_id, announced, counts["approvals"] + counts.pop("elsewhere"))
    ids = {one.id for one in held.shown}
    known = [name for name in request.GET.get("known", "")[:1000].split(",")[:MAX_SHOWN] if name]
    gone = [name for name in known if name not in ids]
    closed = selector.closed_of(announced, gone)
    return JsonResponse(
        {
            "badges": {
                name: {"text": badge.text, "count": badge.count, "is_hot": badge.is_hot}
                for name, badge in _badges(counts).items()
            },
            "held_count": {"text": held.text, "count": held.count},
            "held": [_card(request, one) for one in held.shown],
            "closed": [{"id": row.public_id, "words": _words(row)} for row in closed]
            + [{"id": name, "words": words} for name, words in _closed_groups(announced, gone)],
        },
        headers={"Cache-Control": "private, no-store"},
    )


def _shared_counts(project_id: int, others: tuple[int, ...]) -> dict[str, int]:
    """Return the numbers of the navigation, and of the calls held in other projects."""
    key = (project_id, others, changes.snapshot())
    # The key does not cover the changes of an open transaction.
    known = None if connection.in_atomic_block else _counts_cache.get(key)
    if known is None or time.monotonic() - known[0] > _COUNT_SECONDS:
        counts = _counts(project_id) | {"elsewhere": selector.count_waiting(*others) if others else 0}
        known = time.monotonic(), counts
        _counts_cache.put(key, known)
    return {**known[1]}


def _closed_groups(project_ids: Collection[int], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what became of groups that wait no longer, by the decision taken last; two queries for each."""
    for name in names:
        last, others = (
            (None, 0) if name.startswith("apr_") else selector.last_closed_of_group(project_ids, name)
        )
        if last is not None:
            yield name, _words(last, others)


def _card(request: ProjectRequest, held: HeldCall) -> dict[str, Any]:
    approval = held.one.approval
    agent = visible(approval.agent) or "an unnamed agent"
    place = f" in project {held.elsewhere}" if held.elsewhere else ""
    count = held.card.held.approvals
    many = f", {count:,} sessions" if count > 1 else ""
    return {
        "id": held.id,
        "count": count,
        "first": approval.public_id,
        "group": held.card.held.group,
        "what": f"{visible(approval.tool)} of {agent}{many}{place}",
        "summary": visible(approval.summary),
        "session": visible(approval.session.external_id),
        "seconds_left": held.one.seconds_left,
        "url": f"{reverse('console:held', args=[held.membership.project.slug])}#{held.id}",
        "html": render_to_string("approvals/_held.html", {"held_call": held}, request),
    }


def _words(approval: Any, others: int = 0) -> str:
    closed = decisions.closed(approval)
    by = f" by {closed.by}" if closed.by else f", {closed.reason}"
    more = f" and {others:,} more" if others else ""
    return visible(f"{closed.words}{by}: {approval.tool} in {approval.session.external_id}{more}.")
