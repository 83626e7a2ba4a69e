"""Rules by which an incident changes its status without a person. `detection.models.Incident` describes the states.

Callers hold the row lock of the incident's session, and save the fields that change.
"""

from __future__ import annotations

from detection.models import Incident
from detection.models.incidents import IncidentLabel, IncidentStatus

STATUS_FIELDS = ("status", "snoozed_until", "snoozed_until_worse", "needs_acknowledgement")
"""Fields of an incident that the functions of this module change."""


def settle(incident: Incident) -> None:
    """Set the status that follows from the incident's loop; changes the row in memory only.

    An open or snoozed incident whose loop is over becomes `ended`, unless someone has to acknowledge it. Then it is
    open, or snoozed until its time: a loop that is over cannot get worse. An ended one becomes `open` again if its loop
    continues or someone has to acknowledge it. Acknowledged and resolved ones keep their status.
    """
    is_over = incident.ended_at is not None or incident.label == IncidentLabel.FALSE_ALARM
    can_rest = is_over and not incident.needs_acknowledgement
    if can_rest and incident.status in (IncidentStatus.OPEN, IncidentStatus.SNOOZED):
        incident.status = IncidentStatus.ENDED
        incident.snoozed_until, incident.snoozed_until_worse = None, False
    elif is_over and incident.status == IncidentStatus.SNOOZED and incident.snoozed_until is None:
        incident.status, incident.snoozed_until_worse = IncidentStatus.OPEN, False
    elif not can_rest and incident.status == IncidentStatus.ENDED:
        incident.status = IncidentStatus.OPEN


def require_acknowledgement(incident: Incident) -> None:
    """Note that an incident led to a stop: it stays open until someone acknowledges it. Changes the row in memory only.

    Has no effect on an incident that is acknowledged, resolved or labelled "not a loop".
    """
    is_handled = incident.status in (IncidentStatus.ACKNOWLEDGED, IncidentStatus.RESOLVED)
    if not is_handled and incident.label != IncidentLabel.FALSE_ALARM:
        incident.needs_acknowledgement = True
        settle(incident)


def wake(incident: Incident) -> None:
    """End the snooze of an incident; changes the row in memory only."""
    incident.status = IncidentStatus.OPEN
    incident.snoozed_until, incident.snoozed_until_worse = None, False
    settle(incident)
