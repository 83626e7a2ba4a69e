"""Results that a blocked call may reuse: those that are stored exactly as the agent received them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from detection.engine import messages
from detection.engine.results import is_cut
from detection.models import Session
from detection.services.events.event_records import EventRecord
from detection.sql.pipeline import fetch

_RESULT = (
    "SELECT content, content_length, tail_digest, altered, received_at FROM detection_event"
    " WHERE project_id = %s AND session_id = %s AND seq > %s AND type = 'result' AND closes = %s ORDER BY seq LIMIT 1"
)
_REDACTED: Final = "[redacted:"


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The whole result of an earlier call of the same session.

    Attributes
    ----------
    seq
        Sequence number of the call.
    age_seconds
        How long ago its result came.
    """

    seq: int
    content: str
    age_seconds: float

    def below(self, message: str) -> str:
        """Return a message with the answer and its age below it."""
        return f"{message}\n\n{messages.answer_note(self.age_seconds)}\n{self.content}"


def find_answer(
    session: Session, seq: int, now: datetime, results: Mapping[int, EventRecord]
) -> KnownAnswer | None:
    """Return the answer that a call of a locked session got, None unless it is stored whole, unaltered and unredacted.

    Parameters
    ----------
    seq
        The call.
    results
        Results of this transaction by the sequence numbers of their calls; the others are read.
    """
    if not session.project.stores_payloads:
        return None
    known = results.get(seq)
    if known is not None:
        row = (known.content, known.content_length, known.tail_digest, known.altered, known.received_at)
    else:
        rows = fetch(_RESULT, [*session.key, seq, seq])
        if not rows:
            return None
        row = rows[0]
    content, length, tail_digest, altered, received_at = row
    if content is None or tail_digest or altered or length != len(content):
        return None
    if _REDACTED in content or is_cut(content):
        return None
    return KnownAnswer(seq, content, max(0.0, (now - received_at).total_seconds()))
