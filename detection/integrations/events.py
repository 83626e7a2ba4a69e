"""What integrations read: events as the API takes them."""

from __future__ import annotations

from typing import Any, TypedDict


class ReportedUsage(TypedDict, total=False):
    """Tokens and cost of a model response; those read from a cache or written to it are part of the input."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    cost_usd: float | None


class ReportedEvent(TypedDict, total=False):
    """An event in the form of the API; values are checked where it becomes a record."""

    type: str
    id: str
    session: str
    parent_session: str | None
    agent: str
    backend: str
    model: str
    run: str
    round: str | None
    call_id: str | None
    tool: str
    cwd: str
    arguments: dict[str, Any] | str | None
    content: Any
    content_length: int
    content_digest: str
    is_error: bool | None
    role: str
    outcome: str
    usage: ReportedUsage | None
    occurred_at: Any
