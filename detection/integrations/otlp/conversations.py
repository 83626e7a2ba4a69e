"""Puts the spans of a request in order: which session each belongs to, and the events that follow from it.

Spans arrive when they end, a child before its parent, in batches that are cut anywhere. A request is read by itself;
what has to be known of earlier ones, the service looks up. Ids of events follow from ids of spans alone, so that a span
that arrives again changes nothing, in whatever company. Where only the client of a model is instrumented, calls and
results are read from the messages, and their ids follow from the conversation: its spans repeat them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from detection.integrations.events import ReportedEvent
from detection.integrations.hosts import MAX_ARGUMENT_CHARACTERS, without_ends
from detection.integrations.otlp.attributes import text
from detection.integrations.otlp.decoding import OtlpError, Span
from detection.integrations.otlp.messages import ModelTurn, parsed, turn_of
from detection.integrations.otlp.spans import (
    AgentRun,
    Fact,
    ModelResponse,
    ToolRun,
    agent_name,
    read_span,
    session_of,
)
from detection.integrations.session_names import bounded
from detection.strict_json import compact

MAX_FACTS: Final = 10_000
"""Spans of agents in one request."""
MAX_ANCESTORS: Final = 64
_LENGTHS: Final = {"call_id": 256, "tool": 128, "backend": 128, "model": 200, "agent": 128, "cwd": 1024}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = 365 * 86_400 * 10**9
"""Nanoseconds until 1971, the first year of times in events: a clock that was never set begins in 1970."""
_NO_SERVICE: Final = "unknown_service"
_CLIENTS: Final = re.compile(
    r"(?:opentelemetry\.instrumentation|openinference\.instrumentation|logfire)"
    r"\.(?:openai|openai_v2|anthropic|bedrock|cohere|google_genai|google_generativeai|groq|litellm|mistralai|ollama"
    r"|together|vertexai|watsonx)(?:\.v\d)?"
)
"""Scopes of instrumentations that see a model's client and no tools. Their spans may have a parent that comes later."""
_Key = tuple[str, str]
Placed = tuple[tuple[int, int], ReportedEvent]
"""An event and its place among those of a request: its time, and its rank among those of the same time."""


@dataclass(slots=True)
class SpanEvents:
    """The events of one span, or of one log record.

    Attributes
    ----------
    session
        As the span names it, or one of the same trace in this request does; empty if none does.
    trace_id, span_id
        Empty for log records.
    parent_session
        The session of the agent that started this one, if the request says so.
    started_by
        Id of the span under which another agent was started, where that span is not in the request; empty otherwise.
    events
        In the form of the API, each with its place in the order of the request; without their session.
    rejected
        The code of what is wrong with the span; empty if nothing is.
    """

    session: str
    trace_id: str = ""
    span_id: str = ""
    parent_session: str = ""
    started_by: str = ""
    events: list[Placed] = field(default_factory=list)
    rejected: str = ""


@dataclass(slots=True)
class Conversations:
    """The events of a request.

    Attributes
    ----------
    ignored
        Number of spans or records that do not describe an agent.
    """

    spans: list[SpanEvents]
    ignored: int


def event_id(trace_id: str, span_id: str, part: str) -> str:
    """Return the id of an event of a span."""
    return f"otlp-{trace_id}-{span_id}-{part}"


def read_spans(spans: Sequence[Span]) -> Conversations:
    """Return the events of a request's spans.

    Raises
    ------
    OtlpError
        If it has more than `MAX_FACTS` spans of agents. Costs linear time.
    """
    facts = [(span, fact) for span in spans if (fact := read_span(span)) is not None]
    if len(facts) > MAX_FACTS:
        raise OtlpError("too_many_records", f"A request can have at most {MAX_FACTS:,} spans of agents.")
    read = _Reading(spans, facts)
    found = [read.events_of(span, fact) for span, fact in facts]
    return Conversations([one for one in found if one is not None], len(spans) - len(facts))


