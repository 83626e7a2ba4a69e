"""Finds what is new in a list of messages. Agents send the whole history to their model server with every request.

New is what follows the longest known prefix. Where the beginning was cut off, summarised or edited, no prefix is known;
then it is what follows the last message that is known by itself. Of the messages only keyed digests are remembered, at
most 7 KB of them, and ids of calls of answers that were given again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from detection.integrations.transcripts import Event, MessageShape, events_of_message, text_of_message
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
_MODEL_ROLES: Final = frozenset(("assistant", "model"))
_MODEL_ITEMS: Final = frozenset(("function_call", "custom_tool_call", "local_shell_call"))


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
    events: tuple[Event, ...]
    digest: bytes
    prefix: bytes

    @property
    def is_prompt(self) -> bool:
        """Whether a user wrote it."""
        return any(event["type"] == "message" for event in self.events)

    @property
    def has_calls(self) -> bool:
        """Whether it contains calls."""
        return any(event["type"] == "call" for event in self.events)


@dataclass(frozen=True, slots=True)
class KnownMessages:
    """Memory of the lists read in a session; the newest digests are last.

    Attributes
    ----------
    call_ids
        Of answers that were given again: the id by which a call is counted, by its later id.
    """

    prefixes: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    length: int = 0
    call_ids: Mapping[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return it as bytes: four numbers, the digests, and the ids of calls as JSON, if there are any."""
        sizes = (self.length, len(self.prefixes), len(self.messages), len(self.ends))
        numbers = b"".join(number.to_bytes(4) for number in sizes)
        ids = orjson.dumps(self.call_ids) if self.call_ids else b""
        return numbers + b"".join((*self.prefixes, *self.messages, *self.ends, ids))

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
        return cls(prefixes, messages, ends, length, orjson.loads(stored[at:]) if stored[at:] else {})

    def with_list(self, messages: Sequence[ReadMessage], round_name: str) -> KnownMessages:
        """Return the memory after a list was read."""
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
    """

    history: tuple[ReadMessage, ...] = ()
    pending: tuple[ReadMessage, ...] = ()
    is_resent: bool = False
    is_condensed: bool = False
    refed: frozenset[int] = field(default_factory=frozenset)

    @property
    def count(self) -> int:
        """Number of new messages."""
        return 0 if self.is_resent else len(self.history) - len(self.refed) + len(self.pending)


def read_messages(
    messages: Iterable[dict[str, Any]],
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
    for index, message in enumerate(messages):
        events = tuple(events_of_message(message, shape))
        if call_ids:
            events = tuple(_renamed(event, call_ids) for event in events)
        is_of_model = message.get("role") in _MODEL_ROLES or message.get("type") in _MODEL_ITEMS
        text = text_of_message(message) if is_of_model else ""
        if not events and not text:
            continue
        digest = _digest(secret, compact([is_of_model, text, events]).encode("utf-8", "surrogatepass"))
        prefix = _digest(secret, prefix + digest)
        if is_of_model and read and not read[-1].is_of_model:
            unanswered.clear()
        events = tuple(_with_ids(events, digest, unanswered))
        read.append(ReadMessage(index, is_of_model, events, digest, prefix))
    return read


def find_new(
    messages: Sequence[ReadMessage], known: KnownMessages, round_name: str = "", *, is_continued: bool = False
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
    """
    count = len(messages)
    first_pending = pending_at(messages)
    turn_at = _turn_at(messages, first_pending)
    prefixes = frozenset(known.prefixes)
    start = next((at + 1 for at in range(count - 1, -1, -1) if messages[at].prefix in prefixes), 0)
    is_broken = False
    if count and start == count:
        end = _end_of_round(messages[-1], round_name) if round_name else messages[-1].prefix
        if end in known.ends or not round_name:
            return NewMessages(pending=tuple(messages[first_pending:]), is_resent=True)
        start = turn_at
    elif known.length and not is_continued and not (start and messages[start - 1].prefix in known.ends):
        is_broken = 2 * start < known.length
        start = _start_after_break(messages, known, start, turn_at, is_broken=is_broken)
    return NewMessages(
        history=tuple(messages[start:first_pending]),
        pending=tuple(messages[first_pending:]),
        is_condensed=is_broken and count < known.length,
        refed=frozenset(
            message.index for message in messages[start:first_pending] if message.digest in known.messages
        ),
    )


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
    return max(prefix, next((at + 1 for at in range(len(messages) - 1, -1, -1) if messages[at].is_prompt), 0))


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


def _with_ids(events: Iterable[Event], digest: bytes, unanswered: deque[str]) -> Iterable[Event]:
    """Yield events of which each has a call id: without one, results answer the calls of a response in their order."""
    for number, event in enumerate(events):
        if event["type"] == "call" and event["call_id"] is None:
            unanswered.append(f"message-{digest.hex()}-{number}")
            yield event | {"call_id": unanswered[-1]}
        elif event["type"] == "result" and event["call_id"] is None and unanswered:
            yield event | {"call_id": unanswered.popleft()}
        else:
            yield event


def _renamed(event: Event, call_ids: Mapping[str, str]) -> Event:
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
