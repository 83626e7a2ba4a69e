"""Reads the messages that a span of a model repeats, whichever way they are written, and what is new in them.

Instrumentations of model clients know nothing of tools. What an agent called is in the answer, and the results are in
the messages of the next request.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from detection.strict_json import compact

MAX_MESSAGES: Final = 2_000
"""Messages of one request that are read; of more, the first ones. As many as `message_lists` is made for."""
_INPUTS: Final = ("gen_ai.input.messages", "ai.prompt.messages")
_OUTPUT: Final = "gen_ai.output.messages"
_CALLS: Final = "ai.response.toolCalls"
_TEXT: Final = "ai.response.text"
_FLAT_INPUTS: Final = ("llm.input_messages", "gen_ai.prompt")
_FLAT_OUTPUTS: Final = ("llm.output_messages", "gen_ai.completion")
_TEXT_TYPES: Final = (None, "text", "input_text", "output_text")
_CALL_TYPES: Final = ("tool_call", "tool-call", "tool_use", "function_call")
_RESULT_TYPES: Final = ("tool_call_response", "tool-result", "tool_result", "function_call_output")
_ID_NAMES: Final = ("tool_call_id", "toolCallId", "tool_use_id", "call_id", "id")
_TOOL_NAMES: Final = ("name", "toolName")
_ARGUMENT_NAMES: Final = ("arguments", "args", "input")
_RESULT_NAMES: Final = ("response", "result", "output", "content")
_MODEL_ROLES: Final = ("assistant", "model", "ai")
_RESULT_ROLES: Final = ("tool", "function")
_FLAT: Final = re.compile(
    r"(?P<list>llm\.(?:input|output)_messages|gen_ai\.(?:prompt|completion))"
    r"\.(?P<at>\d{1,6})\.(?:message\.)?(?P<rest>.+)"
)
_FLAT_CALL: Final = re.compile(r"tool_calls\.(?P<at>\d{1,6})\.(?:tool_call\.)?(?:function\.)?(?P<name>\w+)")
_FLAT_TEXT: Final = re.compile(r"contents\.\d{1,6}\.message_content\.text")


class AskedCall(NamedTuple):
    """A tool call in an answer of a model.

    Attributes
    ----------
    arguments
        None if they were not recorded.
    """

    call_id: str
    tool: str
    arguments: Any


class GivenResult(NamedTuple):
    """The result of a call in the messages for a model; `call_id` may be empty, or another id than that of the call."""

    call_id: str
    content: Any


@dataclass(slots=True)
class SpanMessage:
    """A message of a request or an answer.

    Attributes
    ----------
    says_more
        Whether it has parts that are neither text nor calls nor results, such as pictures and reasoning.
    """

    role: str
    text: str = ""
    calls: list[AskedCall] = field(default_factory=list)
    results: list[GivenResult] = field(default_factory=list)
    says_more: bool = False

    @property
    def is_of_model(self) -> bool:
        """Whether the model wrote it."""
        return self.role in _MODEL_ROLES


class CountedCall(NamedTuple):
    """A call of a conversation under the id by which it is counted.

    Attributes
    ----------
    name
        Beginning of the ids of its events: the same in every request that repeats it.
    """

    name: str
    call_id: str
    call: AskedCall


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """What one request and its answer add to a conversation.

    Attributes
    ----------
    session
        A name that follows from how the conversation begins, up to its first call.
    before
        The calls whose results the request brings; an earlier answer may have had them already.
    results
        Contents of the results, by the calls in `before`.
    calls
        The calls of the answer.
    """

    session: str
    before: Sequence[CountedCall]
    results: Sequence[tuple[CountedCall, Any]]
    calls: Sequence[CountedCall]


def parsed(value: Any) -> Any:
    """Return the value of a JSON text, anything else unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def input_messages(attributes: Mapping[str, Any]) -> list[SpanMessage]:
    """Return the messages of the request, at most `MAX_MESSAGES`; empty if they were not recorded. Linear."""
    for name in _INPUTS:
        value = parsed(attributes.get(name))
        if isinstance(value, list) and value:
            return [_message(one) for one in value[:MAX_MESSAGES] if isinstance(one, dict)]
    return _flat(attributes, _FLAT_INPUTS)


