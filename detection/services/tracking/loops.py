"""Assigns loops to incidents; actions of people on loops are in `loop_triage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from django.db import transaction

from detection.engine.loop_identity import LoopIdentity, identify
from detection.models import Incident, Loop

BATCH_INCIDENTS: Final = 500


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


def assign_missing() -> int:
    """Give the incidents of older versions their loops, in small transactions; returns how many got one.

    One query by an empty index when there are none. Incidents that another transaction has locked are left to the next
    run.
    """
    total, after = 0, 0
    while True:
        with transaction.atomic():
            locked = Incident.objects.select_for_update(skip_locked=True).filter(loop=None, pk__gt=after)
            batch = list(locked.order_by("pk")[:BATCH_INCIDENTS])
            for project_id in {incident.project_id for incident in batch}:
                assign([incident for incident in batch if incident.project_id == project_id])
            Incident.objects.bulk_update(batch, ["loop"])
        if not batch:
            return total
        total, after = total + len(batch), batch[-1].pk
