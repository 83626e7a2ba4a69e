"""Turns findings into incidents while a session is folded: opens, escalates and ends them.

Only called by evaluation, under the session's lock. `incident_changes` writes them, with a copy of the evidence.
What people do with loops is in `services.incidents`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cached_property

from detection import clock
from detection.engine import reactions
from detection.engine.calls import DECISIONS, Finding, FindingDetail, Step, Verdict
from detection.engine.detectors import detector_for
from detection.engine.memory import BLOCKING
from detection.engine.policy import Policy, relevant_fields
from detection.models import (
    AlertEvent,
    Approval,
    ApprovalState,
    Choice,
    EventType,
    Incident,
    LimitNotice,
    Session,
)
from detection.models.evidence import Evidence
from detection.models.incidents import IncidentLabel, IncidentStatus, ReactionOutcome
from detection.models.sessions import cost_with
from detection.services.events.event_records import EventRecord
from detection.services.tracking import counted_calls, endings, lifecycle
from detection.services.tracking.counted_calls import CountedCalls
from detection.services.tracking.endings import Ending
from detection.services.tracking.incident_changes import FamilyTop, IncidentChanges
from detection.sql.pipeline import Writes
from detection.stream.hints import Hint

QUIET_CALLS = 5
"""Calls without the loop after which it has ended: the agent changed course."""
ABANDONED_AFTER = timedelta(hours=1)
SILENT_FOR = timedelta(days=1)
"""Silence after which a session is no longer waited for."""
MAX_FINDINGS = 16
"""Findings that an incident names, as many as a session remembers loops; the one found longest ago goes first."""
_FOUND_FIELDS = (
    "calls_digest", "findings", "kinds", "is_recorded_only", "kind", "tool", "count", "limit", "window_seconds",
    "confidence", "detections",
    "was_guarded", "calls_blocked", "calls_in_loop", "counted_calls", "cost_usd", "decision", "rung", "last_seq",
    "last_call_number", "evidence", "policy", "last_seen_at",
)  # fmt: skip
"""Fields of an incident that a finding changes."""


class IncidentTracker:
    """The active incidents of one session, and those of its family that it is found in.

    The incidents of a family belong to the session at the top. They are changed under the lock of the family's row,
    whichever of its sessions is folded, and only time ends them, see `family_incidents`.

    A session that is not looping has none, so that healthy calls cost no query.

    Attributes
    ----------
    is_guarded
        Whether an agent waits for the verdict. A reported call has already run, so it is not counted as blocked, and
        the incident does not say that it was.
    family_top
        Where to report what is found in the family of the session, whose row is locked then; None without one.

    Parameters
    ----------
    is_replay
        Whether the session is replayed from its beginning, so that what is stored of it does not count.
    """

    def __init__(self, session: Session, *, is_replay: bool = False) -> None:
        self.session = session
        self.is_guarded = False
        self.family_top: FamilyTop | None = None
        self._of_family: dict[str, Incident] = {}
        self._changes = IncidentChanges(session)
        self._active: dict[str, Incident] | None = None if session.has_active_incident else {}
        self._now: tuple[int, datetime] = (session.evaluated_seq, clock.now())
        self._known_since = 0 if is_replay else session.last_seq + 1

    @cached_property
    def _calls(self) -> CountedCalls:
        # Not before a loop is found: healthy calls have no use for it.
        return CountedCalls(self.session, self._changes, self._known_since)

    @property
    def active(self) -> dict[str, Incident]:
        """Active incidents by public id. One query the first time, none for a healthy session."""
        if self._active is None:
            rows = Incident.objects.filter(session=self.session, ended_at=None, is_of_family=False).order_by(
                "pk"
            )
            self._active = {row.public_id: row for row in rows}
        return self._active

    def incident_of(self, calls_digest: str) -> Incident | None:
        """Return the active incident of a loop that was found in the session or, in this transaction, in its family."""
        return self._of_family.get(calls_digest) or self._with(calls_digest)

    def _with(self, calls_digest: str) -> Incident | None:
        """Return the active incident of the session that has a finding of these calls."""
        return next((one for one in self.active.values() if calls_digest in one.findings), None)

    def reload(self) -> None:
        """Read the incidents again: a person changed one in this transaction. Other changes must be saved already."""
        self._active = None

    @property
    def is_touched(self) -> bool:
        """Whether `save` has anything to write."""
        return self._changes.has_any

    @property
    def hints(self) -> set[Hint]:
        """Hints for the live pages, for after the commit."""
        return self._changes.hints

    def save(self) -> None:
        """Write what changed, in the caller's transaction; the events must be stored already."""
        self._changes.save(self._now[0])

    def add_writes(self, writes: Writes) -> None:
        """Add what is written unread, after `save`: costs of incidents that have ended or are of the family."""
        self._changes.add_writes(writes)

    def take_alert_event(self, incident: Incident | None) -> AlertEvent | None:
        """Return the event of the latest `save` that makes an incident worth a look, once."""
        return self._changes.calls_for_attention.pop(incident.public_id, None) if incident else None

    @property
    def has_unended(self) -> bool:
        """Whether an incident is active, however people labelled it."""
        return bool(self.active)

    @property
    def last_loop_call_at(self) -> datetime | None:
        """The newest call of the loops that nobody labelled "not a loop" or allowed since. Silence is not a loop."""
        return max(
            (
                incident.last_seen_at
                for incident in self.active.values()
                if incident.label != IncidentLabel.FALSE_ALARM
                and not incident.is_released
                and not detector_for(incident.kind).is_silence
            ),
            default=None,
        )

    def unpriced_calls(self, public_id: str) -> frozenset[int]:
        """Return the counted calls of an incident whose costs are not added yet: of a replay, all of them."""
        return self._changes.unpriced_calls(public_id)

    def begin(self, event: EventRecord) -> None:
        """Use the number and time of an event for the next changes; its result belongs to the evidence of active loops.

        Times of incidents are those of events, so they do not depend on when the events are evaluated.
        """
        self._now = event.seq, event.received_at
        if event.closes and self.active:
            for incident in self.active.values():
                if self._changes.is_evidence(incident, event.closes):
                    self._changes.add_evidence(incident, (event.closes,))
                    self._changes.touch(incident, ("evidence",))
        if self.active:
            self._end_silence(event)
            if event.type == EventType.MESSAGE and event.is_of_user:
                # The agent has left it to a person before its next call of the loop.
                for incident in self.active.values():
                    self._settle(incident, ReactionOutcome.ASKED)

    def _end_silence(self, event: EventRecord) -> None:
        """End the incidents about silence that this event resolves as a sign of life."""
        for incident in [*self.active.values()]:
            ending = endings.of_silence(incident, event)
            if ending is not None:
                self._note_end(incident, event.received_at, recovered=ending.recovered, note=ending.note)

    def observe_silence(self, findings: Iterable[Finding], policy: Policy, at: datetime) -> None:
        """Open an incident for each finding about silence; no event comes with them."""
        session = self.session
        self._now = session.evaluated_seq, at
        about = EventRecord(type="", agent=session.agent, backend=session.backend, model=session.model)
        for finding in findings:
            if self._with(finding.calls_digest) is None:
                tool = str(finding.detail["tool"])
                incident = self._open(finding.seqs[-1], finding, about)
                self.active[incident.public_id] = incident
                self._found(incident, finding.seqs[-1], tool, finding, Step(), policy)

    def observe(self, seq: int, tool: str, step: Step, policy: Policy, event: EventRecord) -> Incident | None:
        """Apply the findings of a call or its result; return the incident of the deciding finding."""
        in_step: list[Incident] = []
        for finding in () if step.duplicate else step.verdict.findings:
            if finding.detail.get("notice"):
                self._changes.add_notice(self._notice(seq, tool, finding))
                continue
            if self.family_top is not None and detector_for(finding.kind).spans_family:
                self._found_in_family(self.family_top, seq, tool, finding, step, policy, event)
                continue
            incident = self._with(finding.calls_digest) or self._of_same_loop(finding)
            if incident is None:
                incident = self._open(seq, finding, event)
                self.active[incident.public_id] = incident
            elif incident not in in_step:
                self._found_again(incident, seq)
            self._found(incident, seq, tool, finding, step, policy)
            in_step.append(incident)
        if step.result_is_new and not step.duplicate and step.cell is not None and step.cell.result == "new":
            self._note_progress(seq, in_step, has_run=step.cell.decision not in BLOCKING)
        self._leave_quiet_ones()
        deciding = step.verdict.finding
        incident = self.incident_of(deciding.calls_digest) if deciding else None
        if step.duplicate and self.is_guarded and incident is not None and step.verdict.decision in BLOCKING:
            # A copy of a held call counts once in the loop, and yet it waits like that one.
            incident.calls_blocked += 1
            self._changes.touch(incident, ("calls_blocked",))
        return incident

    def _note_progress(self, seq: int, in_step: list[Incident], *, has_run: bool) -> None:
        """Note a new result of a call of loops whose results were the same so far.

        They were found before it was known, so they have ended unless they are found again. A call that was to be
        blocked has run only if it was just reported; the result of another one is the message of its block.
        """
        for incident in self.active.values():
            if (
                incident in in_step
                or seq not in counted_calls.seen(incident)
                or (incident.was_guarded and not has_run)
            ):
                continue
            # What another detector found of the same call may not depend on results.
            latest = [
                one
                for one in incident.findings.values()
                if one["last_call_number"] == incident.last_call_number
            ]
            if all(detector_for(one["kind"]).is_refuted(one["results"], one["detail"]) for one in latest):
                incident.evidence["progress"] = seq
                self._changes.touch(incident, ("evidence",))

    def _found_in_family(
        self,
        top: FamilyTop,
        seq: int,
        tool: str,
        finding: Finding,
        step: Step,
        policy: Policy,
        event: EventRecord,
    ) -> None:
        """Record a finding about the whole family in the incident at its top, without that session's row."""
        incident = self._of_family.get(finding.calls_digest)
        if incident is None:
            # People change it without the lock of the family.
            incident = (
                Incident.objects.select_for_update(of=("self",))
                .filter(
                    project_id=self.session.project_id,
                    session_name=top.session_name,
                    calls_digest=finding.calls_digest,
                    ended_at=None,
                    is_of_family=True,
                )
                .first()
            )
        if incident is None:
            incident = self._open(seq, finding, event)
            incident.is_of_family, incident.session_name = True, top.session_name
            incident.session_id, incident.agent = top.session_id, top.agent or event.agent
            if not self._is_top(incident):
                # Its numbers are those of the session at the top.
                incident.first_seq = incident.last_seq = 0
        else:
            self._found_again(incident, seq)
        self._of_family[finding.calls_digest] = incident
        self._found(incident, seq, tool, finding, step, policy)

    def _is_top(self, incident: Incident) -> bool:
        return incident.session_name == self.session.external_id

    def add_usage(self, usage: EventRecord) -> None:
        """Add the cost of a model response that came after its calls to the incident that counts its call.

        That may have ended before.
        """
        seq = usage.closes
        if not seq or not usage.cost_usd or self._changes.is_unpriced(seq):
            return
        known = (*self.active.values(), *self._changes.touched)
        incident = next((one for one in known if seq in counted_calls.counted(one)), None)
        if incident is not None:
            self._changes.touch(incident, ("cost_usd",))
            incident.cost_usd = cost_with(incident.cost_usd, usage.cost_usd)
        else:
            self._changes.add_late_cost(seq, usage.cost_usd, self.family_top)

    def _found_again(self, incident: Incident, seq: int) -> None:
        self._changes.touch(incident, _FOUND_FIELDS)
        incident.detections += 1
        incident.evidence.pop("released", None)
        incident.evidence.pop("progress", None)
        self.hints.add(Hint("incident", incident.public_id))
        if seq > incident.evidence.get("awaiting", {}).get("seq", seq):
            self._settle(incident, ReactionOutcome.WENT_ON)

    def _found(
        self, incident: Incident, seq: int, tool: str, finding: Finding, step: Step, policy: Policy
    ) -> None:
        """Record a finding in the incident of its loop."""
        verdict = step.verdict
        is_deciding = verdict.finding is not None and verdict.finding.calls_digest == finding.calls_digest
        decision = verdict.decision if is_deciding else "allow"
        counted = self._calls.counted_by((*self.active.values(), *self._of_family.values()))
        if incident.is_of_family:
            self._calls.add_in_family(incident, seq, finding, counted)
        else:
            self._calls.add(incident, seq, finding, counted, self.family_top)
        is_stricter = DECISIONS.index(decision) > DECISIONS.index(incident.decision)
        is_stricter = is_stricter or (is_deciding and not incident.rung)
        self._add_finding(incident, seq, tool, finding, decision, policy)
        if incident.calls_digest == finding.calls_digest or is_stricter:
            self._name_after(incident, finding)
        incident.kinds = [*dict.fromkeys(one["kind"] for one in incident.findings_by_weight)]
        if not incident.is_of_family or self._is_top(incident):
            incident.last_seq = max(incident.last_seq, seq)
            incident.last_call_number = self.session.call_count
        incident.last_seen_at = self._now[1]
        if self.is_guarded:
            incident.was_guarded = True
            incident.calls_blocked += decision in ("block", "hold", "stop")
        if is_deciding and verdict.rung:
            self._note_rung(incident, verdict, is_stricter=is_stricter)
        if is_stricter:
            incident.decision = max(decision, incident.decision, key=DECISIONS.index)
            incident.rung = verdict.rung or incident.rung
        if is_deciding and verdict.rung:
            incident.evidence["detection_number"] = verdict.detection_number
        if (
            self.is_guarded
            and is_deciding
            and verdict.rung
            and verdict.rung != "observe"
            and not incident.is_of_family
        ):
            incident.evidence["awaiting"] = {"rung": verdict.rung, "seq": seq}
        self._note_stop(incident, decision)

    def _note_rung(self, incident: Incident, verdict: Verdict, *, is_stricter: bool) -> None:
        """Note the first reaction of each rung; only one that is stricter than those before it is an alert."""
        rungs = incident.evidence.setdefault("rungs", [incident.rung] if incident.rung else [])
        if verdict.rung is None or verdict.rung in rungs:
            return
        rungs.append(verdict.rung)
        action = "reacted" if is_stricter else "reacted_also"
        self._changes.note(incident, action, f"{verdict.rung}: {verdict.message}"[:1000])

    def _notice(self, seq: int, tool: str, finding: Finding) -> LimitNotice:
        """Return a notice that a limit is nearly reached. It opens no incident and is for operators only."""
        detail = finding.detail
        return LimitNotice(
            session=self.session,
            kind=finding.kind,
            unit=str(detail["unit"]),
            used=float(detail["used"]),
            limit=float(detail["allowed"]),
            seq=seq,
            call_number=self.session.call_count,
            tool=tool,
        )

    def _of_same_loop(self, finding: Finding) -> Incident | None:
        """Return the active incident of the loop that a finding is about; None if it is the first.

        A loop is what the reactions take for one. A finding is compared with all calls of an incident, since those of a
        growing loop outnumber its first finding. Incidents never become one: a finding that fits two joins the older.
        """
        if reactions.stands_alone(finding.kind, finding.detail):
            return None
        return next(
            (
                one
                for one in self.active.values()
                if not reactions.stands_alone(one.kind, one.evidence.get("detail") or FindingDetail())
                and reactions.are_one_loop(finding.call_keys, one.evidence.get("keys", ()))
            ),
            None,
        )

    def _add_finding(
        self, incident: Incident, seq: int, tool: str, finding: Finding, decision: str, policy: Policy
    ) -> None:
        """Record what a detector found, with the settings that it has been found under first."""
        known = incident.findings.pop(finding.calls_digest, None)
        incident.findings[finding.calls_digest] = {
            "kind": finding.kind,
            "tool": known["tool"] if known else tool,
            "count": max(known["count"] if known else 0, finding.count),
            "limit": finding.limit,
            "window_seconds": finding.window_seconds,
            "confidence": finding.confidence,
            "detections": (known["detections"] if known else 0) + 1,
            "decision": max(decision, known["decision"] if known else "allow", key=DECISIONS.index),
            "first_seq": known["first_seq"] if known else finding.first_seq,
            "last_seq": seq,
            "last_call_number": self.session.call_count,
            "period": finding.period,
            "results": finding.results,
            "detail": finding.detail,
        }
        if len(incident.findings) > MAX_FINDINGS:
            others = incident.findings.keys() - {incident.calls_digest}
            del incident.findings[min(others, key=lambda one: incident.findings[one]["last_seq"])]
        is_recorded_only = _is_recorded_only(policy.for_tool(tool), finding.kind)
        if incident.is_recorded_only and not is_recorded_only:
            incident.is_recorded_only = False
            if not self._changes.is_new(incident):
                self._changes.note(incident, "opened", "it is no longer recorded only")
        if known is None:
            explained = policy.for_tool(tool).explain(relevant_fields(finding.kind))
            incident.policy = explained | incident.policy
        incident.evidence["keys"] = counted_calls.joined(incident.evidence.get("keys"), finding.call_keys)

    def _name_after(self, incident: Incident, finding: Finding) -> None:
        """Name an incident after its finding that acted, whose values lists and pages show."""
        own = incident.findings[finding.calls_digest]
        incident.calls_digest = finding.calls_digest
        incident.kind, incident.tool = own["kind"], own["tool"]
        incident.count, incident.limit = own["count"], own["limit"]
        incident.window_seconds, incident.confidence = own["window_seconds"], own["confidence"]
        incident.evidence |= {
            "results": finding.results,
            "period": finding.period,
            "window_calls": finding.window_calls,
            "pattern": [*finding.pattern],
            "laps": finding.laps,
            "detail": finding.detail,
        }

    def _open(self, seq: int, finding: Finding, event: EventRecord) -> Incident:
        """Open an incident for a finding, which is recorded next."""
        session = self.session
        incident = Incident(
            project_id=session.project_id,
            session=session,
            session_name=session.external_id,
            agent=event.agent,
            backend=event.backend,
            model=event.model,
            is_demo=session.is_demo,
            calls_digest=finding.calls_digest,
            is_recorded_only=True,
            kind=finding.kind,
            decision="allow",
            first_seq=finding.first_seq,
            last_seq=seq,
            evidence=Evidence(),
            status=IncidentStatus.OPEN,
            opened_at=self._now[1],
        )
        self._changes.add(incident)
        self._changes.note(incident, "opened")
        self.hints.add(Hint("incident", incident.public_id, "opened"))
        return incident

    def _leave_quiet_ones(self) -> None:
        """End the loops that were not detected for `QUIET_CALLS` calls."""
        for incident in [*self.active.values()]:
            is_quiet = self.session.call_count - incident.last_call_number >= QUIET_CALLS
            if is_quiet and not detector_for(incident.kind).is_silence:
                self._end(incident, self._now[1], endings.LEFT)

    def end_all(self, at: datetime) -> None:
        """End all loops, because the session has ended."""
        loops = [*self.active.values()]
        for incident, ending in zip(loops, endings.with_session(loops, self.session.call_count), strict=True):
            self._end(incident, at, ending)

    def abandon(self, at: datetime) -> None:
        """End the loops of a session that sends nothing any more; the outcome of the last reactions is unknown.

        Incidents about silence stay until the session was silent for `SILENT_FOR`.
        """
        is_gone = at - self.session.last_event_at >= SILENT_FOR
        left = endings.left(self.active.values(), self.session.call_count)
        for incident in [*self.active.values()]:
            is_silence = detector_for(incident.kind).is_silence
            if is_gone or not is_silence:
                recovered = None if is_silence else incident.public_id in left
                self._note_end(incident, at, recovered=recovered, note="abandoned")

    def _end(self, incident: Incident, at: datetime, ending: Ending) -> None:
        self._settle(incident, ReactionOutcome.CHANGED if ending.recovered else ReactionOutcome.ENDED)
        self._note_end(incident, at, recovered=ending.recovered, note=ending.note)

    def _note_end(self, incident: Incident, at: datetime, *, recovered: bool | None, note: str) -> None:
        incident.ended_at, incident.recovered = at, recovered
        self._changes.note_end(incident, self._now[0])
        self._calls.leave(incident)
        del self.active[incident.public_id]
        lifecycle.settle(incident)
        self._changes.touch(incident, ("ended_at", "recovered", *lifecycle.STATUS_FIELDS))
        self._changes.note(incident, "ended", note)
        self.hints.add(Hint("incident", incident.public_id, "ended"))

    def decide_anew(self, step: Step, decision: str, message: str) -> None:
        """Record that the latest call got a verdict other than its ladder's."""
        finding = step.verdict.finding
        incident = self.incident_of(finding.calls_digest) if finding else None
        if incident is not None:
            self._raise_decision(incident, decision, message)
            self._note_stop(incident, decision)

    def close_approval(self, approval: Approval) -> None:
        """Apply the end of an approval to its incident; costs a query if the incident is over.

        Calls that are allowed after all do not count as blocked, and their loop is released. After a stop, that is the
        decision of the incident. After a stop, and if nobody decided in time, the incident stays open;
        not if a person stopped the session.
        """
        incident = self._incident_of(approval)
        if incident is None:
            return
        if approval.decision == "allow":
            incident.calls_blocked = max(0, incident.calls_blocked - approval.held_calls)
            self._changes.touch(incident, ("calls_blocked",))
            self._release(incident, approval.choice)
        is_own = approval.choice == Choice.STOP or approval.state == ApprovalState.WITHDRAWN
        if approval.decision == "stop" and not is_own:
            self._raise_decision(incident, "stop", approval.message)
            self._keep_open(incident)
        elif approval.state == ApprovalState.EXPIRED:
            self._keep_open(incident)

    def run_nevertheless(self, public_id: str) -> None:
        """Count a call as blocked by an incident no longer: it ran. Costs a query if the incident is over."""
        known = (*self.active.values(), *self._of_family.values(), *self._changes.touched)
        rows = Incident.objects.select_for_update(of=("self",)).filter(project_id=self.session.project_id)
        incident = next((one for one in known if one.public_id == public_id), None)
        incident = incident or rows.filter(public_id=public_id).first()
        if incident is not None:
            incident.calls_blocked = max(0, incident.calls_blocked - 1)
            self._changes.touch(incident, ("calls_blocked",))

    def reopen_approval(self, approval: Approval) -> None:
        """Apply to its incident that an approval waits again."""
        incident = self._incident_of(approval)
        if incident is not None and approval.decision == "allow":
            incident.calls_blocked += approval.held_calls
            incident.evidence.pop("released", None)
            self._changes.touch(incident, ("calls_blocked", "evidence"))

    def _release(self, incident: Incident, choice: str) -> None:
        """Note that a loop was allowed, so that it is not active until it is found again."""
        for one in self.active.values():
            is_released = choice == Choice.DISABLE or (choice == Choice.EXEMPT and one.tool == incident.tool)
            if one is incident or is_released:
                one.evidence["released"] = True
                self._changes.touch(one, ("evidence",))

    def _incident_of(self, approval: Approval) -> Incident | None:
        known = (*self.active.values(), *self._of_family.values(), *self._changes.touched)
        for incident in known:
            if incident is approval.incident or (incident.pk and incident.pk == approval.incident_id):
                return incident
        # That of a family is changed by its other sessions, too.
        rows = Incident.objects.select_for_update(of=("self",)).filter(project_id=approval.project_id)
        return rows.filter(pk=approval.incident_id).first() if approval.incident_id else None

    def _raise_decision(self, incident: Incident, decision: str, message: str) -> None:
        incident.decision = max(decision, incident.decision, key=DECISIONS.index)
        self._changes.touch(incident, ("decision",))
        self._changes.note(incident, "reacted", f"{decision}: {message}"[:1000])

    def _note_stop(self, incident: Incident, decision: str) -> None:
        if decision == "stop" and self.is_guarded:
            self._keep_open(incident)

    def _keep_open(self, incident: Incident) -> None:
        before = incident.status
        lifecycle.keep_open(incident)
        self._changes.touch(incident, lifecycle.STATUS_FIELDS)
        if before == IncidentStatus.ENDED and incident.status == IncidentStatus.OPEN:
            self._changes.note(incident, "reopened", "it needs attention")
            self.hints.add(Hint("incident", incident.public_id, "reopened"))

    def stop(self, at: datetime) -> None:
        """End the loops, because a call was blocked since a person stopped the session, or its end was reported."""
        for incident in [*self.active.values()]:
            self._settle(incident, ReactionOutcome.ENDED)
            self._note_end(incident, at, recovered=False, note="its calls were blocked since the stop")

    def _settle(self, incident: Incident, outcome: ReactionOutcome) -> None:
        """Record what the agent did after the last reaction.

        Counted per rung in the evidence; the activity has the first time only, because a loop may continue for long.
        A run that ends after its held call was allowed was not stopped by the reaction.
        """
        awaiting = incident.evidence.pop("awaiting", None)
        if awaiting is None:
            return
        self._changes.touch(incident, ("evidence",))
        if outcome == ReactionOutcome.ENDED and incident.is_released:
            return
        counts = incident.evidence.setdefault("reactions", {}).setdefault(awaiting["rung"], {})
        counts[outcome] = counts.get(outcome, 0) + 1
        if counts[outcome] == 1:
            self._changes.note(incident, f"agent_{outcome}", f"after {awaiting['rung']}")


def _is_recorded_only(policy: Policy, kind: str) -> bool:
    """Return whether the policy asks for no reaction of a detector. Silence is alerted without one."""
    return not detector_for(kind).is_silence and {*reactions.rungs(policy, kind)} == {"observe"}
