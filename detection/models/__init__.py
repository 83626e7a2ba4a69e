"""Database rows with their constraints. Services contain the workflows that write several rows."""

from detection.models.agent_messages import AgentMessage
from detection.models.agent_tags import AgentTags
from detection.models.alerts import (
    AlertDestination,
    AlertEvent,
    AlertEventType,
    AlertRoute,
    AlertSilence,
    DeliveryAttempt,
    DestinationKind,
    Notification,
    NotificationItem,
    NotificationState,
    OutboxState,
    RouteDestination,
    Severity,
)
from detection.models.approvals import (
    Approval,
    ApprovalState,
    Choice,
    Decider,
    RememberedDecision,
    Unattended,
)
from detection.models.attempts import Attempt
from detection.models.audit import AuditEntry
from detection.models.bulk_actions import BulkAction
from detection.models.containments import Containment, ContainmentReaction, ContainmentScope
from detection.models.erasures import Erasure, ErasureOf
from detection.models.events import Event, EventKey, EventType, MessageRole, PackedEvents
from detection.models.families import SessionFamily
from detection.models.gateway import BackendKind, GatewayBackend, GatewayRewrite, GatewayToken
from detection.models.gateway_traffic import GatewayTraffic, ModelPrice, TrafficPeriod
from detection.models.imports import ImportedLoopCalls, ImportedUsage, Recalculation, TranscriptImport
from detection.models.incidents import Incident, IncidentActivity
from detection.models.invitations import Invitation
from detection.models.jobs import JobState
from detection.models.judge import JudgeCall, JudgeLabel, JudgeOutcome
from detection.models.keys import ApiKey, KeyScope
from detection.models.limit_notices import LimitNotice
from detection.models.loops import Loop, LoopActivity, LoopForm, LoopStatus
from detection.models.message_templates import MessageTemplate
from detection.models.operations import BeatProcess, BriefRecord, FailedSignIns, PartHeartbeat
from detection.models.policies import Override, StoredSettings, StoredSettingsQuerySet, ToolOverride
from detection.models.projects import Membership, Project, Role, SpikeAction
from detection.models.quarantine import QuarantinedEvent
from detection.models.reported_hours import ReportedHour
from detection.models.reports import Report
from detection.models.saved_views import SavedView
from detection.models.search import IndexingCursor, SearchBlock
from detection.models.session_state import SessionState, StoppedByKind
from detection.models.sessions import ReadMessages, Session, SessionKey, TrackerState
from detection.models.sign_ins import SignIn
from detection.models.statistics import (
    AllowedCall,
    CallCount,
    CountedSession,
    CountingCursor,
    SessionTool,
)
from detection.models.suggestions import Suggestion, SuggestionDecision
from detection.models.what_ifs import WhatIf

__all__ = [
    "AgentMessage",
    "AgentTags",
    "AlertDestination",
    "AlertEvent",
    "AlertEventType",
    "AlertRoute",
    "AlertSilence",
    "AllowedCall",
    "ApiKey",
    "Approval",
    "ApprovalState",
    "Attempt",
    "AuditEntry",
    "BackendKind",
    "BeatProcess",
    "BriefRecord",
    "BulkAction",
    "CallCount",
    "Choice",
    "Containment",
    "ContainmentReaction",
    "ContainmentScope",
    "CountedSession",
    "CountingCursor",
    "Decider",
    "DeliveryAttempt",
    "DestinationKind",
    "Erasure",
    "ErasureOf",
    "Event",
    "EventKey",
    "EventType",
    "FailedSignIns",
    "GatewayBackend",
    "GatewayRewrite",
    "GatewayToken",
    "GatewayTraffic",
    "ImportedLoopCalls",
    "ImportedUsage",
    "Incident",
    "IncidentActivity",
    "IndexingCursor",
    "Invitation",
    "JobState",
    "JudgeCall",
    "JudgeLabel",
    "JudgeOutcome",
    "KeyScope",
    "LimitNotice",
    "Loop",
    "LoopActivity",
    "LoopForm",
    "LoopStatus",
    "Membership",
    "MessageRole",
    "MessageTemplate",
    "ModelPrice",
    "Notification",
    "NotificationItem",
    "NotificationState",
    "OutboxState",
    "Override",
    "PackedEvents",
    "PartHeartbeat",
    "Project",
    "QuarantinedEvent",
    "ReadMessages",
    "Recalculation",
    "RememberedDecision",
    "Report",
    "ReportedHour",
    "Role",
    "RouteDestination",
    "SavedView",
    "SearchBlock",
    "Session",
    "SessionFamily",
    "SessionKey",
    "SessionState",
    "SessionTool",
    "Severity",
    "SignIn",
    "SpikeAction",
    "StoppedByKind",
    "StoredSettings",
    "StoredSettingsQuerySet",
    "Suggestion",
    "SuggestionDecision",
    "ToolOverride",
    "TrackerState",
    "TrafficPeriod",
    "TranscriptImport",
    "Unattended",
    "WhatIf",
]
