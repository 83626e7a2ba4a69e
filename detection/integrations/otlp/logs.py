"""Reads the log records of coding agents: Claude Code, Codex CLI and Gemini CLI, each with names of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detection.integrations.events import ReportedEvent, ReportedUsage
from detection.integrations.otlp import attributes as names
from detection.integrations.otlp.conversations import (
    MAX_FACTS,
    Conversations,
    Placed,
    SpanEvents,
    as_moment,
    call_events,
    with_bounded_names,
)
from detection.integrations.otlp.decoding import LogRecord, OtlpError
from detection.integrations.session_names import bounded

_SESSION: Final = ("session.id", "conversation.id")
_TOOL: Final = ("tool_name", "function_name")
_CALL_ID: Final = ("tool_use_id", "call_id")
_ARGUMENTS: Final = ("tool_input", "arguments", "function_args")
_OUTPUT: Final = ("output", "error", "error_message")
_INPUT_TOKENS: Final = ("input_tokens", "input_token_count")
_OUTPUT_TOKENS: Final = ("output_tokens", "output_token_count")
_CACHED_TOKENS: Final = ("cache_read_tokens", "cached_token_count", "cached_content_token_count")
_WRITTEN_TOKENS: Final = ("cache_creation_tokens", "cache_write_token_count")
_NANOSECONDS: Final = 1_000_000
"""Of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Program:
    """The names of a program's records."""

    agent: str
    backend: str
    call: str
    prompt: str
    usage: str
    answer: str = ""
    counts_cached: bool = True
    """Whether tokens from a cache are among those of the input."""


_PROGRAMS: Final = (
    _Program(
        "claude-code", "anthropic", "tool_result", "user_prompt", "api_request", "assistant_response",
        counts_cached=False,
    ),
    _Program("codex", "", "codex.tool_result", "codex.user_prompt", "codex.sse_event"),
    _Program("gemini-cli", "google", "gemini_cli.tool_call", "gemini_cli.user_prompt", "gemini_cli.api_response"),
)  # fmt: skip


def read_records(records: Sequence[LogRecord]) -> Conversations:
    """Return the events of a request's log records.

    Raises
    ------
    OtlpError
        If it has more than `MAX_FACTS` records of agents. Costs linear time.
    """
    rounds: dict[str, str] = {}
    usages: dict[str, SpanEvents] = {}
    found: list[SpanEvents] = []
    for record in records:
        program = _program_of(record)
        session = names.text(record.attributes, _SESSION)
        if program is None or not session:
            continue
        one = SpanEvents(bounded(session))
        events = [*_events(program, record, session, rounds, one)]
        if events or one.rejected:
            one.events += [(place, with_bounded_names(event, program.agent)) for place, event in events]
            found.append(one)
            if record.name == program.usage:
                usages[session] = one
            elif record.name == program.call and events and session in usages:
                # After the first call of its round, so that the cost is known to be that of the call.
                usage, (start, _) = usages.pop(session), events[0][0]
                usage.events = [((start, 2), event) for _, event in usage.events]
    if len(found) > MAX_FACTS:
        raise OtlpError("too_many_records", f"A request can have at most {MAX_FACTS:,} records of agents.")
    return Conversations(found, len(records) - len(found))


def _program_of(record: LogRecord) -> _Program | None:
    for program in _PROGRAMS:
        if record.name in (program.call, program.prompt, program.usage, program.answer):
            # Those names of Claude Code could be anyone's.
            is_its_own = "." in program.call or record.resource.get("service.name") == program.agent
            return program if is_its_own else None
    return None


def _events(
    program: _Program, record: LogRecord, session: str, rounds: dict[str, str], one: SpanEvents
) -> Iterator[Placed]:
    found, at = record.attributes, record.at
    about_call = names.text(found, _CALL_ID), names.first(found, _ARGUMENTS)
    mark = repr((session, at, record.name, names.first(found, ("event.sequence",)), about_call))
    name = f"otlp-{hashlib.blake2b(mark.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
    about: ReportedEvent = {"id": name}
    if (moment := as_moment(at)) is not None:
        about["occurred_at"] = moment
    model = names.text(found, ("model",))
    shared: ReportedEvent = {"model": model} if model else {}
    if program.backend:
        shared["backend"] = program.backend
    if record.name == program.call:
        arguments = names.first(found, _ARGUMENTS)
        if arguments is None:
            one.rejected = "missing_arguments"
            return
        yield from _call(record, name, arguments, rounds.get(session, ""))
    elif record.name == program.prompt:
        yield (at, 1), about | {"type": "message", "role": "user", "content": names.text(found, ("prompt",))}
    elif record.name == program.answer:
        text = names.text(found, ("response",))
        yield (at, 0), about | shared | {"type": "message", "role": "assistant", "content": text}
    elif usage := _usage(program, found):
        rounds[session] = name
        yield (at, 0), about | shared | {"type": "usage", "round": name, "usage": usage}


def _call(record: LogRecord, name: str, arguments: Any, round_name: str) -> Iterator[Placed]:
    found = record.attributes
    has_failed = str(found.get("success", "true")).lower() == "false"
    took = int(_number(found, ("duration_ms",)) * _NANOSECONDS)
    yield from call_events(
        name,
        started_at=max(0, record.at - took),
        ended_at=record.at,
        tool=names.text(found, _TOOL),
        call_id=names.text(found, _CALL_ID) or name,
        arguments=arguments,
        content=names.first(found, _OUTPUT),
        is_error=has_failed,
        round_name=round_name,
        cwd=names.text(found, names.CWD),
    )


def _usage(program: _Program, found: Mapping[str, Any]) -> ReportedUsage:
    given, output = _number(found, _INPUT_TOKENS), _number(found, _OUTPUT_TOKENS)
    cached, written = _number(found, _CACHED_TOKENS), _number(found, _WRITTEN_TOKENS)
    if not (given or output or cached or written):
        return {}
    usage: ReportedUsage = {
        "input_tokens": int(given if program.counts_cached else given + cached + written),
        "output_tokens": int(output),
        "cached_tokens": int(cached),
        "cache_write_tokens": int(written),
    }
    if cost := _number(found, ("cost_usd",)):
        usage["cost_usd"] = cost
    return usage


def _number(found: Mapping[str, Any], keys: Sequence[str]) -> float:
    """Return the first of these attributes as a number; some programs write numbers as text."""
    for key in keys:
        value = found.get(key)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        number = names.number({key: value}, (key,))
        if number:
            return number
    return 0
