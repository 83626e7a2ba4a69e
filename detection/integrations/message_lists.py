"""Finds what is new in a list of messages. Agents send the whole history to their model server with every request.

New is what follows the longest known prefix. Where the beginning was cut off, summarised or edited, no prefix is known;
then it is what follows the last message that is known by itself. Of the messages only keyed digests are remembered, at
most 7 KB of them, ids of calls of answers that were given again, and how the latest prompts came.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import orjson

from detection.engine import commands
from detection.integrations.events import ReportedEvent
from detection.integrations.people import MAX_GAPS, Circumstances
from detection.integrations.text_protocols import with_native_calls
from detection.integrations.transcripts import (
    MessageShape,
    events_of_message,
    is_of_model,
    text_of_message,
)
from detection.strict_json import compact

DIGEST_BYTES: Final = 8
MAX_PREFIXES: Final = 512
"""Known prefixes: a list that continues from an earlier point is recognised up to this many messages back."""
MAX_MESSAGES: Final = 256
"""Number of messages with calls or results that are recognised individually."""
MAX_ENDS: Final = 32
"""Number of remembered list ends: this many branches of a conversation can alternate."""
MAX_CALL_IDS: Final = 64
"""Number of alternative call ids that are remembered."""
MAX_UNMARKED_RESENDS: Final = 2
"""How often an answer, given again, counts once if the client gives no reason for asking again: SDKs do so twice."""
_LONG_AGO: Final = 1e9
"""Stands for a time in seconds that is not known."""


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """A message that counts for the prefix: one with text, calls or results. Instructions of the system do not.

    Attributes
    ----------
    index
        Its position in the list.
    is_of_model
        Whether the model wrote it.
    events
        Its events, as the API accepts them, without session and round.
    digest
        Keyed digest of its text, calls and results.
    prefix
        Keyed digest of it and everything before it.
    """

    index: int
    is_of_model: bool
    events: tuple[ReportedEvent, ...]
    digest: bytes
    prefix: bytes

    @property
    def is_prompt(self) -> bool:
        """Whether it is a text of the user's side."""
        return any(event["type"] == "message" for event in self.events)

    @property
    def may_be_of_person(self) -> bool:
        """Whether it is a text of the user's side that has no form of programs."""
        return any(event["type"] == "message" and "role" not in event for event in self.events)

    @property
    def has_commands(self) -> bool:
        """Whether it is a prompt with in-chat commands."""
        texts = [event["content"] or "" for event in self.events if event["type"] == "message"]
        return self.may_be_of_person and any(
            commands.contains_command(text) or commands.asks_for_help(text) for text in texts
        )

    @property
    def has_calls(self) -> bool:
        """Whether it contains calls."""
        return any(event["type"] == "call" for event in self.events)


AnswerState = Literal["", "called", "answered", "blocked"]
"""What followed the latest prompt: nothing yet, calls, a text, or an answer that LoopGuard ended."""


@dataclass(frozen=True, slots=True)
class LatestTurn:
    """The latest prompt of a session, and what followed it.

    Attributes
    ----------
    prompt
        Digest of the prompt.
    gaps
        See `Circumstances`.
    answer
        What followed.
    answered_at
        When, in Unix seconds; 0 before the first answer.
    """

    prompt: bytes = b""
    gaps: tuple[float, ...] = ()
    answer: AnswerState = ""
    answered_at: float = 0.0

    def prompted(self, digest: bytes, seconds: float | None) -> LatestTurn:
        """Return the turn that a prompt begins, so long after the answer before it."""
        gap = _LONG_AGO if seconds is None else round(seconds, 3)
        gaps = (*self.gaps, gap)[-MAX_GAPS:] if digest == self.prompt else ()
        return LatestTurn(digest, gaps, "", self.answered_at)