def output_messages(attributes: Mapping[str, Any]) -> list[SpanMessage]:
    """Return the messages of the answer; empty if they were not recorded."""
    value = parsed(attributes.get(_OUTPUT))
    if isinstance(value, list) and value:
        return [_message(one) for one in value[:MAX_MESSAGES] if isinstance(one, dict)]
    if _TEXT in attributes or _CALLS in attributes:
        calls = parsed(attributes.get(_CALLS))
        asked = [_call(one) for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
        text = attributes.get(_TEXT)
        return [SpanMessage("assistant", text if isinstance(text, str) else "", asked)]
    return _flat(attributes, _FLAT_OUTPUTS)


def turn_of(program: str, attributes: Mapping[str, Any]) -> ModelTurn | None:
    """Return what a request and its answer add; None if no call and no result of a tool is in them.

    Parameters
    ----------
    program
        The service that asked: two programs with the same prompt have two conversations.
    attributes
        Of the span.
    """
    before, answer = input_messages(attributes), output_messages(attributes)
    asked = [call for message in answer for call in message.calls if call.arguments is not None]
    first = next((call for message in before for call in message.calls), asked[0] if asked else None)
    if first is None:
        return None
    beginning = _beginning(program, before, first)
    times: Counter[str] = Counter()
    until = _end_of_model(before)
    start = until
    while start and before[start - 1].is_of_model:
        start -= 1
    for message in before[:start]:
        times.update(_own_name(call) for call in message.calls)
    earlier = [_counted(beginning, call, times) for message in before[start:until] for call in message.calls]
    given = [result for message in before[until:] for result in message.results]
    calls = [_counted(beginning, call, times) for call in asked]
    if not given and not calls:
        return None
    known = [one for one in earlier if one.call.arguments is not None]
    return ModelTurn(f"chat-{beginning}", known, [*_paired(known, given)], calls)


def _paired(
    calls: Sequence[CountedCall], results: Sequence[GivenResult]
) -> Iterator[tuple[CountedCall, Any]]:
    """Pair results with their calls: by id, and in their order where ids differ or are missing."""
    by_id = {one.call.call_id: one for one in calls if one.call.call_id}
    named = {result.call_id for result in results}
    others = iter([one for one in calls if one.call.call_id not in named])
    for result in results:
        call = by_id.pop(result.call_id, None) or next(others, None)
        if call is not None:
            yield call, result.content


def _end_of_model(messages: Sequence[SpanMessage]) -> int:
    """Return the place after the last message of the model."""
    return next((at for at in range(len(messages), 0, -1) if messages[at - 1].is_of_model), 0)


def _own_name(call: AskedCall) -> str:
    return call.call_id or compact([call.tool, call.arguments])


def _counted(beginning: str, call: AskedCall, times: Counter[str]) -> CountedCall:
    """Return a call with the name of its events. Some model servers give the same ids again in every answer."""
    own = _own_name(call)
    number = times[own]
    times[own] += 1
    name = f"otlp-{beginning}-{_digest((own, str(number)))}"
    call_id = call.call_id or name
    return CountedCall(name, f"{call_id}#{number + 1}" if number else call_id, call)


def _beginning(program: str, messages: Iterable[SpanMessage], first: AskedCall) -> str:
    """Return a digest of how a conversation begins. The first call's id tells two with the same prompt apart."""
    prompt = next((message.text for message in messages if message.role == "user"), "")
    return _digest((program, prompt, first.call_id, first.tool, compact(first.arguments)))


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") + b"\x00")
    return digest.hexdigest()


def _first(value: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _name(value: Mapping[str, Any], names: Iterable[str]) -> str:
    found = _first(value, names)
    return found if isinstance(found, str) else ""


def _call(part: Mapping[str, Any]) -> AskedCall:
    inner = part.get("function")
    own = inner if isinstance(inner, dict) else part
    arguments = parsed(_first(own, _ARGUMENT_NAMES))
    return AskedCall(_name(part, _ID_NAMES), _name(own, _TOOL_NAMES), arguments)


def _result(part: Mapping[str, Any]) -> GivenResult:
    content = _first(part, _RESULT_NAMES)
    if isinstance(content, dict) and set(content) <= {"type", "value"}:
        content = content.get("value")
    return GivenResult(_name(part, _ID_NAMES), _plain_or(content))


def _message(given: Mapping[str, Any]) -> SpanMessage:
    """Return a message of a list, with parts or with a content, as the conventions or a model's API write it."""
    found = SpanMessage(_name(given, ("role",)))
    parts = parsed(given.get("parts", given.get("content")))
    if found.role in _RESULT_ROLES and (not isinstance(parts, list) or _name(given, _ID_NAMES)):
        found.results.append(GivenResult(_name(given, _ID_NAMES), _plain_or(parts)))
        return found
    texts = [parts] if isinstance(parts, str) else []
    for part in parts if isinstance(parts, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            continue
        elif kind in _TEXT_TYPES:
            texts.append(_name(part, ("content", "text")))
        elif kind in _CALL_TYPES:
            found.calls.append(_call(part))
        elif kind in _RESULT_TYPES:
            found.results.append(_result(part))
        else:
            found.says_more = True
    calls = given.get("tool_calls")
    found.calls += [_call(one) for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
    found.text = "\n".join(filter(None, texts))
    return found


def _plain_or(content: Any) -> Any:
    """Return the text of parts that are all text, and anything else unchanged."""
    parts = parsed(content)
    if not isinstance(parts, list) or not parts:
        return content
    texts = [_name(part, ("text", "content")) if isinstance(part, dict) else part for part in parts]
    return "\n".join(texts) if all(isinstance(one, str) and one for one in texts) else content


def _flat(attributes: Mapping[str, Any], lists: Sequence[str]) -> list[SpanMessage]:
    """Return the messages of which every field has an attribute of its own, in order of their numbers."""
    fields: dict[str, dict[int, dict[str, Any]]] = {}
    for name, value in attributes.items():
        if (found := _FLAT.fullmatch(name)) and found["list"] in lists:
            fields.setdefault(found["list"], {}).setdefault(int(found["at"]), {})[found["rest"]] = value
    numbered = next((fields[name] for name in lists if name in fields), {})
    return [_of_fields(numbered[at]) for at in sorted(numbered)[:MAX_MESSAGES]]


def _of_fields(fields: Mapping[str, Any]) -> SpanMessage:
    found = _message({"role": fields.get("role", "assistant"), "content": fields.get("content")})
    calls: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        if part := _FLAT_CALL.fullmatch(name):
            calls.setdefault(int(part["at"]), {})[part["name"]] = value
        elif _FLAT_TEXT.fullmatch(name) and isinstance(value, str):
            found.text = f"{found.text}\n{value}" if found.text else value
    found.calls += [_call(calls[at]) for at in sorted(calls)]
    if found.role in _RESULT_ROLES:
        content = found.text or fields.get("content")
        found.results, found.text = [GivenResult(_name(fields, ("tool_call_id",)), _plain_or(content))], ""
    return found
