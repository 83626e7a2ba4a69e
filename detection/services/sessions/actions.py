"""Actions of people on sessions: stop, resume, change settings, run a command."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from detection import clock
from detection.engine import interventions, messages
from detection.engine.fields import ALIASES
from detection.engine.policy import stored_values
from detection.engine.scopes import SESSION
from detection.integrations.reach import CAN_STOP, WATCH_ONLY
from detection.models import (
    Approval,
    Choice,
    ContainmentReaction,
    Session,
    SessionState,
    StoppedByKind,
)
from detection.models.session_state import HELD_DOWN, begin_stop, clear_stop, note_refused, state_condition
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.policies.overrides import checked
from detection.services.sessions import chat_commands
from detection.services.sessions.chat_commands import CommandOut
from detection.services.sessions.locked_session import LockedSession, locked_session_by_name
from detection.services.tracking.outcomes import ApprovalOutcome
from detection.services.versions import require_version, version_of

MAX_STOPPED_AT_ONCE = 1000


def stop(project_id: int, external_id: str, actor: Actor, reason: str = "") -> Session:
    """Stop a session: from the commit on, no call that asks is allowed until someone resumes it.

    Its state says what has come of it; see `session_state`.
    """
    with locked_session_by_name(project_id, external_id) as locked:
        if not locked.session.is_stopped_by_person:
            stop_locked(locked, actor, reason)
    return locked.session


def stop_locked(
    locked: LockedSession, actor: Actor, reason: str = "", *, answered: Approval | None = None
) -> None:
    """Stop a locked session that no person has stopped yet.

    Parameters
    ----------
    answered
        The open approval that the stop decides; the others are withdrawn.
    """
    session = locked.session
    begin_stop(session, StoppedByKind.PERSON, clock.now(), actor.name, reason.strip())
    message = stopped_message(session)
    if answered is not None:
        outcome = ApprovalOutcome("stop", message, "decided", actor.name, Choice.STOP)
        locked.approvals.close(answered, outcome, None)
    locked.approvals.withdraw("session_stopped", "stop", message, actor.name)
    audit.record(
        actor,
        "session.stop",
        session.external_id,
        project_id=session.project_id,
        after={"reason": session.stop_reason},
    )


def note_refused_request(project_id: int, external_id: str) -> None:
    """Record that a request of a session was refused before it had a call, because the session is stopped."""
    with suppress(NotFound), locked_session_by_name(project_id, external_id) as locked:
        if locked.session.stopped_by_kind in HELD_DOWN:
            note_refused(locked.session)
            locked.incidents.stop(clock.now())


def stopped_message(session: Session) -> str:
    """Return the message that a session is stopped, as the user of the agent reads it.

    Where the run cannot be ended, it does not say that anything has.
    """
    if session.is_refused:
        reason = messages.as_sentence(f"{session.stop_reason[:1].upper()}{session.stop_reason[1:]}")
        return (
            f"The call was not run. {reason} Every further call of this run is blocked, unless someone resumes the "
            "session in LoopGuard or its user asks for something else. Finish now: say what you have, and what is "
            "missing."
        )
    reason = f" Reason given: {messages.as_sentence(session.stop_reason)}" if session.stop_reason else ""
    what = (
        "This session was stopped"
        if session.reach == CAN_STOP
        else "All tool calls of this session are blocked"
    )
    return (
        f"{what} by {audit.shown_to_agents(session.stopped_by)} in LoopGuard.{reason} "
        "No further tool call is allowed until someone resumes it."
    )


def ended_message(session: Session) -> str:
    """Return the message that detection ended a run in a loop, for a program that continues without its user."""
    reason = messages.as_sentence(f"{session.stop_reason[:1].upper()}{session.stop_reason[1:]}")
    return (
        f"LoopGuard ended this run because of a loop. {reason} The model is not asked again until the user asks for "
        "something else or someone resumes the session in LoopGuard."
    )


def resume(project_id: int, external_id: str, actor: Actor) -> Session:
    """Resume a stopped session; its counters are reset, so that it is not stopped again immediately.

    A stop that was never enforced is withdrawn; its loop is counted as before.

    Raises
    ------
    Conflict
        ``contained`` when a containment stops it and nobody else did.
    """
    with locked_session_by_name(project_id, external_id) as locked:
        session = locked.session
        rule = locked.contained()
        if (
            rule is not None
            and rule.reaction == ContainmentReaction.STOP
            and not session.is_stopped_by_person
        ):
            raise Conflict(
                f"A containment stops {rule.words}. Lift it to resume the session.", code="contained"
            )
        if session.stopped_by_kind:
            before = {"stopped_by": session.stopped_by, "reason": session.stop_reason}
            was_enforced = session.stop_reach != WATCH_ONLY or session.refused_since_stop > 0
            clear_stop(session)
            if was_enforced:
                interventions.reset_all(locked.tracker)
            audit.record(actor, "session.resume", external_id, project_id=project_id, before=before)
    return session


def revoke_exemption(project_id: int, external_id: str, tool: str, actor: Actor) -> Session:
    """Undo the exemption of a tool: detection counts its calls again from the next one.

    Raises
    ------
    NotFound
        If the session does not exist.
    Conflict
        ``not_exempt`` when the tool is not exempt in it.
    """
    with locked_session_by_name(project_id, external_id) as locked:
        if not interventions.revoke_exemption(locked.tracker, tool):
            raise Conflict("This tool is not exempt in this session.", code="not_exempt")
        audit.record(
            actor, "session.exemption.revoke", external_id, project_id=project_id, before={"tool": tool}
        )
    return locked.session


def stop_many(
    project_id: int, external_ids: list[str] | None, actor: Actor, reason: str = ""
) -> Counter[str]:
    """Stop the named sessions, or all that have not ended, each in its own transaction; return how many by reach."""
    if external_ids is None:
        rows = Session.objects.filter(~state_condition(SessionState.ENDED), project_id=project_id).exclude(
            stopped_by_kind=StoppedByKind.PERSON
        )
        external_ids = list(
            rows.order_by("-last_event_at").values_list("external_id", flat=True)[:MAX_STOPPED_AT_ONCE]
        )
    reached: Counter[str] = Counter()
    for external_id in external_ids:
        with suppress(NotFound):  # removed meanwhile
            reached[stop(project_id, external_id, actor, reason).reach] += 1
    return reached


def set_policy(
    project_id: int, external_id: str, values: dict[str, Any], actor: Actor, *, version: str | None = None
) -> Session:
    """Change the session's own override: given settings are set, a setting given as None is inherited again.

    Raises
    ------
    Invalid
        `invalid_setting`, naming every setting that is wrong.
    ChangedMeanwhile
        When the override is no longer the one with this `version`; None checks nothing.
    """
    with locked_session_by_name(project_id, external_id) as locked:
        session = locked.session
        before = stored_values(session.policy_values)
        require_version(version, before)
        given = {ALIASES.get(name, name): value for name, value in values.items()}
        session.policy_values = checked(SESSION, {**before, **given})
        if session.policy_values != before:
            audit.record(
                actor,
                "session.policy",
                external_id,
                project_id=project_id,
                before=before,
                after=session.policy_values,
            )
    return session


def policy_version(session: Session | None) -> str:
    """Return the version of the session's own override as a page shows it."""
    return version_of(stored_values(session.policy_values) if session is not None else {})


def run_command(project_id: int, external_id: str, text: str, actor: Actor) -> CommandOut:
    """Run in-chat commands for a client without the gateway."""
    with locked_session_by_name(project_id, external_id) as locked:
        out = chat_commands.run_in_chat(
            locked.session, locked.overrides, text, lambda: locked.tracker, actor, top=locked.top
        )
        if not out.lines:
            raise Invalid(
                "No command found. Commands look like !/set(tool-loop-max-repeats=6) or !/unset(tool-loop-mode).",
                field="text",
                code="no_command",
            )
    return out
