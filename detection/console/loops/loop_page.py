"""The page of a loop: what happens, its fix, its runs, the evidence of one of them, and what people decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.conf import settings
from django.http import Http404, HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from detection import clock
from detection.console import formatting
from detection.console.access import ProjectRequest, in_project
from detection.console.loops import incident_text, loop_text, run_parts, runs_chart
from detection.console.loops.incident_text import ACTIVITY, Part
from detection.console.loops.loop_list import line_of, members_of
from detection.console.now.now_page import button_of, effect_of
from detection.console.sessions.session_rows import session_row, was_refused
from detection.engine.detectors import detector_for
from detection.filtering.language import Term, term, write
from detection.integrations.reach import REACH_WORDS, REACHES
from detection.models import AuditEntry, Incident, Loop, LoopActivity, Session
from detection.models.incidents import IncidentLabel
from detection.selectors import approvals, incidents, loop_runs
from detection.selectors import loops as selector
from detection.selectors.loops import LoopRow

REFRESHED: Final = ",".join(
    f"#loop-{part}"
    for part in (
        "title", "buttons", "banners", "said", "runs", "shared", "facts", "pairs", "timeline", "run",
    )
)  # fmt: skip
"""Parts of the page that change with its runs. An open menu is left as it is, and so is the choice of an owner."""
SHOWN_RUNS: Final = 8
SHOWN_ACTIVITY: Final = 100
SHOWN_EXCEPTIONS: Final = 3
SHOWN_VALUES: Final = 3
"""Values of each field that runs share."""
_FILTERS: Final = {"session_name": "session"}
"""Fields of filters that are not called as the columns of runs are."""
_ICONS: Final = {"done": "check", "later": "clock", "commented": "person", "assigned": "person"}


@dataclass(frozen=True, slots=True)
class RunLine:
    """A row of the table of runs.

    Attributes
    ----------
    state, state_words
        Of its session while the run continues; else what became of the run.
    """

    run: Incident
    session: Session | None
    state: str
    state_words: str
    did: str
    did_chip: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the timeline; `run` is the session of an entry that is about one run."""

    at: datetime
    icon: str
    words: str
    note: str = ""
    url: str = ""
    run: str = ""

    @property
    def detail(self) -> str:
        """The session and the note."""
        return " · ".join(filter(None, (self.run, self.note)))


def _query(terms: tuple[Term, ...], sort: str = "") -> str:
    return urlencode({"q": write(terms), **({"sort": sort} if sort else {})})