@dataclass(frozen=True, slots=True)
class KnownMessages:
    """Memory of the lists read in a session; the newest digests are last.

    Attributes
    ----------
    call_ids
        Of answers that were given again: the id by which a call is counted, by its later id.
    turn
        How the latest prompt came.
    """

    prefixes: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    length: int = 0
    call_ids: Mapping[str, str] = field(default_factory=dict)
    turn: LatestTurn = LatestTurn()

    def dump(self) -> bytes:
        """Return it as bytes: four numbers, the digests, and the rest as JSON."""
        sizes = (self.length, len(self.prefixes), len(self.messages), len(self.ends))
        numbers = b"".join(number.to_bytes(4) for number in sizes)
        turn = (self.turn.prompt.hex(), self.turn.gaps, self.turn.answer, self.turn.answered_at)
        rest = orjson.dumps({"call_ids": self.call_ids, "turn": turn})
        return numbers + b"".join((*self.prefixes, *self.messages, *self.ends, rest))

    @classmethod
    def load(cls, stored: bytes) -> KnownMessages:
        """Return what `dump` has written; nothing is known without it."""
        if not stored:
            return cls()
        length, *sizes = (int.from_bytes(stored[at : at + 4]) for at in range(0, 16, 4))
        groups, at = [], 16
        for size in sizes:
            end = at + size * DIGEST_BYTES
            groups.append(tuple(stored[one : one + DIGEST_BYTES] for one in range(at, end, DIGEST_BYTES)))
            at = end
        prefixes, messages, ends = groups
        rest = orjson.loads(stored[at:]) if stored[at:] else {}
        prompt, gaps, answer, answered_at = rest.get("turn", ("", (), "", 0.0))
        turn = LatestTurn(bytes.fromhex(prompt), tuple(gaps), answer, answered_at)
        return cls(prefixes, messages, ends, length, rest.get("call_ids", {}), turn)

    def with_answer(self, answer: AnswerState, at: float) -> KnownMessages:
        """Return the memory after an answer at this time, in Unix seconds."""
        return replace(self, turn=replace(self.turn, answer=answer, answered_at=at))

    def with_list(
        self, messages: Sequence[ReadMessage], round_name: str, turn: LatestTurn | None = None
    ) -> KnownMessages:
        """Return the memory after a list was read, whose prompts have begun this turn."""
        if not messages:
            return self
        own = (message.digest for message in messages if message.events and not message.is_prompt)
        ends = (messages[-1].prefix, _end_of_round(messages[-1], round_name))
        return KnownMessages(
            _latest(self.prefixes, (message.prefix for message in messages), MAX_PREFIXES),
            _latest(self.messages, own, MAX_MESSAGES),
            _latest(self.ends, ends, MAX_ENDS),
            len(messages),
            self.call_ids,
            turn or self.turn,
        )

    def with_resend(
        self,
        messages: Sequence[ReadMessage],
        round_name: str,
        call_ids: Mapping[str, str],
        *,
        is_marked: bool,
    ) -> KnownMessages | None:
        """Return the memory after an answer was repeated; None if it is a different answer.

        Parameters
        ----------
        messages
            The whole list, with the ids that the calls at its end had in the earlier answer.
        round_name
            The id of the earlier answer.
        call_ids
            These ids by those of the later answer.
        is_marked
            Whether the client tells that it sends a request again. Otherwise `MAX_UNMARKED_RESENDS` applies: an agent
            that runs calls and never sends their results is not to go unnoticed.
        """
        end = _end_of_round(messages[-1], round_name)
        if end not in self.ends:
            return None
        ends = self.ends
        if not is_marked:
            marks = [_mark(end, number) for number in range(MAX_UNMARKED_RESENDS)]
            mark = next((one for one in marks if one not in ends), None)
            if mark is None:
                return None
            ends = _latest(ends, (mark,), MAX_ENDS)
        ids = {**self.call_ids, **{new: old for new, old in call_ids.items() if new != old}}
        return replace(self, ends=ends, call_ids=dict([*ids.items()][-MAX_CALL_IDS:]))


