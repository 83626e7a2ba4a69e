"""Finds the earlier answer that a model repeats because the client repeated its request.

An SDK repeats a request whose answer was lost on the way. The model server then returns a separate answer with other
ids. The database shows that it is not new: the conversation before it is the same, its calls are the same, and none
of those of the earlier answer has a result. All processes decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from detection import clock
from detection.engine.open_calls import is_assigned
from detection.integrations.message_lists import KnownMessages, ReadMessage, pending_at
from detection.models import Event, EventType, Session

RESENT_WITHIN: Final = timedelta(minutes=30)
"""SDKs wait ten minutes for an answer, and ask three times."""
LATEST_CALLS: Final = 64
"""Number of latest calls among whose rounds the earlier answer is searched."""


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An answer that was given before.

    Attributes
    ----------
    round
        Its id, or empty if the model server gave none.
    messages
        The list that ends with it.
    known
        What is known of the session after it was given again.
    """

    round: str
    messages: Sequence[ReadMessage]
    known: KnownMessages


def find_earlier(
    session: tuple[int, str],
    messages: Sequence[ReadMessage],
    known: KnownMessages,
    reread: Callable[[Mapping[str, str]], Sequence[ReadMessage]],
    *,
    is_retry: bool,
) -> EarlierAnswer | None:
    """Return the earlier answer that the calls at the end of a list repeat; None if they are new.

    Costs nothing where the list before its last answer is a new one, three queries otherwise.

    Parameters
    ----------
    session
        Project and name.
    reread
        Returns the list with other ids of calls.
    is_retry
        Whether the client tells that it sends a request again. If it does not, ids that the model server uses again
        leave open whether a list is the same or only looks so, because its beginning was cut off: then the calls are
        new.
    """
    start = pending_at(messages)
    if not 0 < start < len(messages) or messages[start - 1].prefix not in known.prefixes:
        return None
    calls = [event for message in messages[start:] for event in message.events if event["type"] == "call"]
    tools = [event["tool"] for event in calls]
    used = {event.get("call_id") for message in messages[:start] for event in message.events}
    for round_name, rows in _unanswered_rounds(*session):
        ids = [row.call_id for row in rows]
        if [row.tool for row in rows] != tools or not (is_retry or used.isdisjoint(ids)):
            continue
        renamed = {event["call_id"] or "": call_id for event, call_id in zip(calls, ids, strict=True)}
        if [renamed[event["call_id"] or ""] for event in calls] != ids:
            continue  # calls of one answer with one id
        read = reread({**known.call_ids, **renamed})
        after = known.with_resend(read, round_name, renamed, is_marked=is_retry)
        if after is not None:
            return EarlierAnswer(round_name, read, after)
    return None


def _unanswered_rounds(project_id: int, name: str) -> Iterator[tuple[str, list[Event]]]:
    """Yield the rounds of the latest calls without results, newest first; blocked calls have none of the client's."""
    found = (
        Session.objects.filter(project_id=project_id, external_id=name).values_list("pk", flat=True).first()
    )
    if found is None:
        return
    calls = Event.objects.filter(project_id=project_id, session_id=found, type=EventType.CALL)
    latest = calls.order_by("-seq").only("seq", "call_id", "tool", "round", "decision", "received_at")[
        :LATEST_CALLS
    ]
    rounds: dict[str, list[Event]] = {}
    for row in latest:
        rounds.setdefault(row.round, []).insert(0, row)
    seqs = [row.seq for row in latest if row.decision not in ("block", "stop")]
    results = Event.objects.filter(
        project_id=project_id, session_id=found, type=EventType.RESULT, closes__in=seqs
    )
    answered = set(results.values_list("closes", flat=True))
    since = clock.now() - RESENT_WITHIN
    for round_name, rows in rounds.items():
        if rows[0].received_at >= since and not any(row.seq in answered for row in rows):
            yield "" if is_assigned(round_name) else round_name, rows
