"""The facts of an alert event: its values at that time, because rows may change before it is sent."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from detection.engine.calls import FindingDetail


class ApprovalFacts(TypedDict):
    """An approval."""

    id: str
    state: str
    summary: str
    deadline: str
    unattended: str
    decision: str
    choice: str
    raise_by: int
    reason: str
    decided_by: str


class JudgeFacts(TypedDict):
    """A judge that was disabled: its model and host, and the approval that it was asked about."""

    model: str
    host: str
    approval: str


class ContainmentFacts(TypedDict):
    """A containment, with the names that the API has for it.

    `reaches` are counts by reach. `sessions` are the ids of sessions of the project that it reached when it was
    created, those that called last first.
    """

    id: str
    scope: str
    value: str
    tool: str
    reaction: str
    reason: str
    until: str | None
    include_new: bool
    reaches: dict[str, int]
    sessions: list[str]
    created_by: str


class ReportFacts(TypedDict):
    """The report of a week: its id, its end, and the figures of the week and of the one before."""

    id: str
    ends_at: str
    loops: int
    loop_cost_usd: float
    loop_cost_usd_before: float
    calls_blocked: int


class AlertFacts(TypedDict):
    """What routes and silences match on, and what messages say; the rest depends on the type of the event.

    `kind` is the detector that acted, `kinds` are all that found the loop. `strip` and `cells` are the last calls of
    the session, as text and for an image. `also` are the types of events that are part of this one. `tags` are those of
    the session, and once it was routed also those of its agent and key.
    """

    id: str
    calls_digest: str
    kind: str
    kinds: NotRequired[list[str]]
    tool: str
    agent: str
    backend: str
    model: str
    session: str
    count: float
    limit: float
    unit: str
    decision: str
    severity: str
    is_demo: bool
    strip: str
    cells: list[list[str]]
    note: str
    tags: list[str]
    api_key: str
    loop_id: NotRequired[str]
    window_seconds: NotRequired[float | None]
    window_calls: NotRequired[int | None]
    confidence: NotRequired[float]
    results: NotRequired[str]
    period: NotRequired[int]
    detail: NotRequired[FindingDetail]
    rung: NotRequired[str]
    status: NotRequired[str]
    opened_at: NotRequired[str]
    label: NotRequired[str]
    recovered: NotRequired[bool | None]
    calls_blocked: NotRequired[int]
    approval: NotRequired[ApprovalFacts]
    judge: NotRequired[JudgeFacts]
    containment: NotRequired[ContainmentFacts]
    report: NotRequired[ReportFacts]
    also: NotRequired[list[str]]
