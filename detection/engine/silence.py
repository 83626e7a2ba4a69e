"""Detects silence: calls without a result, and runs that stop in the middle.

Silence produces no events, so a service asks periodically. The rules and limits are those of the detector `stalled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from detection.engine.calls import Finding
from detection.engine.detectors import BY_KIND
from detection.engine.detectors.stalled import Stalled
from detection.engine.memory import BLOCKING, PENDING, State
from detection.engine.policy import Policy

_STALLED = cast("Stalled", BY_KIND[Stalled.kind])


@dataclass(frozen=True, slots=True)
class Silence:
    """A moment at which a session is checked.

    Parameters
    ----------
    at : float
        Now, in Unix seconds of the server.
    last_event_at : float
        Time of the session's last event, in Unix seconds.
    reports_results : bool
        Whether a result is known of any call of the session. Without one, no call can be waited for.
    """

    at: float
    last_event_at: float
    reports_results: bool


def observe_silence(state: State, silence: Silence, policy: Policy) -> tuple[list[Finding], float | None]:
    """Return what has stalled, each once, and when to check again.

    Parameters
    ----------
    state : State
        Changed in place: what was found is remembered.
    silence : Silence
        The moment.
    policy : Policy
        The session's policy; tool rules are applied here.

    Returns
    -------
    tuple
        Findings, and the Unix time at which something else can be stalled at the earliest; None if only an event can
        change that. Costs the same whatever the length of the session.
    """
    values = policy.values
    if not (values["enabled"] and values[_STALLED.switch]):
        return [], None
    if not (silence.reports_results or any(run.results for run in state.runs.values())):
        return [], None
    findings: list[Finding] = []
    due: list[float] = []
    for place, run in enumerate(state.runs.values(), 1):
        own = run.detectors.setdefault(_STALLED.kind, {})
        found, waits_until = _STALLED.overdue_calls(own, run, silence.at, policy)
        findings += found
        due += waits_until
        # What is used last comes last: only the latest run can have stopped in the middle.
        if place == len(state.runs) and not found and not waits_until and not state.uncounted:
            stopped, until = _STALLED.stopped_run(own, run, silence.at, silence.last_event_at, policy)
            findings += stopped
            due += until
    return findings, min(due, default=None)


def observe_heartbeat(state: State, call_seq: int, at: float) -> None:
    """Note that a call is still running; its time starts again."""
    for run in state.runs.values():
        if any(record.seq == call_seq for record in run.records):
            _STALLED.note_heartbeat(run.detectors.setdefault(_STALLED.kind, {}), call_seq, at)


def observe_release(state: State, at: float) -> None:
    """Note that held calls may run: their time starts now. Call this before they are released."""
    for seq in [one.seq for run in state.runs.values() for one in run.records if one.decision == "hold"]:
        observe_heartbeat(state, seq, at)


def observe_rest(state: State) -> None:
    """Note that the agent has answered or ended, so that silence is expected."""
    for run in state.runs.values():
        run.detectors.get(_STALLED.kind, {}).pop("is_working", None)


def observe_end(state: State, run: str | None, policy: Policy) -> None:
    """Note that a run has ended, or all runs without a name: the results of its calls are no longer expected."""
    observe_rest(state)
    if run and policy.values["counting_scope"] == "run":
        return  # Its calls are forgotten, and other runs go on.
    for one in state.runs.values():
        open_calls = {
            rec.seq for rec in one.records if rec.status == PENDING and rec.decision not in BLOCKING
        }
        if open_calls:
            own = one.detectors.setdefault(_STALLED.kind, {})
            own["found"] = sorted(open_calls.union(own.get("found", ())))


def shortest_limit(policy: Policy) -> float | None:
    """Return the shortest time in seconds after which something of the session can be stalled; None if nothing can."""
    values = policy.values
    if not (values["enabled"] and values[_STALLED.switch]):
        return None
    return min((values[name] for name in Stalled.limits if values[name]), default=None)