@in_project()
@require_safe
def of_incident(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Lead from the address of an incident to its loop, which shows it as a run."""
    incident = incidents.get_incident(request.project.pk, public_id)
    if incident is None:
        raise Http404
    kept = {name: value for name, value in request.GET.items() if name == "call"}
    address = reverse("console:loop", args=[request.project.slug, incident.loop.public_id])
    return HttpResponsePermanentRedirect(f"{address}?{urlencode({'run': public_id, **kept})}")


@in_project()
@require_safe
def page(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show a loop."""
    project_id = request.project.pk
    loop = selector.get_loop(project_id, public_id)
    if loop is None:
        raise Http404
    row = selector.row_of(loop)
    facts, line = selector.shared_facts(loop), line_of(row)
    arguments = selector.arguments_of(loop, loop_text.shown_loops(row.kind, facts))
    of_it = (term("loop", public_id),)
    newest = loop_runs.newest_runs(loop)
    chosen = _chosen(request, loop, newest)
    wanted_call = request.GET.get("call", "")
    seq = int(wanted_call) if wanted_call.isascii() and wanted_call.isdigit() and len(wanted_call) < 10 else 0
    before, after = loop_runs.beside(chosen)
    changes = loop_runs.policy_changes(
        loop, row.first_seen_at, (one.name for one in row.agents), (one.name for one in row.models)
    )
    looping = loop_runs.looping_sessions(loop)
    figures = loop_runs.figures(loop)
    activity = list(loop.activity.order_by("-at", "-id")[:SHOWN_ACTIVITY])
    sent = loop_runs.notifications_of(loop)
    of_run = run_parts.of_run(chosen, seq)
    reaches = loop_runs.reaches_of(looping)
    address = request.build_absolute_uri(reverse("console:loop", args=[request.project.slug, public_id]))
    said = (*line.parts, Part(". "))
    context: dict[str, Any] = {
        "loop": loop,
        "line": line,
        "said": said,
        "judgement": loop_text.judgement(row, facts),
        "row": row,
        "no_cost": _no_cost(row),
        "fine_url": _fine_url(request, chosen, public_id),
        "figures": figures,
        "control": [(one, REACH_WORDS[one], figures.reaches[one]) for one in REACHES if figures.reaches[one]],
        "conclusion": loop_text.conclusion(facts),
        "shared": [
            (one, value, _query((*of_it, term(_FILTERS.get(one.name, one.name), value.name))))
            for one in loop_text.shared_lines(row.kind, facts, arguments)
            for value in one.values[:SHOWN_VALUES]
            if one.name != "session_name" or value.number > 1
        ],
        "detectors": _detectors(newest),
        "runs": _lines(request, newest, chosen),
        "run": chosen,
        "is_run_chosen": "run" in request.GET,
        "run_before": before,
        "run_after": after,
        "runs_query": _query(of_it),
        "chart": runs_chart.chart_of(loop_runs.bars_of(loop, row.first_seen_at), changes),
        "looping": looping,
        "stop_button": button_of(reaches) if looping else "",
        "stop_effect": effect_of(reaches) if looping else "",
        "timeline": _timeline(request, row, activity, of_run["run_activity"], chosen, changes, sent, newest),
        "sent": sent,
        "exceptions": [
            one
            for one in incidents.exceptions_of_loop(project_id, loop.pk)[:SHOWN_EXCEPTIONS]
            if one.incident_id != chosen.pk  # that of the run is shown with the run
        ],
        "pending": [entry for entry in activity if entry.finished_at is None],
        "members": members_of(project_id),
        "refreshed": REFRESHED,
        "block_query": _block_query(row),
        "limit_url": run_parts.limit_url(chosen),
        "issue": run_parts.issue_text(
            formatting.visible(row.title),
            formatting.visible("".join(part.text for part in said)) + loop_text.conclusion(facts),
            address,
            chosen,
            of_run["evidence"],
        ),
        **of_run,
    }
    return render(request, "loops/loop.html", context)


def _no_cost(row: LoopRow) -> str:
    """Return why a loop has no cost of its own."""
    if row.cost_note == "shared":
        return "Its calls count in the loops that found them first"
    return "All its runs are marked as fine" if row.cost_note else "No price is known for its model"


def _fine_url(request: ProjectRequest, run: Incident, public_id: str) -> str:
    """Return the form that accepts the loop, about the run that is chosen."""
    address = reverse("console:loop_fine", args=[request.project.slug, public_id])
    return f"{address}?run={run.public_id}" if "run" in request.GET else address


def _chosen(request: ProjectRequest, loop: Loop, newest: Sequence[Incident]) -> Incident:
    """Return the run whose evidence is shown, with its evidence: that of the address, or the clearest."""
    name = request.GET.get("run", "")
    if not name:
        clearest = loop_runs.clearest(newest)
        name = clearest.public_id if clearest is not None else ""
    found = incidents.get_incident(loop.project_id, name)
    if found is None or found.loop_id != loop.pk:
        raise Http404
    return found


def _lines(request: ProjectRequest, newest: Sequence[Incident], chosen: Incident) -> list[RunLine]:
    shown = [*newest[:SHOWN_RUNS]]
    if all(one.pk != chosen.pk for one in shown):
        shown[SHOWN_RUNS - 1 :] = [chosen]
    held = approvals.latest_of(request.project.pk, (one.pk for one in shown if one.decision == "hold"))
    now = clock.now()
    found = []
    for run in shown:
        state, words = _state(run, now)
        found.append(
            RunLine(
                run,
                run.session,
                state,
                words,
                incident_text.did(run, held.get(run.pk)),
                incident_text.did_chip(run, held.get(run.pk)),
                run.pk == chosen.pk,
            )
        )
    return found


def _state(run: Incident, now: datetime) -> tuple[str, str]:
    """Return the look and the words of the state of a run."""
    if run.label == IncidentLabel.FALSE_ALARM:
        return "ended", "Fine"
    if run.session is not None and (run.is_active or _was_stopped_in(run, run.session)):
        if run.session.ended_at is not None and was_refused(run.session):
            return "stopped", "Stopped"
        line = session_row(run.session, now)
        if run.last_seen_at > now - settings.LOOPING_FOR or line.state not in ("looping", "silent"):
            return line.state, line.short
        return "silent", "Silent in a loop"
    if run.recovered:
        return "ended", "Got out of it"
    return "ended", "Ended"


def _was_stopped_in(run: Incident, session: Session) -> bool:
    """Return whether a stop that is in force came before the run ended."""
    return session.stopped_at is not None and run.ended_at is not None and run.ended_at >= session.stopped_at


def _detectors(newest: Iterable[Incident]) -> list[str]:
    """Return the detectors that found the runs, those that acted first."""
    kinds = dict.fromkeys(kind for run in newest for kind in (run.kind, *run.kinds))
    return [detector_for(kind).label for kind in kinds]


def _block_query(row: LoopRow) -> str:
    """Return what to fill in to block the tool of a loop, for the agent if there is only one."""
    if not row.tool or detector_for(row.kind).spans_tools:
        return ""
    agents = [one.name for one in row.agents]
    where = (
        {"scope": "agent_tool", "value": agents[0], "tool": row.tool}
        if len(agents) == 1
        else {"scope": "tool", "value": row.tool}
    )
    return urlencode({"reaction": "block", **where})


def _timeline(
    request: ProjectRequest,
    row: LoopRow,
    activity: Iterable[LoopActivity],
    of_run: Iterable[Any],
    run: Incident,
    changes: Iterable[AuditEntry],
    sent: Iterable[Any],
    newest: Sequence[Incident],
) -> list[Entry]:
    """Return what happened to a loop and to the chosen run, the newest first."""
    slug = request.project.slug
    found = [
        Entry(
            one.at,
            _ICONS.get(one.action.partition(":")[0], "loops"),
            _by(ACTIVITY.get(one.action, formatting.word(one.action).capitalize()), one.actor)
            + (
                f", {one.changed:,} run{'' if one.changed == 1 else 's'}"
                if one.last_incident and one.changed
                else ""
            ),
            one.note,
        )
        for one in activity
    ]
    found += [
        Entry(
            one.at,
            "sessions",
            _by(_run_words(one.action, run), one.actor),
            _often(run, one),
            run=run.session_name,
        )
        for one in of_run
        if one.loop_change_id is None
    ]
    found += [
        Entry(
            one.at,
            "policies",
            _by(runs_chart.change_words(one), one.actor),
            url=reverse("console:policy_history", args=[slug]),
        )
        for one in changes
    ]
    found += [
        Entry(
            one.finished_at or one.created_at,
            "alerts",
            f"{'Sent' if one.state == 'delivered' else one.get_state_display()}: {one.destination.name}",
            url=reverse("console:notification", args=[slug, one.public_id]),
        )
        for one in sent
    ]
    found.append(Entry(row.first_seen_at, "loops", "First seen"))
    return sorted(found, key=lambda one: one.at, reverse=True)


def _by(words: str, actor: str) -> str:
    return words if actor == "system" else f"{words} by {actor}"


def _run_words(action: str, run: Incident) -> str:
    if not run.was_guarded and action in ("reacted", "reacted_also"):
        return "The guard would have reacted"
    return ACTIVITY.get(action, formatting.word(action).capitalize())


def _often(run: Incident, entry: Any) -> str:
    times = incident_text.times(run, entry)
    return f"{entry.note}, {times:,} times" if times > 1 else str(entry.note)
