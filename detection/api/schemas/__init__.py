"""The shapes of bodies, queries and answers: what the OpenAPI tells, and what the routes of settings check.

One file a resource, brought together here under one name. Shapes that a single route uses stand beside that route.
"""

from detection.api.schemas.agents import EventIn, EventsIn, EventsOut, GuardIn, GuardOut
from detection.api.schemas.common import Kind, Listed, Moment, Name128, Name200, Problem, Reason, Strict, Word
from detection.api.schemas.incidents import (
    BulkIn,
    BulkOut,
    CommentIn,
    ExportQuery,
    IncidentDetail,
    IncidentOut,
    IncidentQuery,
    LabelIn,
    NoteIn,
    SnoozeIn,
)
from detection.api.schemas.sessions import (
    CallOut,
    CommandIn,
    CommandOut,
    PageQuery,
    SessionDetail,
    SessionOut,
    SessionQuery,
    StopIn,
)
from detection.api.schemas.settings import PolicyOut, PolicyQuery, TierIn, TierOut, ToolRuleIn, ToolRuleOut

__all__ = [
    "BulkIn",
    "BulkOut",
    "CallOut",
    "CommandIn",
    "CommandOut",
    "CommentIn",
    "EventIn",
    "EventsIn",
    "EventsOut",
    "ExportQuery",
    "GuardIn",
    "GuardOut",
    "IncidentDetail",
    "IncidentOut",
    "IncidentQuery",
    "Kind",
    "LabelIn",
    "Listed",
    "Moment",
    "Name128",
    "Name200",
    "NoteIn",
    "PageQuery",
    "PolicyOut",
    "PolicyQuery",
    "Problem",
    "Reason",
    "SessionDetail",
    "SessionOut",
    "SessionQuery",
    "SnoozeIn",
    "StopIn",
    "Strict",
    "TierIn",
    "TierOut",
    "ToolRuleIn",
    "ToolRuleOut",
    "Word",
]
