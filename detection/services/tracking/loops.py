"""Assigns loops to incidents; actions of people on loops are in `loop_triage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from detection.engine.loop_identity import LoopIdentity, identify
from detection.models import Incident, Loop


def assign(incidents: Sequence[Incident]) -> None:
    """Set the loops of new incidents of one project, in memory; loops that do not exist yet are stored.

    Costs one query where the loops exist, and two more where one is new. No row that exists is locked: sessions that
    open incidents of the same loop do not wait for one another. Only the first incidents of a loop do, and as each
    statement inserts in the order of the keys, they cannot deadlock.
    """
    own = {incident.public_id: _identity(incident) for incident in incidents}
    rows = _stored(incidents[0].project_id, [*own.values()])
    for incident in incidents:
        incident.loop = rows[own[incident.public_id].key]


def _identity(incident: Incident) -> LoopIdentity:
    evidence = incident.evidence or {}
    return identify(
        incident.kind,
        incident.tool,
        str(evidence.get("results", "")),
        evidence.get("detail") or {},
        evidence.get("calls") or (),
    )


def _stored(project_id: int, identities: Sequence[LoopIdentity]) -> dict[str, Loop]:
    """Return the stored loops of these identities by key; new ones are inserted."""
    wanted = {identity.key: identity for identity in identities}
    rows = Loop.objects.filter(project_id=project_id, key__in=wanted)
    found = {row.key: row for row in rows}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        Loop.objects.bulk_create(
            [Loop(project_id=project_id, key=key, **asdict(wanted[key])) for key in missing],
            ignore_conflicts=True,
        )
        found |= {row.key: row for row in rows.filter(key__in=missing)}
    return found
