"""What lists, exports, the API and filters have of approvals, notifications and the audit. The rows are the models'."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from django.conf import settings

from detection.models import Approval, ApprovalState, AuditEntry, NotificationState
from detection.models.approvals import Choice, Decider, Unattended
from detection.selectors.row_fields import Shown


def wait_url(approval: Approval, call_id: str = "") -> str:
    """Return the address at which the decision can be waited for.

    Parameters
    ----------
    call_id
        Of a call that waits with others: the address names it unless the approval does.
    """
    named = {"call_id": call_id} if call_id not in ("", approval.call_id) else {}
    return f"{settings.LIVE_URL}/api/v1/approvals/{approval.public_id}?{urlencode({'wait': 30, **named})}"


class ApprovalRow:
    """An `Approval`."""

    # fmt: off
    public_id: Annotated[str, Shown("Id of the approval.", name="id")]
    deadline: Annotated[datetime, Shown("When the unattended reaction applies.")]
    wait_url: Annotated[str, Shown("Long-poll address of the decision.", show=wait_url)]
    state: Annotated[str, Shown("State.", choices=ApprovalState, filter="is")]
    decider: Annotated[str, Shown("Who decides.", choices=Decider, filter="decider")]
    session: Annotated[str, Shown(
        "Your name for the session.", column="session__external_id", filter="session", help="Session",
    )]
    agent: Annotated[str, Shown("Agent.", filter="agent", sort="agent")]
    tool: Annotated[str, Shown("Tool.", filter="tool", sort="tool")]
    call_id: Annotated[str, Shown("Id of the held call.")]
    held_calls: Annotated[int, Shown("Number of calls that wait for this decision.")]
    kind: Annotated[str, Shown("Detector.")]
    count: Annotated[int, Shown(
        "How often the call, lap or unit was counted.", filter="count",
        help="How often the call, cycle or unit was counted", sort="count",
    )]
    limit: Annotated[int, Shown(
        "The count at which the detector fires; of a budget, what it allows: of rounds and calls, one less than the "
        "setting.",
    )]
    summary: Annotated[str, Shown("What was detected, as a sentence.")]
    incident: Annotated[str | None, Shown(
        "Id of the incident.", column="incident__public_id", filter="incident", completes=False,
    )]
    requested_at: Annotated[datetime, Shown("When the call was held.", filter="requested", sort="requested")]
    unattended: Annotated[str, Shown(
        "The unattended reaction: what applies if nobody decides in time.", choices=Unattended,
    )]
    decision: Annotated[str, Shown(
        "What to do with the call. Null while the approval is open.", choices=("allow", "block", "stop"),
        is_optional=True, filter="decision", help="What was decided", sort="decision",
    )]
    choice: Annotated[str, Shown("What was chosen.", choices=Choice, is_optional=True)]
    raise_by: Annotated[int, Shown("For `raise`: by how much the limit is raised.")]
    message: Annotated[str, Shown("Message for the model.")]
    reason: Annotated[str, Shown("Stable code of how it was closed, as in `decided` or `expired`.")]
    decided_by: Annotated[str, Shown(
        "A user name, `key:<id>`, `judge` or `system`.", is_optional=True, filter="by", help="Who decided",
    )]
    decided_at: Annotated[datetime | None, Shown(
        "When it was closed.", filter="decided", help="When it was decided",
    )]
    # fmt: on


class NotificationRow:
    """A `Notification` with the number of its events."""

    # fmt: off
    public_id: Annotated[str, Shown(
        "Id of the notification, sent as `webhook-id` with every attempt.", name="id",
    )]
    destination: Annotated[str, Shown(
        "Id of the destination.", column="destination__public_id", filter="destination_id", completes=False,
    )]
    destination_name: Annotated[str, Shown(
        column="destination__name", filter="destination", help="Name of the destination",
    )]
    route_name: Annotated[str, Shown("Name of the route.", name="route", filter="route")]
    title: Annotated[str, Shown("Title.")]
    is_test: Annotated[bool, Shown("Whether it is a test.", filter="test")]
    state: Annotated[str, Shown("State.", choices=NotificationState, filter="is")]
    event_count: Annotated[int, Shown("Number of alert events in it.")]
    attempt_count: Annotated[int, Shown(
        "Number of attempts so far.", filter="attempts", help="Attempts", sort="attempts",
    )]
    created_at: Annotated[datetime, Shown("When it was created.", filter="created")]
    due_at: Annotated[datetime, Shown("When the next attempt is due.")]
    finished_at: Annotated[datetime | None, Shown("When it was delivered or failed permanently.")]
    # fmt: on


def _id(row: AuditEntry) -> str:
    return str(row.pk)


class AuditRow:
    """An `AuditEntry`."""

    # fmt: off
    id: Annotated[int, Shown("Id of the entry.", show=_id)]
    at: Annotated[datetime, Shown("When the change was made.", filter="time", help="When", sort="time")]
    actor: Annotated[str, Shown(
        "A user name, `key:<id>`, `command` or `system`.", filter="actor", sort="actor",
    )]
    action: Annotated[str, Shown(
        "What was done, as in `session.stop`.", filter="action",
        help="What was done, as in `session.stop` or `session.*`", sort="action",
    )]
    subject: Annotated[str, Shown("What was changed.", filter="subject", sort="subject")]
    before: Annotated[Any | None, Shown("Values before the change.")]
    after: Annotated[Any | None, Shown("Values after the change.")]
    address: Annotated[str | None, Shown("Network address of the actor.")]
    request_id: Annotated[str, Shown(
        "Id of the request.", filter="request", completes=False,
    )]
    # fmt: on
