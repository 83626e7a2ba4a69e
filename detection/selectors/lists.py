"""The lists that can be filtered: the fields of each, its searched columns, its time column and its orders."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db.models import Exists, OuterRef, Q, QuerySet

from detection.engine.detectors import DETECTORS, RUN_LIMITS
from detection.models import (
    Approval,
    AuditEntry,
    CallCount,
    Incident,
    JudgeCall,
    JudgeLabel,
    JudgeOutcome,
    LoopStatus,
    Notification,
    NotificationItem,
    Session,
    SessionState,
    SessionTool,
)
from detection.models.incidents import IncidentLabel, IncidentStatus, LabelReason, ReactionOutcome
from detection.models.session_state import (
    STOPPED_STATES,
    in_loop_condition,
    looping_now_condition,
    not_ended_condition,
    state_condition,
    to_stop_condition,
)
from detection.selectors.approval_group import in_group
from detection.selectors.filters import TEXT_FIELD, FieldChoice, FilterField, ListSpec, flag_field
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.loop_status import has_status, is_later_but_firing
from detection.selectors.pages import SortKey
from detection.selectors.record_rows import ApprovalRow, AuditRow, NotificationRow
from detection.selectors.row_fields import filters_of, sorts_of
from detection.selectors.session_rows import SessionRow

_KIND = FilterField(
    name="detector",
    type="choice",
    help="Detector",
    column="kind",
    choices=tuple(FieldChoice(one.kind, one.label) for one in DETECTORS),
)
RUNGS: Final = ("warn", "delay", "reuse", "chance", "block", "finish", "ask", "judge", "stop")
"""Of the escalation ladder, as incidents store them."""
REACTED: Final = Q(was_guarded=True) & ~Q(decision="allow")
RECOVERED: Final = REACTED & Q(recovered=True)
_HAS_ENDED: Final = Q(ended_at__isnull=False)
# Asked for the few incidents that have not ended, where a join would read every session.
_IS_STOPPED: Final = Q(
    Exists(
        Session.objects.filter(project=OuterRef("project"), pk=OuterRef("session"), state__in=STOPPED_STATES)
    )
)
OUTCOMES: Final = {
    "recovered": RECOVERED & _HAS_ENDED,
    # A stop leaves no call that could end the loop.
    "not_recovered": REACTED & ~Q(recovered=True) & (_HAS_ENDED | _IS_STOPPED),
}
"""How an incident with a reaction ended; none of them while that is open."""


def _has_reaction(rung: str, now: datetime) -> Q:
    # The outcome of the strictest one may still be open.
    return Q(reactions__has_key=rung) | REACTED & Q(rung=rung)


def _after_reaction(rung: str, outcome: str, now: datetime) -> Q:
    return Q(**{f"reactions__{rung}__{outcome}__gt": 0})


def _came_out(condition: Q, now: datetime) -> Q:
    return condition


def _was_judged(outcome: str, label: str | None, now: datetime) -> Q:
    rows = JudgeCall.objects.filter(outcome=outcome, incident=OuterRef("pk"))
    return Q(Exists(rows.filter(label=label) if label else rows))


ONLY_LOOPS: Final = "-label:false_alarm"
"""The filter of the incidents that sums of calls and money in loops add, see `IS_LOOP`."""
NO_LIMITS: Final = f"-detector:{','.join(sorted(RUN_LIMITS))}"
"""Without spent budgets, whose cost is that of all calls beyond the limit."""


def _label_fields(of: str = "") -> tuple[FilterField, ...]:
    """Return the filters by tags and metadata of sessions, for a list whose rows refer to them by `of`."""

    def has_metadata(text: str) -> Q:
        key, equals, value = text.partition("=")
        return Q(**{f"{of}metadata__contains": {key: value}} if equals else {f"{of}metadata__has_key": key})

    return (
        FilterField(
            name="tag", type="text", help="A tag of the session", completes=False,
            match=lambda text: Q(**{f"{of}tags__contains": [text]}),
        ),
        FilterField(
            name="metadata", type="text", help="Metadata of the session, as in `metadata:customer=acme`",
            completes=False, match=has_metadata,
        ),
    )  # fmt: skip


def _found_by(kind: str, _: object) -> Q:
    return Q(kinds__contains=[kind])


INCIDENTS: Final = ListSpec(
    name="incidents",
    words="incidents",
    model=Incident,
    fields=(
        FilterField(
            name="is",
            type="choice",
            help="Status, or labelled “not a loop”",
            column="status",
            choices=(
                *(FieldChoice(status.value, status.label) for status in IncidentStatus),
                FieldChoice(
                    "not_a_loop", "Labelled “not a loop”", lambda _: Q(label=IncidentLabel.FALSE_ALARM)
                ),
            ),
        ),
        _KIND,
        *filters_of(IncidentRow),
        *_label_fields("session__"),
        FilterField(
            name="found_by",
            type="choice",
            help="Any detector that found the loop, not only the one that acted",
            choices=tuple(
                FieldChoice(one.kind, one.label, partial(_found_by, one.kind)) for one in DETECTORS
            ),
        ),
        FilterField(
            name="label",
            type="choice",
            help="Label",
            column="label",
            choices=(
                FieldChoice("true_loop", "A loop"),
                FieldChoice("false_alarm", "Not a loop"),
                FieldChoice("none", "Not labelled", lambda _: Q(label="")),
            ),
        ),
        FilterField(
            name="reason",
            type="choice",
            help="Reason of the label “not a loop”",
            column="label_reason",
            choices=(
                *(FieldChoice(one.value, one.label) for one in LabelReason if one.value),
                FieldChoice("none", "No reason given", lambda _: Q(label="false_alarm", label_reason="")),
            ),
        ),
        FilterField(
            name="reaction",
            type="choice",
            help="A reaction, and what the agent did after it",
            choices=tuple(
                choice
                for rung in RUNGS
                for choice in (
                    FieldChoice(rung, "", partial(_has_reaction, rung)),
                    *(
                        FieldChoice(f"{rung}_{outcome}", "", partial(_after_reaction, rung, outcome))
                        for outcome in ReactionOutcome.values
                    ),
                )
            ),
        ),
        FilterField(
            name="recovery",
            type="choice",
            help="How an incident with a reaction ended; one whose calls are blocked since a stop has not recovered",
            choices=tuple(
                FieldChoice(name, "", partial(_came_out, condition)) for name, condition in OUTCOMES.items()
            ),
        ),
        FilterField(
            name="judge",
            type="choice",
            help="Outcome of a consultation of the judge, and how a person labelled it",
            choices=tuple(
                FieldChoice(f"{outcome.value}{suffix}", "", partial(_was_judged, outcome.value, label))
                for outcome in JudgeOutcome
                for suffix, label in (("", None), ("_right", JudgeLabel.RIGHT), ("_wrong", JudgeLabel.WRONG))
            ),
        ),
        FilterField(
            name="decision",
            type="choice",
            help="Strictest decision",
            column="decision",
            choices=tuple(FieldChoice(one, "") for one in ("allow", "warn", "block", "hold", "stop")),
        ),
        flag_field(
            "active", "Whether the loop continues", Q(ended_at=None) & ~Q(status=IncidentStatus.ENDED)
        ),
        flag_field("recovered", "Whether the agent recovered after the last reaction", RECOVERED),
        TEXT_FIELD,
    ),
    search=("tool", "session_name", "agent"),
    contents="session_id",
    time="opened_at",
    time_words="Opened",
    also_since="last_seen_at",
    sorts=sorts_of(IncidentRow, first="seen"),
    example="detector:cycle agent:browser -tool:bash cost:>0.1",
)


def _has_called(condition_on: Callable[[str], Q]) -> Q:
    """Match sessions with counted calls of a tool; those of the last seconds are not counted yet."""
    return Q(
        Exists(
            SessionTool.objects.filter(
                condition_on("tool"), project=OuterRef("project"), session_id=OuterRef("pk")
            )
        )
    )


def _has_incident(kind: str, now: datetime) -> Q:
    return Q(Exists(Incident.objects.filter(project=OuterRef("project"), session=OuterRef("pk"), kind=kind)))


def _called_in(sessions: QuerySet[Any]) -> QuerySet[Any, str]:
    """Return the tools that sessions called, once for each session."""
    rows = SessionTool.objects.filter(session__in=sessions.values("pk"))
    return rows.order_by().values_list("tool", flat=True)


SESSIONS: Final = ListSpec(
    name="sessions",
    words="sessions",
    model=Session,
    fields=(
        FilterField(
            name="is",
            type="choice",
            help="State",
            choices=(
                FieldChoice("active", "Not ended", not_ended_condition),
                *(
                    FieldChoice(state.value, state.label, partial(state_condition, state.value))
                    for state in SessionState
                ),
                FieldChoice(
                    "looping_now", "Calls of a loop run now, also after a stop", looping_now_condition
                ),
                FieldChoice("to_stop", "To be stopped, whatever has come of it", to_stop_condition),
            ),
        ),
        FilterField(
            name="in_loop",
            type="choice",
            help="In a loop, whatever its state",
            choices=(
                FieldChoice("yes", "", in_loop_condition),
                FieldChoice("no", "", lambda now: ~in_loop_condition(now)),
            ),
        ),
        FilterField(
            name="tool",
            type="text",
            help="A tool that it called",
            column="last_tool",
            also=_has_called,
            also_values=_called_in,
        ),
        FilterField(
            name="detector",
            type="choice",
            help="Detector of one of its incidents",
            choices=tuple(
                FieldChoice(one.kind, one.label, partial(_has_incident, one.kind)) for one in DETECTORS
            ),
        ),
        FilterField(
            name="outcome",
            type="choice",
            help="Reported outcome",
            column="outcome",
            choices=tuple(FieldChoice(one, "") for one in ("completed", "failed", "cancelled")),
        ),
        *filters_of(SessionRow),
        TEXT_FIELD,
        *_label_fields(),
    ),
    search=("external_id", "agent", "model", "last_tool"),
    contents="pk",
    time="last_event_at",
    time_words="Last event",
    sorts=(
        *sorts_of(SessionRow, first="last"),
        SortKey("state", "urgency", "number"),
        SortKey("limit", "limit_share", "number"),
        SortKey("rate", "calls_per_minute", "number"),
    ),
    default_text="is:active",
    example="is:looping agent:browser -tool:bash calls:>100",
)

APPROVALS: Final = ListSpec(
    name="approvals",
    words="approvals",
    model=Approval,
    fields=(
        *filters_of(ApprovalRow),
        FilterField(name="group", type="text", help="Id of the group", completes=False, match=in_group),
        _KIND,
        *_label_fields("session__"),
    ),
    search=("tool", "agent", "session__external_id", "summary"),
    time="requested_at",
    time_words="Requested",
    sorts=sorts_of(ApprovalRow, first="requested"),
    example="agent:browser tool:bash -decision:allow",
)

AUDIT: Final = ListSpec(
    name="audit",
    words="audit entries",
    model=AuditEntry,
    fields=filters_of(AuditRow),
    search=("actor", "action", "subject"),
    time="at",
    time_words="Time",
    sorts=sorts_of(AuditRow, first="time"),
    default_text="-actor:system,command",
    example="actor:ana action:policy.*",
)


def _of_incident(public_id: str) -> Q:
    items = NotificationItem.objects.filter(event__incident__public_id=public_id, notification=OuterRef("pk"))
    return Q(Exists(items))


NOTIFICATIONS: Final = ListSpec(
    name="notifications",
    words="notifications",
    model=Notification,
    fields=(
        *filters_of(NotificationRow),
        FilterField(
            name="incident", type="text", help="Id of an incident", completes=False, match=_of_incident
        ),
    ),
    search=("title", "destination__name", "route_name"),
    time="created_at",
    time_words="Created",
    # Ids are in the order of creation, and have the index.
    sorts=(SortKey("created", "id", "number"), *sorts_of(NotificationRow)),
    example="is:failed destination:on-call",
)

STATISTICS: Final = ListSpec(
    name="statistics",
    words="statistics",
    model=Incident,
    fields=(
        *(INCIDENTS.field(name) for name in ("detector", "tool", "agent", "session", "backend", "model")),
        *(INCIDENTS.field(name) for name in ("label", "reason", "decision", "guarded", "demo")),
    ),
    search=INCIDENTS.search,
    time="opened_at",
    time_words="Period",
    also_since="last_seen_at",
    newest="last_seen_at",
    sorts=(
        SortKey("incidents", "incidents", "number"),
        SortKey("found", "loops_found", "number"),
        SortKey("name", "key", "text"),
        SortKey("checks", "checks", "number"),
        SortKey("blocked", "loop_calls_blocked", "number"),
        SortKey("findings", "findings", "number"),
        SortKey("loops", "true_loops", "number"),
        SortKey("confidence", "average_confidence", "number"),
        SortKey("recovery", "recovery", "number"),
        SortKey("calls", "loop_calls", "number"),
        SortKey("cost", "loop_cost_usd", "number"),
    ),
    default_range="7d",
    example="agent:browser -tool:bash demo:no",
)
"""Statistics are of the incidents that a query selects, and of the calls under the terms that they have fields for.

