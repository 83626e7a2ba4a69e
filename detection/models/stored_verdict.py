"""The verdict of a call as its event keeps it: one shape, with the only writer and reader of its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict

import orjson
from django.db import models

from detection.engine.calls import Finding


class FindingDocument(TypedDict):
    """A finding in the public form of verdicts; see `engine.calls.Finding`."""

    kind: str
    count: int
    limit: int
    window_seconds: int | None
    window_calls: int | None
    confidence: float
    results: str
    period: int
    tool: str
    pattern: list[str]
    laps: int


def finding_document(finding: Finding) -> FindingDocument:
    """Return a finding in its public form."""
    return {
        "kind": finding.kind,
        "count": finding.count,
        "limit": finding.limit,
        "window_seconds": finding.window_seconds,
        "window_calls": finding.window_calls,
        "confidence": finding.confidence,
        "results": finding.results,
        "period": finding.period,
        "tool": finding.detail.get("tool", ""),
        "pattern": [*finding.pattern],
        "laps": finding.laps,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """The response to a call and its reasons: all that it takes to respond alike when the call is sent again.

    The decision is a column of its own.

    Attributes
    ----------
    message_by_shape
        The message by wire shape, where the project has a template for that shape.
    incident
        Public id.
    policy
        The settings that decided, each with its source.
    rung, detection_number
        The reaction of the ladder, if any, and its number; see `engine.calls.Verdict`.
    ending
        What a blocked call asks of the agent: ``finish``, ``reuse`` or ``delay``; None for any other verdict.
    pause_seconds
        Of a delay: how long the agent is to wait before it makes the call again.
    reuses
        Sequence number of the call whose result the agent got instead.
    approval
        Public id of the approval of a held call.
    stopped_by
        What had stopped the session before the call, which the engine then has not seen: ``operator`` or
        ``detection``.
    """

    message: str = ""
    message_by_shape: dict[str, str] = field(default_factory=dict)
    incident: str | None = None
    finding: FindingDocument | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    rung: str | None = None
    detection_number: int = 0
    ending: str | None = None
    pause_seconds: int = 0
    reuses: int | None = None
    approval: str | None = None
    stopped_by: str = ""

    def dump(self) -> str:
        """Return the JSON of the column."""
        return orjson.dumps(self).decode()

    @classmethod
    def load(cls, text: str) -> StoredVerdict:
        """Return the verdict of a JSON that `dump` has written, here or in a later version with more fields."""
        document = orjson.loads(text)
        if not _KNOWN.issuperset(document):
            document = {name: value for name, value in document.items() if name in _KNOWN}
        return cls(**document)


_KNOWN: Final = frozenset(one.name for one in fields(StoredVerdict))


class VerdictField(models.JSONField):
    """A nullable column with the JSON of a `StoredVerdict`."""

    def from_db_value(self, value: str | None, *_about: object) -> StoredVerdict | None:
        """Return the verdict in a row."""
        return None if value is None else StoredVerdict.load(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Return the JSON of a verdict as a parameter of a statement."""
        own = orjson.loads(value.dump()) if isinstance(value, StoredVerdict) else value
        return super().get_db_prep_value(own, connection, prepared)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Describe the column as plain JSON, which it is to migrations."""
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.JSONField", arguments, options