@dataclass(frozen=True, slots=True)
class NewMessages:
    """The new part of a list.

    Attributes
    ----------
    history
        Messages that are new, in order, up to the pending calls. Their calls have run already.
    pending
        The last messages of the model, if they have calls: these wait for a verdict.
    is_resent
        Whether the list was read before: the pending calls get the verdicts that they got then.
    is_condensed
        Whether the beginning of the list was replaced by something shorter.
    refed
        Positions of known messages among `history`. Their results may be new all the same.
    circumstances
        How the new prompts came, by their positions.
    turn
        The latest turn after them.
    """

    history: tuple[ReadMessage, ...] = ()
    pending: tuple[ReadMessage, ...] = ()
    is_resent: bool = False
    is_condensed: bool = False
    refed: frozenset[int] = field(default_factory=frozenset)
    circumstances: Mapping[int, Circumstances] = field(default_factory=dict)
    turn: LatestTurn = LatestTurn()

    @property
    def count(self) -> int:
        """Number of new messages."""
        return 0 if self.is_resent else len(self.history) - len(self.refed) + len(self.pending)


def read_messages(
    messages: Iterable[dict[str, object]],
    shape: MessageShape,
    secret: bytes,
    continued: str = "",
    call_ids: Mapping[str, str] | None = None,
) -> list[ReadMessage]:
    """Return the messages that count, with their digests.

    Parameters
    ----------
    messages
        Checked by the caller to be objects.
    secret
        Key of the digests, at most 64 bytes.
    continued
        What the list continues, if it is not the whole history: the id of a response or conversation that the model
        server keeps.
    call_ids
        Ids that calls get instead of those in the list; see `KnownMessages.call_ids`.
    """
    read: list[ReadMessage] = []
    prefix = _digest(secret, continued.encode("utf-8", "surrogatepass")) if continued else b""
    unanswered: deque[str] = deque()
    before = ""
    for index, message in enumerate(with_native_calls(messages) if shape == "openai" else messages):
        events = tuple(events_of_message(message, shape, before))
        if call_ids:
            events = tuple(_renamed(event, call_ids) for event in events)
        by_model = is_of_model(message)
        text = text_of_message(message) if by_model else ""
        if not events and not text:
            continue
        before = text if by_model else before
        digest = _digest(secret, compact([by_model, text, events]).encode("utf-8", "surrogatepass"))
        prefix = _digest(secret, prefix + digest)
        if by_model and read and not read[-1].is_of_model:
            unanswered.clear()
        events = tuple(_with_ids(events, digest, unanswered))
        read.append(ReadMessage(index, by_model, events, digest, prefix))
    return read


def find_new(
    messages: Sequence[ReadMessage],
    known: KnownMessages,
    round_name: str = "",
    *,
    is_continued: bool = False,
    at: float = 0.0,
) -> NewMessages:
    """Return the new part of a list.

    Parameters
    ----------
    messages
        The whole list.
    known
        Memory of earlier lists of the session.
    round_name
        The client's id of the model response that the list ends with. It tells a list that is sent again from one whose
        messages are equal because call ids are used again and its beginning is cut off.
    is_continued
        Whether the list is not the whole history, but what was added to it.
    at
        When the list was sent, in Unix seconds.
    """
    count = len(messages)
    first_pending = pending_at(messages)
    turn_at = _turn_at(messages, first_pending)
    prefixes = frozenset(known.prefixes)
    start = next((at + 1 for at in range(count - 1, -1, -1) if messages[at].prefix in prefixes), 0)
    is_broken = is_other = False
    if count and start == count:
        end = _end_of_round(messages[-1], round_name) if round_name else messages[-1].prefix
        if end in known.ends or not round_name:
            pending = tuple(messages[first_pending:])
            return NewMessages(pending=pending, is_resent=True, turn=known.turn)
        start = turn_at
    elif known.length and not is_continued and not (start and messages[start - 1].prefix in known.ends):
        is_broken, is_other = 2 * start < known.length, True
        start = _start_after_break(messages, known, start, turn_at, is_broken=is_broken)
    history, digests = tuple(messages[start:first_pending]), frozenset(known.messages)
    refed = {message.index for message in history if message.digest in digests}
    last = next((message for message in reversed(history) if message.is_prompt), None)
    if is_other and last is not None and last.digest == known.turn.prompt and not known.turn.answer:
        # A prompt that was never answered is sent once more, after another history.
        refed.add(last.index)
    circumstances, turn = _circumstances(history, refed, turn_at - start, known.turn, at)
    return NewMessages(
        history=history,
        pending=tuple(messages[first_pending:]),
        is_condensed=is_broken and count < known.length,
        refed=frozenset(refed),
        circumstances=circumstances,
        turn=turn,
    )