Its orders are those of the groups: columns of `statistics.Numbers`.
"""

CALL_COUNTS: Final = ListSpec(
    name="calls",
    words="counted calls",
    model=CallCount,
    fields=(*(INCIDENTS.field(name) for name in ("tool", "backend", "model", "demo")),),
    search=(),
    time="hour",
    time_words="Hour",
    sorts=(SortKey("hour", "hour"),),
)
"""The hourly counts of calls, for `STATISTICS`. No list."""

_NOT_OF_LOOPS = ("is", "loop", "label", "reason", "reaction", "recovery", "judge")

LOOPS: Final = ListSpec(
    name="loops",
    words="loops",
    model=Incident,
    fields=(
        FilterField(
            name="is",
            type="choice",
            help="Status of the loop",
            choices=(
                *(FieldChoice(one.value, one.label, partial(has_status, one)) for one in LoopStatus),
                FieldChoice("later_but_firing", "Later, but firing", is_later_but_firing),
            ),
        ),
        FilterField(
            name="owner",
            type="text",
            help="Who it is assigned to",
            column="loop__assignee__username",
            completes=False,
        ),
        flag_field("assigned", "Whether it is assigned to someone", Q(loop__assignee__isnull=False)),
        *(field for field in INCIDENTS.fields if field.name not in _NOT_OF_LOOPS),
    ),
    search=INCIDENTS.search,
    contents=INCIDENTS.contents,
    time=INCIDENTS.time,
    time_words="Runs opened",
    also_since=INCIDENTS.also_since,
    newest="last_seen_at",
    sorts=(
        SortKey("seen", "last_seen"),
        SortKey("first", "first_seen"),
        SortKey("incidents", "incidents", "number"),
        SortKey("sessions", "sessions", "number"),
        SortKey("blocked", "blocked", "number"),
        SortKey("cost", "cost", "number"),
        SortKey("tool", "loop_tool", "text"),
        SortKey("owner", "loop_owner", "text"),
    ),
    default_text="is:open",
    example="detector:cycle agent:browser assigned:no",
)
"""Rows are groups of incidents: fields that are not the loop's own select the incidents that are counted."""

LISTS: Final = {
    spec.name: spec for spec in (SESSIONS, LOOPS, INCIDENTS, APPROVALS, AUDIT, NOTIFICATIONS, STATISTICS)
}
"""All of them by name."""