class _Reading:
    """The spans of one request, by id."""

    def __init__(self, spans: Iterable[Span], facts: Sequence[tuple[Span, Fact]]) -> None:
        traces = {span.trace_id for span, _ in facts}
        self._by_id: dict[_Key, Span] = {
            (span.trace_id, span.span_id): span for span in spans if span.trace_id in traces
        }
        self._facts: dict[_Key, Fact] = {(span.trace_id, span.span_id): fact for span, fact in facts}
        named = defaultdict(set)
        for span in self._by_id.values():
            if session := session_of(span):
                named[span.trace_id].add(session)
        self._only_session = {trace: next(iter(found)) for trace, found in named.items() if len(found) == 1}
        self._rounds: dict[_Key, tuple[str, int]] = {}
        self._first_calls: dict[_Key, int] = {}
        self._join_rounds(facts)
        with_tools = {span.trace_id for span, fact in facts if isinstance(fact, ToolRun)}
        self._turns = {
            (span.trace_id, span.span_id): turn
            for span, fact in facts
            if isinstance(fact, ModelResponse)
            and span.trace_id not in with_tools
            and self._is_of_client_alone(span)
            and (turn := turn_of(text(span.resource, ("service.name",)), span.attributes)) is not None
        }

    def _is_of_client_alone(self, span: Span) -> bool:
        """Whether no other span tells what the model called: none of an agent or a framework is above."""
        ancestors = self._ancestors(span)
        if any((one.trace_id, one.span_id) in self._facts for one in ancestors):
            return False
        is_whole = not (ancestors[-1] if ancestors else span).parent_id
        return is_whole or _CLIENTS.fullmatch(span.scope) is not None

    def _join_rounds(self, facts: Sequence[tuple[Span, Fact]]) -> None:
        """Find the response that each call belongs to: the last one of its trace and session that ended before."""
        moments: defaultdict[_Key, list[tuple[int, int, Span]]] = defaultdict(list)
        for span, fact in facts:
            place = span.trace_id, session_of(span)
            if isinstance(fact, ModelResponse):
                moments[place].append((span.ended_at, 0, span))
            elif isinstance(fact, ToolRun):
                moments[place].append((span.started_at, 1, span))
        for found in moments.values():
            response: Span | None = None
            for at, is_call, span in sorted(found, key=lambda one: one[:2]):
                if not is_call:
                    response = span
                elif response is not None:
                    self._rounds[span.trace_id, span.span_id] = response.span_id, at
                    self._first_calls.setdefault((response.trace_id, response.span_id), at)

    def events_of(self, span: Span, fact: Fact) -> SpanEvents | None:
        """Return the events of a span; None if another span of the request contains the same information."""
        key = span.trace_id, span.span_id
        ancestors = self._ancestors(span)
        if self._is_repeated(fact, ancestors):
            return None
        own = session_of(span)
        turn = self._turns.get(key)
        named = own or self._only_session.get(span.trace_id, "") or (turn.session if turn else "")
        found = SpanEvents(bounded(named), *key)
        if not span.is_identified:
            found.rejected = "invalid_id"
            return found
        if isinstance(fact, ToolRun) and fact.arguments is None:
            found.rejected = "missing_arguments"
            return found
        others = [one for one in ancestors if session_of(one) not in ("", own)]
        if own and others:
            found.parent_session = bounded(session_of(others[0]))
        elif isinstance(fact, AgentRun) and own and span.parent_id and not ancestors:
            found.started_by = span.parent_id
        agent = self._agent_of(span, fact, ancestors)
        inside = any(
            isinstance(self._facts.get((one.trace_id, one.span_id)), AgentRun) and session_of(one) == own
            for one in ancestors
        )
        is_outermost = not span.parent_id or bool(own and not inside)
        for place, event in self._events(
            span, fact, is_outermost=is_outermost, is_started=bool(found.parent_session)
        ):
            found.events.append((place, with_bounded_names(event, agent)))
        return found

    def _ancestors(self, span: Span) -> list[Span]:
        """Return the spans above one that are in the request, the nearest first."""
        found: list[Span] = []
        parent = self._by_id.get((span.trace_id, span.parent_id))
        while parent is not None and len(found) < MAX_ANCESTORS:
            found.append(parent)
            parent = self._by_id.get((parent.trace_id, parent.parent_id))
        return found

    def _is_repeated(self, fact: Fact, ancestors: Iterable[Span]) -> bool:
        """Whether an enclosing span has the same information, as with instrumented frameworks and their clients."""
        above = [self._facts.get((one.trace_id, one.span_id)) for one in ancestors]
        nearest = next((one for one in above if not isinstance(one, (AgentRun, type(None)))), None)
        if isinstance(fact, ModelResponse):
            return isinstance(nearest, ModelResponse)
        return isinstance(fact, ToolRun) and isinstance(nearest, ToolRun) and nearest.tool == fact.tool

    def _agent_of(self, span: Span, fact: Fact, ancestors: Iterable[Span]) -> str:
        if isinstance(fact, AgentRun) and fact.name:
            return fact.name
        for one in ancestors:
            above = self._facts.get((one.trace_id, one.span_id))
            if isinstance(above, AgentRun) and above.name:
                return above.name
        service = text(span.resource, ("service.name",))
        return agent_name(span.attributes) or ("" if service.startswith(_NO_SERVICE) else service)

    def _events(self, span: Span, fact: Fact, *, is_outermost: bool, is_started: bool) -> Iterable[Placed]:
        start, end = span.started_at, max(span.started_at, span.ended_at)
        key = span.trace_id, span.span_id

        def about(kind: str, part: str, at: int) -> ReportedEvent:
            event: ReportedEvent = {"type": kind, "id": event_id(*key, part)}
            if (moment := as_moment(at)) is not None:
                event["occurred_at"] = moment
            return event

        if isinstance(fact, ToolRun):
            yield from call_events(
                f"otlp-{span.trace_id}-{span.span_id}",
                started_at=start,
                ended_at=end,
                tool=fact.tool,
                call_id=fact.call_id or span.span_id,
                arguments=fact.arguments,
                content=fact.content,
                is_error=fact.is_error,
                round_name=self._rounds.get(key, ("", 0))[0],
                cwd=fact.cwd,
            )
        elif isinstance(fact, ModelResponse):
            yield from self._events_of_response(span, fact, about, is_started=is_started)
        elif is_outermost:
            outcome = "failed" if fact.is_error else "completed"
            yield (end, 4), about("end", "end", end) | {"outcome": outcome}

    def _events_of_response(
        self, span: Span, fact: ModelResponse, about: Any, *, is_started: bool
    ) -> Iterable[Placed]:
        start, end = span.started_at, max(span.started_at, span.ended_at)
        names = {name: value for name, value in (("model", fact.model), ("backend", fact.backend)) if value}
        if fact.prompt and not is_started:
            # An agent that another one has started has no user. One prompt in a trace: a request to correct an answer
            # looks like a prompt, too.
            prompt = about("message", "", start) | {"role": "user", "content": fact.prompt}
            prompt["id"] = bounded(f"otlp-{span.trace_id}-prompt-{session_of(span)}")
            yield (start, 1), prompt | names
        if fact.answer is not None:
            yield (
                (end, 0),
                about("message", "answer", end) | {"role": "assistant", "content": fact.answer} | names,
            )
        turn = self._turns.get((span.trace_id, span.span_id))
        if turn is not None:
            yield from _events_of_turn(turn, start, end, span.span_id)
        if fact.usage:
            # After the first call of its round, so that the cost is known to be that of the call.
            first_call = self._first_calls.get((span.trace_id, span.span_id))
            place = (end, 0) if first_call is None else (first_call, 2)
            if turn is not None and turn.calls:
                place = (end, 2)
            usage = {"round": span.span_id, "usage": dict(fact.usage)}
            yield place, about("usage", "usage", end) | usage | names


