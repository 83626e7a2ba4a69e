"""Hooks of coding agents: the guard before a tool, its result afterwards, and other events of the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from detection.engine.calls import DECISIONS, Decision
from detection.engine.open_calls import is_assigned
from detection.engine.wire_shapes import WARNED_WITH_RESULT, Shape, action_of
from detection.integrations.hosts import HookEvent, Host
from detection.integrations.labels import NO_LABELS, Labels
from detection.models import Event, EventType
from detection.services.errors import NotStorable
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import CallResponse, GuardRequest, guard
from detection.services.ingestion.ingest import ingest
from detection.services.keys import Principal
from detection.services.tracking.documents import ASKED


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The response to a hook, before it is converted to the host's format.

    Attributes
    ----------
    response
        That to the call, or the strictest finding about the result; None without either.
    """

    decision: Decision = "allow"
    message: str = ""
    response: CallResponse | None = None


def handle_hook(
    principal: Principal,
    host: Host,
    event: HookEvent,
    records: Sequence[EventRecord],
    labels: Labels = NO_LABELS,
) -> HookAnswer:
    """Record what a hook reports, and evaluate the call that it asks about.

    Parameters
    ----------
    host
        The coding agent; a project may have message templates for the form of its responses.
    event
        The hook.
    records
        Its events, checked by the parser.
    labels
        Tags and metadata for the session.

    Raises
    ------
    NotStorable
        If the database cannot store one of them.
    """
    if event.moment in ("prompt", "answer", "compaction", "end"):
        done = ingest(principal, records, integration=f"hooks/{host.name}", labels=labels)
        if done.rejected:
            raise NotStorable
    if event.moment == "end":
        return _last_call(principal, event.session)
    if event.moment not in ("before_tool", "after_tool"):
        return HookAnswer()
    is_call = event.moment == "before_tool"
    waits = action_of(host.shape, "hold") == "wait"
    request = GuardRequest(
        session=event.session,
        agent=event.agent,
        model=event.model,
        parent_session=event.parent_session,
        integration=f"hooks/{host.name}",
        calls=tuple(records) if is_call else (),
        results=() if is_call else tuple(records),
        awaits_retry=waits,
        labels=labels,
    )
    guarded = guard(principal, request)
    if is_call:
        (response,) = guarded.verdicts
        answer = _answer(host.shape, response)
        is_open = response.decision == "hold" and response.approval is not None
        return replace(answer, message=f"{answer.message} {ASKED}") if waits and is_open else answer
    if guarded.notices:
        return _answer(host.shape, max(guarded.notices, key=_strength))
    return HookAnswer("warn", _late_warning(principal, host.shape, records[0]))


def _last_call(principal: Principal, session: str) -> HookAnswer:
    """Return the verdict on the last call of a session that has ended, if that has ended the run; one query."""
    calls = Event.objects.filter(
        project_id=principal.project_id, session__external_id=session, type=EventType.CALL
    )
    last = calls.order_by("-seq").values_list("decision", "verdict").first()
    if last is None or last[0] != "stop":
        return HookAnswer()
    return HookAnswer("stop", last[1].message if last[1] is not None else "")


def _strength(response: CallResponse) -> int:
    return DECISIONS.index(cast("Decision", response.decision))


def _answer(shape: Shape, response: CallResponse) -> HookAnswer:
    return HookAnswer(cast("Decision", response.decision), response.message(shape), response)


def _late_warning(principal: Principal, shape: Shape, result: EventRecord) -> str:
    """Return the message of a call that has run, for agents that show it only with the result; one query."""
    if shape not in WARNED_WITH_RESULT:
        return ""
    # A result without an id that fits no open call is taken for that of the latest call of its tool.
    has_id = bool(result.call_id) and not is_assigned(result.call_id)
    its_call = {"call_id": result.call_id} if has_id else {"tool": result.tool}
    calls = Event.objects.filter(
        project_id=principal.project_id,
        session__external_id=result.session,
        type=EventType.CALL,
        **its_call,
    )
    row = calls.order_by("-seq").values_list("decision", "verdict").first()
    verdict = row[1] if row is not None and row[0] == "warn" else None
    return verdict.message_by_shape.get(shape) or verdict.message if verdict else ""
