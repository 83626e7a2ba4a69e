"""The shapes of bodies, queries and answers of the alert routes."""

from __future__ import annotations

from datetime import datetime, time
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas import Kind, Moment, Name128, Name200, Strict, Word

Severity = Literal["info", "warning", "high", "critical"]
Transition = Literal[
    "opened",
    "escalated",
    "woke",
    "ended",
    "acknowledged",
    "snoozed",
    "resolved",
    "reopened",
    "labelled",
    "undone",
    "session.near_limit",
    "approval.requested",
    "approval.closed",
]
Name80 = Annotated[str, StringConstraints(min_length=1, max_length=80)]
Address = Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class DestinationIn(Strict):
    """A new destination."""

    name: Name80
    kind: Literal["webhook", "apprise"]
    address: Address = Field(
        description="Never shown again. https://… for a webhook, slack://… and the like for apprise."
    )


class DestinationChange(Strict):
    """What is to change; absent fields stay."""

    name: Name80 | None = None
    address: Address | None = None
    is_enabled: bool | None = None


class DestinationOut(Schema):
    """A destination and how it fares."""

    id: str
    name: str
    kind: Literal["webhook", "apprise"]
    address: str = Field(description="The part that is no secret.")
    is_enabled: bool
    state: Literal["ok", "new", "failing", "paused", "disabled"]
    paused_until: datetime | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_problem: str
    failures_today: int
    waiting: int
    failed: int
    signing_secrets: int = Field(description="How many secrets messages are signed with.")


class NewDestination(DestinationOut):
    """A destination that was just made."""

    signing_secret: str | None = Field(description="Shown once; null for notification services.")


class SecretOut(Schema):
    """A new signing secret."""

    signing_secret: str = Field(description="Shown once.")


class Matchers(Strict):
    """Which incidents are meant; empty lists match everything."""

    kinds: list[Kind] = []
    severities: list[Severity] = []
    tools: list[Name128] = Field([], description="Globs, like all that follow.")
    agents: list[Name128] = []
    backends: list[Name128] = []
    models: list[Name200] = []


class RouteIn(Matchers):
    """A route; empty lists match everything."""

    name: Name80
    destinations: list[Word] = Field(max_length=50)
    position: int = Field(0, ge=0, le=10_000)
    is_enabled: bool = True
    goes_on: bool = Field(False, description="Try the routes behind this one, too.")
    includes_demo: bool = False
    transitions: list[Transition] = ["opened", "escalated", "ended", "approval.requested"]
    group_by: list[Literal["session", "loop", "kind", "tool", "agent", "model"]] = ["session", "loop"]
    group_wait_seconds: int = Field(10, ge=0, le=3600)
    quiet_from: time | None = None
    quiet_until: time | None = None
    quiet_zone: Word = Field("UTC", description="A zone name such as Europe/Berlin.")
    quiet_holds_critical: bool = False
    repeat_hours: int = Field(
        0,
        ge=0,
        le=720,
        description="Tell again while an incident stays open and nobody has taken it up; 0: never.",
    )


class RouteOut(RouteIn):
    """A stored route."""

    id: str


class SilenceIn(Matchers):
    """A silence; empty lists match everything."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=300)]
    ends_at: Moment = Field(description="At most 90 days ahead.")
    starts_at: Moment | None = None
    loop: Annotated[str, StringConstraints(max_length=32)] = Field("", description="Only this loop.")


class SilenceOut(SilenceIn):
    """A silence, with what it holds back."""

    id: str
    created_by: str
    held_back: int = Field(description="How many messages' worth of changes it has held back.")


class DeliveryQuery(Schema):
    """Filters of the log."""

    state: Literal["", "waiting", "sending", "delivered", "failed"] = ""
    destination: Word = ""
    incident: Word = ""
    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class AttemptOut(Schema):
    """One try."""

    number: int
    at: datetime
    duration_ms: int
    is_success: bool
    status: int | None
    problem: str
    answer: str | None = Field(description="The answer's first 4 KB; for keys with the scope admin.")


class DeliveryOut(Schema):
    """A message."""

    id: str = Field(description="What the receiver sees as webhook-id, the same over all attempts.")
    destination: str
    route: str
    title: str
    is_test: bool
    state: Literal["waiting", "sending", "delivered", "failed"]
    transitions: int
    attempts: int
    created_at: datetime
    due_at: datetime
    finished_at: datetime | None


class DeliveryDetail(DeliveryOut):
    """A message with its attempts and what was sent."""

    tries: list[AttemptOut]
    payload: Any | None


class SilenceQuery(Schema):
    """Which silences."""

    over: bool = False


class ResendIn(Strict):
    """Which messages; without ids every failed one."""

    ids: list[Word] | None = Field(None, min_length=1, max_length=500)


class ResendOut(Schema):
    """How many will be sent again."""

    count: int
