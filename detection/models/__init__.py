"""Rows and the constraints that carry the rules. No workflow: what writes several rows is a service."""

from detection.models.attempts import Attempt
from detection.models.audit import AuditEntry
from detection.models.events import Event, EventKey, EventType
from detection.models.incidents import Incident, IncidentActivity
from detection.models.keys import ApiKey, Scope
from detection.models.policies import PolicyTier, TierScope, ToolRule
from detection.models.projects import Membership, Project, Role
from detection.models.sessions import Session, SessionState, TrackerState

__all__ = [
    "ApiKey",
    "Attempt",
    "AuditEntry",
    "Event",
    "EventKey",
    "EventType",
    "Incident",
    "IncidentActivity",
    "Membership",
    "PolicyTier",
    "Project",
    "Role",
    "Scope",
    "Session",
    "SessionState",
    "TierScope",
    "ToolRule",
    "TrackerState",
]