def _circumstances(
    history: Sequence[ReadMessage], refed: Iterable[int], turn_at: int, turn: LatestTurn, at: float
) -> tuple[dict[int, Circumstances], LatestTurn]:
    """Return how the new prompts of a history came, and the latest turn after them.

    Parameters
    ----------
    turn_at
        Where the last turn begins; of the prompts before it, nobody knows when they came.
    """
    found: dict[int, Circumstances] = {}
    known, answer = frozenset(refed), turn.answer
    for place, message in enumerate(history):
        if message.may_be_of_person and message.index not in known:
            seconds = at - turn.answered_at if place >= turn_at and turn.answered_at else None
            turn = turn.prompted(message.digest, seconds)
            found[message.index] = Circumstances(turn.gaps, seconds, answer == "blocked")
    return found, turn


def _start_after_break(
    messages: Sequence[ReadMessage], known: KnownMessages, prefix: int, turn_at: int, *, is_broken: bool
) -> int:
    """Return where the new messages of a list begin that continues no earlier list."""
    digests = frozenset(known.messages)
    last = next((at for at in range(len(messages) - 1, prefix - 1, -1) if messages[at].digest in digests), -1)
    if last >= 0:
        # Where call ids are used again, a new turn looks like a known one: its ids tell whether it is.
        return min(last + 1, turn_at)
    if not is_broken:
        return prefix
    prompt = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].is_prompt), -1)
    is_new = prompt >= turn_at and _follows_history(messages, prompt, prefix, known.turn)
    return max(prefix, prompt if is_new else prompt + 1)


def _follows_history(messages: Sequence[ReadMessage], prompt: int, prefix: int, turn: LatestTurn) -> bool:
    """Return whether the last prompt of a list is a new one, and not a summary of what was cut off.

    Programs summarise a run in progress, and nothing else of the run is left then.
    """
    asked, before = messages[prompt], messages[prefix:prompt]
    is_summary = turn.answer == "called" and not any(message.is_of_model for message in before)
    return asked.may_be_of_person and (asked.has_commands or not is_summary)


def pending_at(messages: Sequence[ReadMessage]) -> int:
    """Return where the pending calls begin: the last messages of the model, if they have calls."""
    at = len(messages)
    while at and messages[at - 1].is_of_model:
        at -= 1
    return at if any(message.has_calls for message in messages[at:]) else len(messages)


def _turn_at(messages: Sequence[ReadMessage], first_pending: int) -> int:
    """Return where the last turn begins: with what the model got before its last calls."""
    at = first_pending
    while at and not messages[at - 1].is_of_model:
        at -= 1
    return at


def _with_ids(
    events: Iterable[ReportedEvent], digest: bytes, unanswered: deque[str]
) -> Iterable[ReportedEvent]:
    """Yield events of which each has a call id: without one, results answer the calls of a response in their order."""
    for number, event in enumerate(events):
        if event["type"] == "call" and event["call_id"] is None:
            unanswered.append(f"message-{digest.hex()}-{number}")
            yield event | {"call_id": unanswered[-1]}
        elif event["type"] == "result" and event["call_id"] is None and unanswered:
            yield event | {"call_id": unanswered.popleft()}
        else:
            yield event


def _renamed(event: ReportedEvent, call_ids: Mapping[str, str]) -> ReportedEvent:
    known = call_ids.get(event.get("call_id") or "")
    return event if known is None else event | {"call_id": known}


def _end_of_round(message: ReadMessage, round_name: str) -> bytes:
    data = message.prefix + round_name.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _mark(end: bytes, number: int) -> bytes:
    return hashlib.blake2b(end + b"again%d" % number, digest_size=DIGEST_BYTES).digest()


def _latest(known: Sequence[bytes], new: Iterable[bytes], limit: int) -> tuple[bytes, ...]:
    added = dict.fromkeys(new)
    return tuple([one for one in known if one not in added] + [*added])[-limit:]


def _digest(secret: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret[:64], digest_size=DIGEST_BYTES).digest()
