"""Costs of incidents whose calls have got others, as those of imports do when a price changes."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from detection.models import ImportedLoopCalls, Incident, SessionKey
from detection.models.sessions import MAX_COST_USD


def add(
    key: SessionKey, session: str, costs: Mapping[int, Decimal], more_by_call: Mapping[int, Decimal]
) -> None:
    """Add differences to the incidents that count the calls, and put the new costs into their evidence.

    Under the lock of the session; two queries, and one for each incident.

    Parameters
    ----------
    session
        Its name: evidence may name calls of other sessions of the family.
    costs
        The new costs of events, in US dollars, by number.
    more_by_call
        The differences of calls, with the usage that belongs to them, by the call's number.
    """
    counted: dict[int, Decimal] = {}
    rows = ImportedLoopCalls.objects.filter(project_id=key.project_id, session_id=key.session_id)
    for incident_id, seqs in rows.values_list("incident_id", "seqs"):
        more = sum((more_by_call.get(seq, Decimal(0)) for seq in seqs), Decimal(0))
        counted[incident_id] = counted.get(incident_id, Decimal(0)) + more
    incidents = Incident.objects.select_for_update(of=("self",)).filter(project_id=key.project_id)
    for incident in incidents.filter(pk__in=counted).order_by("pk"):
        cost = incident.cost_usd + counted[incident.pk]
        incident.cost_usd = max(Decimal(0), min(cost, Decimal(MAX_COST_USD)))
        for call in incident.evidence.get("calls", ()):
            if call["seq"] in costs and call.get("session", session) == session:
                call["cost_usd"] = float(costs[call["seq"]])
        incident.save(update_fields=["cost_usd", "evidence"])
