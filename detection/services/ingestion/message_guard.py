"""Evaluates the calls at the end of a list of messages, after storing what is new before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detection import clock
from detection.integrations.events import ReportedEvent
from detection.integrations.message_lists import (
    AnswerState,
    KnownMessages,
    NewMessages,
    ReadMessage,
    find_new,
)
from detection.models import EventType, MessageRole
from detection.services.errors import SessionBusy
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import resent_answers
from detection.services.ingestion.guard import GuardRequest, GuardResponse, MessagesChangedError, guard
from detection.services.keys import Principal
from detection.services.sessions import read_messages

MAX_MESSAGES: Final = 10_000
"""Of one conversation, at every entry point."""
MAX_ATTEMPTS: Final = 8
"""Maximum number of concurrent requests with lists of one session; normally an agent sends one after another."""
Reread = Callable[[Mapping[str, str]], Sequence[ReadMessage]]
ToRecord = Callable[[ReadMessage, ReportedEvent], EventRecord]


@dataclass(frozen=True, slots=True)
class MessageGuardResponse:
    """The verdicts on the calls at the end of a list, with the request that the list has become."""

    request: GuardRequest
    response: GuardResponse
    new: NewMessages

    @property
    def is_by_program(self) -> bool:
        """Whether no person has written since LoopGuard ended an answer: what came since is a program's."""
        said = [event.is_of_user for event in self.request.history if event.type == EventType.MESSAGE]
        return not any(said) if said else self.new.turn.answer == "blocked"

    @property
    def replies(self) -> str:
        """The replies to the commands in the prompt that the list ends with; empty if they were not executed now."""
        last = self.new.history[-1] if self.new.history else None
        if last is None or not last.is_prompt or last.index in self.new.refed:
            return ""
        prompts = [
            event
            for event in self.request.history
            if event.type == EventType.MESSAGE and event.role != MessageRole.ASSISTANT
        ]
        return prompts[-1].reply if prompts else ""


def guard_messages(
    principal: Principal,
    about: GuardRequest,
    messages: Sequence[ReadMessage],
    to_record: ToRecord,
    *,
    round_name: str,
    max_events: int,
    usage: EventRecord | None = None,
    said: Sequence[EventRecord] = (),
    is_continued: bool = False,
    reread: Reread | None = None,
    is_retry: bool = False,
    is_read: bool = False,
    answered_at: float | None = None,
    is_ended: bool = False,
    sent_at: float = 0.0,
) -> MessageGuardResponse:
    """Judge the calls that a list of messages ends with.

    Parameters
    ----------
    about
        Session, agent, backend, model and parent of the request.
    messages
        The whole list.
    to_record
        Returns the checked record of an event of a message; raises the error of the request.
    round_name
        The client's id of the model response, or empty.
    max_events
        Maximum number of events that count of a longer new history, latest first.
    usage
        Tokens and cost of the response that the list ends with. They belong to its first call, or to none if it has no
        call that counts.
    said
        Texts of the response that the list ends with, or is answered with. They count before its calls, not again if
        the list was read before.
    is_continued
        Whether the list is not the whole history, but what was added to it.
    reread
        Returns the list with other ids of calls. Given where a list ends with an answer that the client has not got
        yet: an answer that is given again because the client did not get it has other ids, and counts once.
    is_retry
        Whether the client tells that it sends the request again.
    is_read
        Whether the list was read before its answer came, so that the answer is new although the list is known.
    answered_at
        When the list got an answer without calls, which it does not contain, in Unix seconds; 0 is now, None is never.
    is_ended
        Whether that answer says that the run has ended.
    sent_at
        When the list was sent, in Unix seconds; 0 is now.

    Raises
    ------
    SessionBusy
        If too many requests wait for the session, or read lists of it at the same time.
    """
    about = about.with_names(principal.redactor)
    for _ in range(MAX_ATTEMPTS):
        stored = read_messages.load_by_name(principal.project_id, about.session)
        known, read, name = KnownMessages.load(stored), messages, round_name
        if reread is not None:
            read = reread(known.call_ids) if known.call_ids else messages
            place = (principal.project_id, about.session)
            earlier = resent_answers.find_earlier(place, read, known, reread, is_retry=is_retry)
            if earlier is not None:
                read, name, known = earlier.messages, earlier.round, earlier.known
        now = clock.now().timestamp()
        new = find_new(read, known, name, is_continued=is_continued, at=sent_at or now)
        after = known.with_list(read, name, new.turn)
        is_resent = new.is_resent and not is_read
        if answered_at is not None and not is_resent:
            state: AnswerState = "blocked" if is_ended or new.turn.answer == "blocked" else "answered"
            after = after.with_answer(state, answered_at or now)
        calls = tuple(_records(new.pending, to_record, ("call",), {"round": name or None}))
        spent: tuple[EventRecord, ...] = ()
        if usage is not None and calls and not new.is_resent:
            calls[0].tokens, calls[0].cost_usd = usage.tokens, usage.cost_usd
        elif usage is not None:
            spent = (replace(usage),)
        request = replace(
            about,
            history=(
                *_history(new, to_record, max_events),
                *spent,
                *(() if is_resent else map(replace, said)),
            ),
            calls=calls,
            is_resent=new.is_resent,
            messages=(stored, after),
        )
        try:
            return MessageGuardResponse(request, guard(principal, request), new)
        except MessagesChangedError:
            continue
    raise SessionBusy("Too many requests with messages of this session at the same time. Try again.")


def _history(new: NewMessages, to_record: ToRecord, max_events: int) -> list[EventRecord]:
    """Return the records of what is new before the pending calls; each response of the model is a round."""
    records: list[EventRecord] = []
    round_name = ""
    messages = new.history
    total = sum(len(message.events) for message in messages)
    skipped = max(0, total - max_events)
    if new.is_condensed and messages:
        records.append(to_record(messages[0], {"type": "compaction"}))
    for message in messages:
        if not message.is_of_model:
            round_name = ""
        elif message.has_calls:
            round_name = round_name or f"message-{message.prefix.hex()}"
        if skipped >= len(message.events):
            skipped -= len(message.events)
            continue
        types = ("result",) if message.index in new.refed else ("call", "result", "message")
        for record in _records((message,), to_record, types, {"round": round_name or None}):
            if record.type == EventType.MESSAGE:
                record.circumstances = new.circumstances.get(message.index)
            records.append(record)
    return records


def _records(
    messages: Iterable[ReadMessage], to_record: ToRecord, types: tuple[str, ...], more: ReportedEvent
) -> Iterable[EventRecord]:
    for message in messages:
        for event in message.events:
            if event["type"] in types:
                yield to_record(message, event | more)
