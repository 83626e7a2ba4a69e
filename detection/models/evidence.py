"""The evidence of an incident: what a page about it needs when its calls and settings are gone."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from detection.engine.calls import FindingDetail


class EvidenceCall(TypedDict):
    """A copy of a call, with its result if it has one; texts are cut, and long ones have a digest of the whole.

    `session` names its session where the incident is of a family.
    """

    seq: int
    number: int
    tool: str
    arguments: str
    call_key: str
    decision: str
    flags: str
    at: str
    cost_usd: float
    session: NotRequired[str]
    arguments_digest: NotRequired[str]
    decided_by: NotRequired[str]
    rung: NotRequired[str]
    result: NotRequired[str]
    result_length: NotRequired[int]
    result_digest: NotRequired[str]
    is_error: NotRequired[bool | None]


class EvidenceMessage(TypedDict):
    """A copy of a text of the assistant or of a compaction, cut."""

    seq: int
    type: str
    text: str
    at: str


class AwaitedReaction(TypedDict):
    """A reaction whose outcome is not known yet, and its call."""

    rung: str
    seq: int


class IncidentFinding(TypedDict):
    """What one detector found of a loop: its latest finding of these calls, and how often it found them.

    `tool` is that of the call of the first finding; numbers of calls are those of the session, from 1.
    """

    kind: str
    tool: str
    count: int
    limit: int
    window_seconds: float | None
    confidence: float
    detections: int
    decision: str
    first_seq: int
    last_seq: int
    last_call_number: int
    period: int
    results: str
    detail: FindingDetail


class Evidence(TypedDict, total=False):
    """What is known of a loop.

    Attributes
    ----------
    results, period, window_calls, pattern, laps, detail
        Of the latest finding of the detector that the incident is named after.
    keys, seqs, sessions
        The latest calls of the loop by key and by number and, of a family, the sessions.
    counted_elsewhere, counted
        Those of `seqs` whose costs another incident has; and of a family, the calls whose costs this one has, each by
        its session and number.
    calls, messages
        Copies of the latest calls or, of loops without calls, of the texts.
    rungs, detection_number
        The rungs that the loop has reached, in order, and the number of the latest reaction.
    awaiting, reactions
        The latest reaction, until the agent continues; and how often the agent did what after each rung.
    released
        Whether its held call was allowed.
    progress
        The call that had a new result since.
    """

    results: str
    period: int
    window_calls: int | None
    pattern: list[str]
    laps: int
    detail: FindingDetail
    keys: list[str]
    seqs: list[int]
    counted_elsewhere: list[int]
    counted: list[tuple[str, int]]
    sessions: list[str]
    calls: list[EvidenceCall]
    messages: list[EvidenceMessage]
    rungs: list[str]
    detection_number: int
    awaiting: AwaitedReaction
    reactions: dict[str, dict[str, int]]
    released: bool
    progress: int
