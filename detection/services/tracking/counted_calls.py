"""Which calls the incidents of a session count: each call and its cost once, however many loops it is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from detection.engine.calls import Finding
from detection.engine.detectors import detector_for
from detection.models import Incident, Session
from detection.services.tracking.incident_changes import FamilyTop, IncidentChanges

MAX_KEYS = 100
MAX_SEQS = 1_000
"""Calls that an incident knows by number: as far back as usage finds its call (`call_identity.ROUND_EVENTS`)."""


def joined(known: list[Any] | None, new: Iterable[Any]) -> list[Any]:
    """Return both lists as one without duplicates, the newest last, bounded."""
    return [*dict.fromkeys([*(known or ()), *new])][-MAX_KEYS:]


def seen(incident: Incident) -> set[int]:
    """Return the calls of a session's incident, counted or not."""
    return {*incident.evidence.get("seqs", ())}


def counted(incident: Incident) -> set[int]:
    """Return the calls of a session's incident that no other one counts."""
    return seen(incident).difference(incident.evidence.get("counted_elsewhere", ()))


class CountedCalls:
    """The calls that incidents of a session count, in one transaction.

    Parameters
    ----------
    known_since
        The first event of which it is known whether an ended incident counts it.
    """

    def __init__(self, session: Session, changes: IncidentChanges, known_since: int) -> None:
        self._session, self._changes, self._known_since = session, changes, known_since
        self._counted_before: set[int] = set()

    def add(
        self, incident: Incident, seq: int, finding: Finding, elsewhere: set[int], top: FamilyTop | None
    ) -> None:
        """Count the calls that a finding adds to its incident, each once; a run limit counts the calls beyond it.

        Parameters
        ----------
        elsewhere
            The calls that active incidents count, see `counted_by`.
        top
            Where the session's family is reported, if its row is locked.
        """
        detector = detector_for(finding.kind)
        if detector.judges_texts:
            # It has no calls: its evidence are messages.
            self._changes.add_evidence(incident, finding.seqs)
            return
        is_run_limit = detector.is_run_limit
        own = seen(incident)
        added = ({seq} if is_run_limit else {*finding.seqs, seq}) - own
        if len(own) == MAX_SEQS:
            # Older calls may have been counted before they were forgotten.
            added = {one for one in added if one > min(own)}
        counted = added - elsewhere
        if counted and min(counted) < seq:
            # A detector that joins may find calls that an incident counted which has ended since.
            counted -= self._counted_before_by_others(min(counted), top)
        incident.calls_in_loop += len(added)
        incident.counted_calls += len(counted)
        if not (is_run_limit or detector_for(finding.kind).is_silence or finding.detail.get("family")):
            # Evidence is bounded, so the first finding of a long loop may name fewer calls than it counts.
            incident.calls_in_loop = max(
                incident.calls_in_loop, finding.count * (finding.period if finding.laps else 1)
            )
        incident.evidence["seqs"] = sorted(own | added)[-MAX_SEQS:]
        if counted != added:
            others = {*incident.evidence.get("counted_elsewhere", ()), *(added - counted)}
            incident.evidence["counted_elsewhere"] = sorted(others)[-MAX_SEQS:]
        self._changes.add_costs(incident, counted)
        is_new = self._changes.is_new(incident)
        if not is_run_limit or is_new:
            # The calls before a limit was reached are its context and do not change later.
            self._changes.add_evidence(incident, (*finding.seqs, seq))

    def add_in_family(self, incident: Incident, seq: int, finding: Finding, elsewhere: set[int]) -> None:
        """Count the call in hand, once for all loops that it is in, and name its session."""
        evidence, name = incident.evidence, self._session.external_id
        evidence["sessions"] = joined(evidence.get("sessions"), [name])
        counted = {seq} - elsewhere
        incident.calls_in_loop += 1
        incident.counted_calls += len(counted)
        evidence["counted"] = [*evidence.get("counted", ()), *((name, one) for one in counted)][-MAX_SEQS:]
        self._changes.add_costs(incident, counted)
        is_limit = detector_for(finding.kind).is_run_limit
        own = (call["seq"] for call in evidence.get("calls", ()) if call["session"] == name)
        # With every finding, the results that came since then.
        self._changes.add_evidence(incident, (*own, *(() if is_limit else finding.seqs), seq))

    def counted_by(self, incidents: Iterable[Incident]) -> set[int]:
        """Return the calls of the session in incidents of it and, as far as given, of its family."""
        counted: set[int] = set()
        for one in incidents:
            counted |= self._own_calls([one.evidence.get("counted")]) if one.is_of_family else seen(one)
        return counted

    def leave(self, incident: Incident) -> None:
        """Remember the calls of an incident that ends: no later one counts them."""
        self._counted_before |= seen(incident)

    def _own_calls(self, counted: Iterable[list[tuple[str, int]] | None]) -> set[int]:
        name = self._session.external_id
        return {seq for calls in counted for session, seq in calls or () if session == name}

    def _counted_before_by_others(self, since_seq: int, top: FamilyTop | None) -> set[int]:
        """Return the calls that ended incidents count, a loop that continues after a resolution being a new one.

        Those that incidents of the family count are among them. A query or, in a family, two for a transaction in which
        a finding adds earlier calls, and as many for each that reaches further back.
        """
        if since_seq < self._known_since:
            self._known_since = since_seq
            ended = Incident.objects.filter(
                session=self._session, ended_at__isnull=False, last_seq__gte=since_seq
            )
            for seqs in ended.values_list("evidence__seqs", flat=True):
                self._counted_before.update(seqs or ())
            if top is not None:
                # Ended ones as well, of this life of the family: an earlier one may have had the same names.
                of_family = Incident.objects.filter(
                    Q(ended_at=None) | Q(session=top.session_id) | Q(session=None, first_seq=0),
                    project_id=self._session.project_id,
                    session_name=top.session_name,
                    is_of_family=True,
                    last_seen_at__gte=self._session.started_at,
                )
                counted = of_family.values_list("evidence__counted", flat=True)
                self._counted_before |= self._own_calls(counted)
        return self._counted_before