def _events_of_turn(turn: ModelTurn, start: int, end: int, round_name: str) -> Iterable[Placed]:
    """Return the calls of a model's answer, and the results that its request brought; each has one id for good."""
    for one in turn.before:
        # Stored already if the answer came before; its own round is not known here.
        yield (start, -1), _call(one.name, start, one.call.tool, one.call_id, one.call.arguments)
    for one, content in turn.results:
        yield (start, 0), _result(one.name, start, one.call_id, content, is_error=None)
    for one in turn.calls:
        yield (end, 1), _call(one.name, end, one.call.tool, one.call_id, one.call.arguments, round_name)


def call_events(
    name: str,
    *,
    started_at: int,
    ended_at: int,
    tool: str,
    call_id: str,
    arguments: Any,
    content: Any,
    is_error: bool,
    round_name: str,
    cwd: str = "",
) -> Iterable[Placed]:
    """Return a call and its result, each with its place in the order of the request.

    Parameters
    ----------
    name
        Beginning of the ids of both events.
    started_at, ended_at
        Nanoseconds since 1970.
    content
        Of the result; None if it is not known.
    round_name
        The response that the call belongs to; empty if that is not known.
    cwd
        The directory in which it ran; empty if that is not known.
    """
    call = _call(name, started_at, tool, call_id, arguments, round_name)
    if cwd:
        call["cwd"] = cwd
    # Of calls and results at one moment, a result comes first, unless it is that of a call which took no time.
    yield (started_at, 1), call
    rank = 0 if ended_at > started_at else 3
    yield (ended_at, rank), _result(name, ended_at, call_id, content, is_error=is_error)


def _call(name: str, at: int, tool: str, call_id: str, arguments: Any, round_name: str = "") -> ReportedEvent:
    if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARACTERS:
        arguments = parsed(arguments)
    arguments = without_ends(arguments)
    call: ReportedEvent = {
        "type": "call",
        "id": f"{name}-call",
        "tool": tool or "unnamed",
        "call_id": call_id,
    }
    call["arguments"] = arguments if isinstance(arguments, (dict, str)) else compact(arguments)
    if round_name:
        call["round"] = round_name
    if (moment := as_moment(at)) is not None:
        call["occurred_at"] = moment
    return call


def _result(name: str, at: int, call_id: str, content: Any, *, is_error: bool | None) -> ReportedEvent:
    result: ReportedEvent = {
        "type": "result",
        "id": f"{name}-result",
        "call_id": call_id,
        "is_error": is_error,
    }
    if content is not None:
        result["content"] = content
    if (moment := as_moment(at)) is not None:
        result["occurred_at"] = moment
    return result


def with_bounded_names(event: ReportedEvent, agent: str) -> ReportedEvent:
    """Return an event with its agent and with names that the API accepts."""
    given = {"agent": agent, **{name: event.get(name) for name in _LENGTHS if event.get(name)}}
    names = {name: bounded(value, _LENGTHS[name]) for name, value in given.items() if isinstance(value, str)}
    return cast("ReportedEvent", event | {name: value for name, value in names.items() if value})


def as_moment(nanoseconds: int) -> str | None:
    """Return a time in ISO 8601; None for one that is unknown or out of range."""
    if not _EARLIEST <= nanoseconds < 2**62:
        return None
    return (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()
