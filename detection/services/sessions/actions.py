"""What people do with sessions: stop, resume, set their own settings, send a command, remove the demo's."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from detection.engine import fold, policy, snapshot
from detection.models import Incident, Session, SessionState
from detection.selectors.policies import tiers_of
from detection.services import audit
from detection.services.approvals.open_approvals import OpenApprovals
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.services.incidents.tracker import Loops
from detection.services.maintenance import hourly_counts
from detection.services.sessions import chat_commands, tracker_state
from detection.services.sessions.chat_commands import CommandOut
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

MAX_STOPPED_AT_ONCE = 1000


def _locked(project_id: int, external_id: str) -> Session:
    session = (
        Session.objects.select_for_update(of=("self",))
        .select_related("project")
        .filter(project_id=project_id, external_id=external_id)
        .first()
    )
    if session is None:
        raise NotFound("There is no such session in this project.")
    return session


def _save(session: Session, *fields: str) -> None:
    session.save(update_fields=fields)
    Session.objects.filter(pk=session.pk).update(changed_xid=_current_xid())
    publish_after_commit(session.project_id, Hint("session", session.external_id))


def _current_xid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        return int(cursor.fetchone()[0])


@transaction.atomic
def stop(project_id: int, external_id: str, actor: Actor, reason: str = "") -> Session:
    """Stop a session: from the commit on, none of its calls is allowed until somebody resumes it."""
    session = _locked(project_id, external_id)
    if not session.is_stopped:
        session.stopped_at, session.stopped_by, session.stop_reason = (
            timezone.now(),
            actor.name[:150],
            reason.strip()[:300],
        )
        approvals = OpenApprovals(session)
        approvals.withdraw("session_stopped", "stop", stopped_message(session), actor.name)
        approvals.save()
        loops = Loops(session)
        loops.stopped()
        loops.save()
        session.state = SessionState.STOPPED
        _save(session, "stopped_at", "stopped_by", "stop_reason", "state")
        audit.record(
            actor, "session.stop", external_id, project_id=project_id, after={"reason": session.stop_reason}
        )
    return session


def stopped_message(session: Session) -> str:
    """Say that a person stopped the session, in the words that the agent's user gets to read."""
    reason = f" Reason given: {session.stop_reason}" if session.stop_reason else ""
    return (
        f"This session was stopped by {session.stopped_by or 'an operator'} in LoopGuard.{reason} "
        "No further tool call is allowed until someone resumes it."
    )


@transaction.atomic
def resume(project_id: int, external_id: str, actor: Actor) -> Session:
    """Let a stopped session go on; its counters begin anew, so that it is not stopped again at once."""
    session = _locked(project_id, external_id)
    if session.is_stopped:
        before = {"stopped_by": session.stopped_by, "reason": session.stop_reason}
        session.stopped_at, session.stopped_by, session.stop_reason = None, "", ""
        is_looping = Incident.objects.filter(session=session, ended_at=None).exists()
        session.state = SessionState.LOOPING if is_looping else SessionState.RUNNING
        _rearm(session)
        _save(session, "stopped_at", "stopped_by", "stop_reason", "state")
        audit.record(actor, "session.resume", external_id, project_id=project_id, before=before)
    return session


def _rearm(session: Session) -> None:
    try:
        state = tracker_state.read(session.pk)
    except snapshot.SnapshotVersionError:
        return  # rebuilt with the next event, and nothing older than its windows holds then
    if state is not None:
        fold.rearm_all(state)
        tracker_state.write(session.pk, state)


def stop_many(project_id: int, external_ids: list[str] | None, actor: Actor, reason: str = "") -> int:
    """Stop the named sessions, or all that run; each in its own transaction. Returns how many are stopped now."""
    if external_ids is None:
        rows = Session.objects.filter(project_id=project_id, stopped_at=None, ended_at=None)
        external_ids = list(
            rows.order_by("-last_event_at").values_list("external_id", flat=True)[:MAX_STOPPED_AT_ONCE]
        )
    for external_id in external_ids:
        stop(project_id, external_id, actor, reason)
    return len(external_ids)


@transaction.atomic
def set_policy(project_id: int, external_id: str, values: dict[str, Any], actor: Actor) -> Session:
    """Change the session's own tier: given fields are set, a field given as None is inherited again.

    Raises
    ------
    Invalid
        Naming the setting that the engine refuses.
    """
    session = _locked(project_id, external_id)
    before = dict(session.policy_values)
    merged = {name: value for name, value in {**before, **values}.items() if value is not None}
    try:
        for name in values:
            if name not in policy.FIELDS:
                raise policy.PolicyError(name, "is not a setting")
        session.policy_values = policy.validate(merged)
    except policy.PolicyError as error:
        raise Invalid(str(error), field=error.field, code="invalid_setting") from error
    if session.policy_values != before:
        _save(session, "policy_values")
        audit.record(
            actor,
            "session.policy",
            external_id,
            project_id=project_id,
            before=before,
            after=session.policy_values,
        )
    return session


@transaction.atomic
def run_command(project_id: int, external_id: str, text: str, actor: Actor) -> CommandOut:
    """Carry out in-chat commands for a client without the gateway."""
    session = _locked(project_id, external_id)
    tiers = tiers_of(session.project_id, session.project.policy_version)
    out = chat_commands.run_in_chat(session, tiers, text, actor)
    if not out.lines:
        raise Invalid(
            "No command found. Commands look like !/set(tool-loop-max-repeats=6) or !/unset(tool-loop-mode).",
            field="text",
            code="no_command",
        )
    if out.is_changed:
        _save(session, "policy_values")
    return out


def delete_demo(project_id: int, actor: Actor) -> int:
    """Remove everything the demo made in a project: sessions, calls and incidents. Returns how many sessions."""
    total = 0
    while True:
        with transaction.atomic():
            ids = list(
                Session.objects.filter(project_id=project_id, is_demo=True).values_list("pk", flat=True)[:200]
            )
            if not ids:
                break
            delete_sessions(ids)
            total += len(ids)
    with transaction.atomic():
        Incident.objects.filter(project_id=project_id, is_demo=True).delete()
        hourly_counts.forget_demo(project_id)
        audit.record(actor, "demo.remove", "demo sessions", project_id=project_id, before={"sessions": total})
        publish_after_commit(project_id, Hint("session"), Hint("incident"))
    return total


def delete_sessions(session_ids: list[int]) -> None:
    """Remove sessions with their events; incidents stay, with their evidence. Runs in the caller's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM detection_event WHERE session_id = ANY(%s)", [session_ids])
        cursor.execute("DELETE FROM detection_eventkey WHERE session_id = ANY(%s)", [session_ids])
    Session.objects.filter(pk__in=session_ids).delete()
