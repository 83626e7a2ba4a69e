"""Base class of the stream readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import orjson

from detection.gateway.protocols import sse
from detection.gateway.protocols.answers import Answer, Resolution


def joined_strings(parts: Iterable[bytes]) -> str:
    """Return the text of JSON strings, given without their quotation marks; empty if they are none."""
    try:
        return str(orjson.loads(b'"%b"' % b"".join(parts)))
    except ValueError:
        return ""


class StreamReader:
    """Reads the stream of one answer: passes text on, and holds tool calls and what follows them.

    Attributes
    ----------
    answer
        What was read so far; complete after `finish`.
    held
        Events that wait for the verdicts.
    is_due
        Whether all calls of the answer are there, so that they can be evaluated.
    has_failed
        Whether the model server reported an error: nothing is evaluated.
    has_ended
        Whether the model server has marked the end of the answer: clients leave then, without waiting for that of the
        response.
    is_unreadable
        Whether the rest passes unread.
    hides_usage
        Whether the model server was asked for its usage by the gateway, so that the client is not to see it.
    lead
        A text of LoopGuard that precedes the answer, or empty.
    """

    def __init__(self) -> None:
        self.answer = Answer()
        self.held: list[bytes] = []
        self.is_due = False
        self.has_failed = False
        self.has_ended = False
        self.is_unreadable = False
        self.hides_usage = False
        self.lead = ""
        self._splitter = sse.EventSplitter()
        self._events: deque[bytes] = deque()
        self._held_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Read a part of the stream until verdicts are due; return what is passed on immediately.

        Raises
        ------
        EventTooLarge
            If an event, or all that is held, is beyond the limit.
        """
        if not (self.lead or self._events or self._splitter.rest) and self.passes_unread(data):
            return self.without_hidden(data) if self.hides_usage else data
        self._events.extend(self._splitter.split(data))
        return self.advance()

    def advance(self) -> bytes:
        """Continue reading after `is_due` was reset; return what is passed on immediately."""
        out: list[bytes] = []
        while self._events and not self.is_due:
            event = self._events[0]
            data = sse.payload(event)
            document = sse.document(event) if data[:1] == b"{" else None
            if (
                document is not None
                and isinstance(document.get("error"), dict)
                and not document.get("choices")
            ):
                self.has_failed = True
            passed = self.read(event, document, data)
            self._events.popleft()
            out.append(passed)
            if not passed:
                self._held_bytes += len(event)
                if self._held_bytes > sse.MAX_EVENT_BYTES:
                    raise sse.EventTooLarge
        return b"".join(out)

    @property
    def has_whole_calls(self) -> bool:
        """Whether an answer with calls is complete except for its usage."""
        return False

    @property
    def rest(self) -> bytes:
        """Data that was fed but not read yet, unchanged."""
        events, self._events = b"".join(self._events), deque()
        rest, self._splitter.rest = self._splitter.rest, b""
        return events + rest

    @property
    def unread(self) -> bytes:
        """Return the held and unread data unchanged: all that the client has not received of an unreadable answer."""
        return b"".join((*self.held, self.rest))

    @staticmethod
    def document_of(event: bytes) -> dict[str, object] | None:
        """Return the data of an event, if it is a JSON object."""
        return sse.document(event)

    @staticmethod
    def event_of(data: dict[str, object], name: str = "") -> bytes:
        """Return an event with JSON data."""
        return sse.event(data, name)

    def passes_unread(self, data: bytes) -> bool:
        """Return whether a part consists of whole events that only carry text, so that none has to be read by itself.

        Most of a stream is such parts. False is always correct; data that was not read may only be text.
        """
        return False

    def without_hidden(self, data: bytes) -> bytes:
        """Return events without data that the client did not ask for; see `hides_usage`."""
        return data

    def read(self, event: bytes, document: dict[str, object] | None, data: bytes) -> bytes:
        """Return the part of an event that is passed on immediately; hold the rest."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the answer when the verdicts are due."""
        raise NotImplementedError

    def forwarded(self) -> bytes:
        """Return the held events, one whole call after another."""
        raise NotImplementedError

    def resolved(self, resolution: Resolution) -> bytes:
        """Return what the client gets for the held events; the action of `resolution` is ``some`` or ``text``."""
        raise NotImplementedError

    def next_reader(self) -> StreamReader:
        """Return the reader of the next answer to the same request, which follows in the same stream to the client."""
        raise NotImplementedError

    def ended_with(self, text: str) -> bytes:
        """Return the end of the client's stream, with a text, if no further answer follows."""
        raise NotImplementedError

    @property
    def can_be_cut(self) -> bool:
        """Whether the stream can be ended here, because no call has begun."""
        return not self.answer.calls

    def cut_with(self, text: str) -> bytes:
        """Return a text and the end of the client's stream within an answer, as if the limit of tokens was reached."""
        raise NotImplementedError

    def error_event(self, document: dict[str, object]) -> bytes:
        """Return an error as the last event of the client's stream.

        Parameters
        ----------
        document
            Of the error, as it would be the response.
        """
        return sse.event(document)

    def keep_alive(self) -> bytes:
        """Return a keep-alive event without meaning, which may be sent at any time."""
        return b": waiting for a decision\n\n"
