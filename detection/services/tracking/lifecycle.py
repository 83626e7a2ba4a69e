"""Rules by which an incident changes its status without a person. `detection.models.Incident` describes the states.

Callers hold the row lock of the incident's session, and save the fields that change.
"""

from __future__ import annotations

from detection.models import Incident
from detection.models.incidents import IncidentLabel, IncidentStatus

STATUS_FIELDS = ("status", "stays_open")
"""Fields of an incident that the functions of this module change."""


def settle(incident: Incident) -> None:
    """Set the status that follows from the incident's loop, unless a person closed that; changes the row in memory."""
    is_over = incident.ended_at is not None or incident.label == IncidentLabel.FALSE_ALARM
    if incident.status != IncidentStatus.DONE:
        rests = is_over and not incident.stays_open
        incident.status = IncidentStatus.ENDED if rests else IncidentStatus.OPEN


def keep_open(incident: Incident) -> None:
    """Note that an incident led to a stop: it stays open until a person closes its loop. Changes the row in memory.

    Has no effect on an incident that a person has closed or labelled "not a loop".
    """
    if incident.status != IncidentStatus.DONE and incident.label != IncidentLabel.FALSE_ALARM:
        incident.stays_open = True
        settle(incident)
