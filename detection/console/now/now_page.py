"""The first page: what loops now and what it costs, and what fell silent in a loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from detection import clock
from detection.console import formatting
from detection.console.access import ProjectRequest, in_project
from detection.console.approvals import held_groups
from detection.console.integrations.connect import guard_url
from detection.console.loops import incident_text
from detection.console.loops.loop_list import Line, line_of
from detection.console.policies.policy_pages import changes_of
from detection.console.sessions.session_rows import STOP_WORDS, session_row, stop_outcome, stopped_by
from detection.integrations.reach import CAN_BLOCK, CAN_STOP, REACH_WORDS, REACHES, WATCH_ONLY
from detection.models import AuditEntry, Incident, Session, StoppedByKind
from detection.selectors import now as selector
from detection.selectors.now import LoopingNow
from detection.selectors.reported_events import reported_events
from detection.selectors.visits import SinceVisit, since_visit

HELD_SHOWN = 5
"""Groups of held calls, those with the first deadlines; the page of held calls has all. As of silent sessions."""
_EFFECTS = {
    CAN_STOP: ("It stops before its next call.", "{} stop before their next call."),
    CAN_BLOCK: ("It continues without tools.", "{} continue without tools."),
    WATCH_ONLY: (
        "It only reports its calls: a stop is recorded and cannot be enforced.",
        "{} only report their calls: a stop is recorded and cannot be enforced.",
    ),
}
_VERBS = {CAN_STOP: "stop {}", CAN_BLOCK: "block {}", WATCH_ONLY: "request {} stops"}


@dataclass(frozen=True, slots=True)
class Card:
    """A loop that runs now.

    Attributes
    ----------
    marks
        Reach and how many sessions have it, in words.
    button, effect
        What the button of the card says, and what it will do; the button is empty where a stop is asked of all.
    unenforced
        Sessions that are only watched and that a person asked to stop: the request can be withdrawn.
    guard_words, guard_url
        Where to connect the first session that no stop reaches, or to check how it is connected.
    """

    loop: LoopingNow
    title: str
    marks: list[tuple[str, str]]
    button: str
    effect: str
    unenforced: list[Session]
    guard_words: str
    guard_url: str

    @property
    def session(self) -> Session:
        """The costliest session."""
        return self.loop.sessions[0]


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show it."""
    project = request.project
    moment = selector.moment(project.pk)
    context = {
        "moment": moment,
        "max_sessions": selector.MAX_SESSIONS,
        "cards": [_card(project.slug, one) for one in moment.loops],
        "held_cards": held_groups.cards((project.pk,), HELD_SHOWN),
        "silent": [(one, _title(incident)) for one, incident in moment.silent],
        "stopped": [(one, stop_outcome(one, clock.now()), stopped_by(one)) for one in moment.stopped],
        "curve": _curve(selector.curve(project.pk)) if moment.usd_per_minute else "",
        "last_title": _title(moment.last),
        "since": _since(request),
        "reported": reported_events(project),
    }
    return render(request, "now/page.html", context)


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """A change of settings: where, what, and by whom."""

    entry: AuditEntry
    scope: str
    changes: list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Since:
    """What has changed since the last visit, in words."""

    found: SinceVisit
    loops: list[tuple[str, Line]]
    policies: list[ScopeChange]


def _since(request: ProjectRequest) -> Since | None:
    """Return what has changed since the person's last visit; None on the first one."""
    at = request.membership.last_visit_at
    if at is None:
        return None
    found = since_visit(request.project.pk, at)
    return Since(
        found,
        [(one.change, line_of(one.loop)) for one in found.loops],
        [
            ScopeChange(entry, formatting.source_name(entry.subject), changes_of(entry))
            for entry in found.policies
        ],
    )


def _title(incident: Incident | None) -> str:
    return incident_text.title(incident) if incident is not None else "A loop"


def _card(slug: str, one: LoopingNow) -> Card:
    left = Counter(session.reach for session in one.to_stop)
    asked = [session_row(session, clock.now()) for session in one.sessions if session.stopped_by_kind]
    said = [f"{line.word}, {line.since_stop}." for line in asked[:1]]
    if len(asked) > 1:
        states = Counter(line.word for line in asked)
        said = [", ".join(f"{count:,} {word.lower()}" for word, count in states.items()) + "."]
    effects = [*said, *([effect_of(left)] if left else [])]
    unreached = [
        session for session in one.sessions if session.stopped_by_kind and session.reach == WATCH_ONLY
    ]
    was_asking = any(session.refused_since_stop for session in unreached)
    return Card(
        one,
        _title(one.incident),
        _marks(one.reaches),
        button_of(left) if left else "",
        " ".join(effects),
        [session for session in unreached if session.stopped_by_kind != StoppedByKind.DETECTION],
        "Check its integration" if was_asking else "Guard this agent",
        guard_url(slug, unreached[0].integration) if unreached else "",
    )


def _marks(reaches: Counter[str]) -> list[tuple[str, str]]:
    if len(reaches) == 1:
        return [(reach, REACH_WORDS[reach]) for reach in reaches]
    return [
        (reach, f"{reaches[reach]:,} {REACH_WORDS[reach][:1].lower()}{REACH_WORDS[reach][1:]}")
        for reach in REACHES
        if reaches[reach]
    ]


def button_of(reaches: Counter[str]) -> str:
    """Return what a button that stops sessions of these reaches says: the numbers and what becomes of them."""
    if reaches.total() == 1:
        return STOP_WORDS[next(iter(reaches))].button
    words = ", ".join(_VERBS[reach].format(f"{reaches[reach]:,}") for reach in REACHES if reaches[reach])
    return words[:1].upper() + words[1:]


def effect_of(reaches: Counter[str]) -> str:
    """Return what a stop of sessions of these reaches will do, a sentence for each reach."""
    if reaches.total() == 1:
        return _EFFECTS[next(iter(reaches))][0]
    if len(reaches) == 1:
        ((reach, count),) = reaches.items()
        return _EFFECTS[reach][1].format("Both" if count == 2 else f"All {count:,}")
    return " ".join(
        _EFFECTS[reach][1].format(f"{reaches[reach]:,}")
        if reaches[reach] > 1
        else _EFFECTS[reach][0].replace("It ", "One ", 1)
        for reach in REACHES
        if reaches[reach]
    )


def _curve(values: list[float]) -> str:
    """Return the points of the curve in a view box of 100 by 48, the newest right."""
    top = max(values) or 1.0
    step = 100 / (len(values) - 1)
    return " ".join(f"{place * step:.1f},{46 - 44 * value / top:.1f}" for place, value in enumerate(values))
