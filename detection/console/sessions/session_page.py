"""The page of a session: its story, map, trace, calls, counters and settings, with stop, resume and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from detection import clock
from detection.console import formatting, permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.loops import incident_text
from detection.console.policies import setting_changes
from detection.console.policies.change_here import CallNames
from detection.console.policies.decided_settings import DecidedSetting, decided_settings, reached_limit
from detection.console.policies.policy_pages import reaction_values
from detection.console.sessions import differences, session_family, session_navigator, trace
from detection.console.sessions.session_navigator import MAX_DETAILED_CALLS, Navigator
from detection.console.sessions.session_rows import (
    STOP_WORDS,
    meter_title,
    session_row,
    stop_sentence,
    stopped_by,
    was_refused,
)
from detection.console.sessions.session_window import number
from detection.engine import commands as grammar
from detection.engine import durations
from detection.engine.detectors import detector_for
from detection.engine.scopes import Scope
from detection.filtering import language
from detection.integrations.reach import REACH_WORDS
from detection.models import Incident, Role, Session, SessionState, call_flags
from detection.models.session_state import STOPPED_STATES, shown_state
from detection.selectors import dashboard, policies
from detection.selectors import sessions as selector
from detection.selectors.prices import known_cost
from detection.selectors.session_runs import RUN_KEY_CHARACTERS
from detection.selectors.sessions import CallRow, CompactionRow, MessageRow
from detection.selectors.strips import HUES
from detection.services import agent_messages
from detection.services.errors import ServiceError
from detection.services.sessions import actions as service
from detection.services.sessions.session_names import find_session
from detection.web.forms import OverrideForm, form_settings

MAX_ROWS = {"trace": 200, "calls": 100}
"""Maximum number of calls in a view."""
COMPARED_BACK = 400
SHOWN_REPLIES = 10
SHOWN_LOOPS = 10
SHOWN_TOOLS = 8
TABS = {"trace": "Trace", "calls": "Calls", "settings": "Settings"}
EARLIER_TABS = {"timeline": "trace", "table": "calls"}
"""Names of tabs in addresses of before."""


@in_project()
@require_safe
def by_name(request: ProjectRequest) -> HttpResponse:
    """Show a session whose name does not fit into a path."""
    name = request.GET.get("name", "")
    return _show(request, name) if name else redirect("console:sessions", request.project.slug)


@in_project()
@require_safe
def page(request: ProjectRequest, name: str) -> HttpResponse:
    """Show a session."""
    return _show(request, name)


def _show(request: ProjectRequest, name: str) -> HttpResponse:
    session = _session(request, name)
    tab = request.GET.get("tab", "")
    tab = EARLIER_TABS.get(tab, tab)
    tab = tab if tab in TABS else next(iter(TABS))
    context: dict[str, Any] = _head_context(request, session, tab)
    if tab == "settings":
        context |= _settings_context(request, session)
    else:
        context |= _run_context(request, session, tab)
    return render(request, "sessions/session.html", context)


def _head_context(request: ProjectRequest, session: Session, tab: str) -> dict[str, Any]:
    newest = _newest_incident(session)
    return {
        "story": incident_text.sentence(newest) if newest else (),
        "story_incident": newest,
        "cost": _cost_words(session),
        "session": session,
        "row": session_row(session, clock.now()),
        "ended_by_stop": stopped_by(session) if session.ended_at and was_refused(session) else "",
        "reach": REACH_WORDS[session.reach],
        "stop": STOP_WORDS[session.reach],
        "tab": tab,
        "tabs": TABS.items(),
        "tree": session_family.lay_out(session),
        "session_url": permalinks.session_url(request.project.slug, session.external_id),
        "quarantined_count": session.quarantined_events.count(),
        "loops_export_url": _incidents_export_url(request, session),
        "tools": selector.called_tools(session, limit=SHOWN_TOOLS + 1),
        "shown_tools": SHOWN_TOOLS,
    }


def _run_context(request: ProjectRequest, session: Session, tab: str) -> dict[str, Any]:
    run = session_navigator.read(request, session)
    rows = run.rows(MAX_ROWS[tab])
    read = run.rows(MAX_DETAILED_CALLS) if run.is_detailed else rows
    calls = selector.session_calls(session, after_seq=read[0].seq - 1, limit=len(read)).items if read else ()
    shown_seq = run.chosen_seq or _first_shown(run)
    context: dict[str, Any] = {
        "navigator": run,
        "query_text": run.text,
        "refreshed": ",".join(_refreshed(run)),
        "incidents": [
            (
                incident,
                incident_text.title(incident),
                incident_text.STATUS_CHIPS[incident.status],
                incident_text.progress(incident, is_blocked=session.state in STOPPED_STATES),
            )
            for incident in dashboard.newest_incidents_of_session(session, SHOWN_LOOPS)
        ],
        "all_incidents_url": _incidents_url(request, session) if len(run.incidents) > SHOWN_LOOPS else "",
        "chosen_seq": shown_seq,
        "command_replies": selector.command_replies(session, limit=SHOWN_REPLIES)[::-1],
        "shown": (rows[0].number, rows[-1].number) if rows else None,
        "next_rows": run.following(rows),
    }
    if run.is_detailed and rows:
        calls = tuple(call for call in calls if rows[0].seq <= call.seq <= rows[-1].seq)
    if shown_seq:
        context |= _call_context(session, shown_seq)
    compactions, messages_ = _between(session, calls, is_first=bool(rows) and rows[0].seq == run.run.seqs[0])
    if tab == "trace":
        notes: list[MessageRow | CompactionRow] = [*compactions, *messages_]
        notes.sort(key=attrgetter("seq"))
        context["has_model_texts"] = any(one.is_of_model for one in messages_)
        context["trace"] = trace.lay_out(calls, run.colours, notes, run.unmarked, shown_seq)
    if tab == "calls":
        lines = [_line(row, before, run.colours) for row, before in _with_previous(calls)]
        context["lines"] = sorted([*lines, *compactions], key=lambda line: line.seq, reverse=True)
    return context


def _incidents_url(request: ProjectRequest, session: Session) -> str:
    query = urlencode(
        {"q": language.write([language.Term("session", (language.exact(session.external_id),))])}
    )
    return f"{reverse('console:loop_history', args=[request.project.slug])}?{query}"


def _incidents_export_url(request: ProjectRequest, session: Session) -> str:
    query = urlsplit(_incidents_url(request, session)).query
    return f"{reverse('console:export_list', args=[request.project.slug, 'incidents'])}?{query}&format=csv"


def _refreshed(run: Navigator) -> list[str]:
    """Return the parts of the page that are refreshed when the session changes. Searches are not repeated."""
    parts = [
        "session-stop",
        "session-line",
        "session-story",
        "session-budgets",
        "session-loops",
    ]
    if not run.text:
        parts += ["run-bar", "run-map"]
        parts += ["session-calls"] if run.window.follows else []
    return [f"#{part}" for part in parts]


def _session(request: ProjectRequest, name: str) -> Session:
    session = find_session(request.project, name) if name else None
    if session is None:
        raise Http404
    return session


def _first_shown(run: Navigator) -> int:
    """Return the call that is shown until one is selected.

    Of the newest loop the first that did not run, which is what people ask about, or the first; without a loop the
    newest call.
    """
    seqs = run.run.seqs
    loop = next((loop for loop in reversed(run.loops) if loop.first_seq in seqs), None)
    if loop is None:
        return seqs[-1] if seqs else 0
    kept = (
        cell.seq
        for cell in run.run.cells
        if loop.first_seq <= cell.seq <= loop.last_seq and call_flags.has_not_run(cell.flags)
    )
    return next(kept, loop.first_seq)


def _newest_incident(session: Session) -> Incident | None:
    """Return the incident of the story of a session: its newest loop, otherwise its newest spent budget."""
    found = dashboard.newest_incidents_of_session(session, SHOWN_LOOPS)
    loops = (one for one in found if not detector_for(one.kind).is_run_limit)
    return next(loops, found[0] if found else None)


def _between(
    session: Session, calls: Sequence[CallRow], *, is_first: bool
) -> tuple[list[CompactionRow], list[MessageRow]]:
    """Return the compactions and the messages among the calls shown, and those up to the next call."""
    if not calls:
        return [], selector.list_messages(session, after_seq=0, up_to_seq=session.last_seq)
    following = selector.session_calls(session, after_seq=calls[-1].seq, limit=1).items
    last = following[0].seq if following else session.last_seq
    after = 0 if is_first else calls[0].seq
    return (
        selector.list_compactions(session, after_seq=after, up_to_seq=last),
        selector.list_messages(session, after_seq=after, up_to_seq=last),
    )


@dataclass(frozen=True, slots=True)
class CallLine:
    """One call of the table."""

    call: CallRow
    swatch: str
    """CSS classes of the edge colour: that of the call key if it is repeated."""
    is_equal: bool
    changes: tuple[differences.Difference, ...]
    chip: str
    took: str

    @property
    def seq(self) -> int:
        """Sequence number of the call."""
        return self.call.seq


def _with_previous(calls: Sequence[CallRow]) -> list[tuple[CallRow, CallRow | None]]:
    """Pair each call with the call of the same tool before it."""
    last: dict[str, CallRow] = {}
    pairs = []
    for call in calls:
        pairs.append((call, last.get(call.tool)))
        last[call.tool] = call
    pairs.reverse()
    return pairs


def _cost_words(session: Session) -> str:
    """Return the cost; empty if it is not known."""
    cost = known_cost(session)
    return "" if cost is None else formatting.money(cost)


def _are_identical(one: CallRow, other: CallRow) -> bool:
    """Return whether two calls have one key and, where it says nothing of their arguments, no different ones."""
    if not other.call_key or one.call_key != other.call_key:
        return False
    return one.arguments == other.arguments or not differences.between(one.arguments, other.arguments)


def _line(call: CallRow, before: CallRow | None, colours: dict[str, int]) -> CallLine:
    key = call.call_key[:RUN_KEY_CHARACTERS]
    is_equal = before is not None and _are_identical(before, call)
    result = call.result
    took = durations.precise((result.received_at - call.received_at).total_seconds()) if result else ""
    swatch = "swatch no" if call.has_not_run else "swatch"
    if key in colours:
        swatch += f" k h{colours[key] % HUES}" + (" p" if call_flags.NEW in call.flags else "")
    return CallLine(
        call,
        swatch,
        is_equal,
        (),
        incident_text.DECISION_CHIPS.get(call.decision, "plain"),
        took,
    )


@in_project()
@require_safe
def call(request: ProjectRequest) -> HttpResponse:
    """Show one call beside the strip."""
    session = _session(request, request.GET.get("name", ""))
    seq = number(request.GET.get("call"), 0)
    context = {
        "query_text": request.GET.get("q", ""),
        "session": session,
        "session_url": permalinks.session_url(request.project.slug, session.external_id),
    }
    return render(request, "sessions/_call.html", context | _call_context(session, seq))


def _call_context(session: Session, seq: int) -> dict[str, Any]:
    """Return a call with the previous call of the same tool and the changes between them."""
    found = selector.session_calls(session, after_seq=seq - 1, limit=1).items if seq > 0 else ()
    if not found or found[0].seq != seq:
        return {"call": None, "chosen_seq": seq}
    shown = found[0]
    earlier = selector.session_calls(session, before_seq=seq, limit=COMPARED_BACK).items
    before = next((row for row in reversed(earlier) if row.tool == shown.tool), None)
    same = [row.seq for row in earlier if _are_identical(row, shown)]
    following = selector.session_calls(session, after_seq=seq, limit=1).items
    finding = shown.verdict.finding if shown.verdict else None
    return {
        "call": shown,
        "chosen_seq": seq,
        "before": before,
        "changes": differences.between(before.arguments, shown.arguments) if before else (),
        "result_changes": _result_changes(before, shown),
        "has_same_result": _has_same_result(before, shown),
        "is_equal": before is not None and _are_identical(before, shown),
        "equal_before": same,
        "previous_seq": earlier[-1].seq if earlier else None,
        "next_seq": following[0].seq if following else None,
        "verdict_chip": incident_text.DECISION_CHIPS.get(shown.decision, "plain"),
        "finding": finding,
        "finding_words": meter_title(finding["kind"], finding["count"], finding["limit"]) if finding else "",
        "delay": durations.precise((shown.result.received_at - shown.received_at).total_seconds())
        if shown.result
        else "",
        "skew": _skew(shown),
        "decided": _decided(session, shown),
    }


def _result_changes(before: CallRow | None, shown: CallRow) -> tuple[differences.Difference, ...]:
    """Return what differs between the results of two calls, if both are stored."""
    if before is None or not before.result or not shown.result:
        return ()
    texts = before.result.content, shown.result.content
    return () if None in texts else differences.between(*texts)


def _has_same_result(before: CallRow | None, shown: CallRow) -> bool:
    """Return whether two calls have the same stored result."""
    results = [one.result.content for one in (before, shown) if one is not None and one.result]
    return len(results) == 2 and results[0] is not None and results[0] == results[1]


def _decided(session: Session, shown: CallRow) -> list[DecidedSetting]:
    """Return the settings that decided about a call, with what applies now."""
    if shown.verdict is None or not shown.verdict.policy:
        return []
    names = shown.agent or session.agent, shown.backend or session.backend, shown.model or session.model
    slug, name = session.project.slug, session.external_id
    return decided_settings(
        slug,
        shown.verdict.policy,
        policies.effective(session.project, *names, shown.tool, session),
        CallNames(*names, shown.tool, name),
        permalinks.call_page_url(slug, name, shown.seq),
        reached_limit(finding["kind"], finding["limit"], shown.verdict.policy)
        if (finding := shown.verdict.finding)
        else "",
    )


def _skew(shown: CallRow) -> str:
    if shown.occurred_at is None:
        return ""
    seconds = (shown.received_at - shown.occurred_at).total_seconds()
    return (
        f"client clock {durations.span(abs(seconds))} {'behind' if seconds > 0 else 'ahead'}"
        if abs(seconds) > 5
        else ""
    )


def _settings_context(
    request: ProjectRequest, session: Session, form: OverrideForm | None = None
) -> dict[str, Any]:
    form = form or _settings_form(request, session)
    return {"form": form, "settings": form_settings(form), **reaction_values(form.inherited)}


def _settings_form(request: ProjectRequest, session: Session) -> OverrideForm:
    scope = Scope("session", session.agent, session.backend, session.model)
    return OverrideForm(
        request.POST or None,
        scope=scope,
        own=session.policy_values,
        inherited=policies.overrides_of(request.project).inherited(scope, session.policy_values),
    )


@in_project(Role.OPERATOR)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Stop, resume, change settings or send a command; the form names the session."""
    project, actor = request.project, actor_of(request)
    name, action = request.POST.get("name", ""), request.POST.get("action", "")
    session = _session(request, name)
    name = session.external_id
    url = permalinks.session_url(project.slug, name)
    try:
        if action == "stop":
            stopped = service.stop(project.pk, name, actor, request.POST.get("reason", ""))
            messages.success(request, stop_sentence({stopped.reach: 1}, stopped.external_id))
        elif action == "resume":
            service.resume(project.pk, name, actor)
            was_enforced = shown_state(session) != SessionState.STOP_UNENFORCED
            words = "Session resumed. Its counters were reset." if was_enforced else "Stop withdrawn."
            messages.success(request, words)
            if back := next_page(request, ""):
                return HttpResponseRedirect(back)
        elif action == "command":
            out = service.run_command(project.pk, name, request.POST.get("text", "")[:2000], actor)
            for line in out.lines:
                messages.info(request, line)
        elif action == "message":
            agent_messages.leave(project.pk, request.POST.get("text", ""), actor, session=name)
            messages.success(request, "The agent gets it with its next verdict.")
        elif action == "revoke_exemption":
            tool = request.POST.get("tool", "")
            service.revoke_exemption(project.pk, name, tool, actor)
            messages.success(request, f"Exemption of {tool} undone. It takes effect on the next call.")
        elif action == setting_changes.DIFF:
            form = _settings_form(request, session)
            stored = policies.overrides_of(project)
            inherit = partial(stored.inherited, form.scope)
            return setting_changes.respond(request, form, inherit, asks_reason=False)
        elif action == "settings":
            return _save_settings(request, session, url)
        else:
            raise Http404
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect(url)


def _kept(request: ProjectRequest, session: Session, form: OverrideForm) -> str:
    """Return which settings other values still decide if the session has just chosen a preset; empty if none."""
    if form.values.get("preset") in (None, form.own.get("preset")):
        return ""
    kept = grammar.kept_lines(policies.effective(request.project, session=session))
    return f" {'; '.join(kept)}." if kept else ""


def _save_settings(request: ProjectRequest, session: Session, url: str) -> HttpResponse:
    form = _settings_form(request, session)
    if form.is_valid():
        unset = dict.fromkeys(session.policy_values)
        try:
            saved_session = service.set_policy(
                request.project.pk, session.external_id, {**unset, **form.values}, actor_of(request)
            )
        except ServiceError as error:
            form.add_service_error(error)
        else:
            saved = "Override saved. It takes effect on the next call."
            messages.success(request, f"{saved}{_kept(request, saved_session, form)}")
            return redirect(f"{url}{'&' if '?' in url else '?'}tab=settings")
    context = _head_context(request, session, "settings") | _settings_context(request, session, form)
    return render(request, "sessions/session.html", context, status=422)
