"""Protocols of frameworks that write calls and results as plain text, read as those of the model server's protocol.

Knowledge of frameworks is data here. Only what people and models do not write otherwise is read: a form with a name of
its own, or one that the instructions of the conversation demand.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from detection.integrations.people import is_program_text
from detection.strict_json import compact

MAX_CHARACTERS: Final = 200_000
"""Of a message that is read: a judgement, a few times what models answer at most."""
_RESULT: Final = re.compile(r"\s{0,20}(?:call id: \S{1,256}\s{1,8})?observations?:\s?", re.IGNORECASE)


_CALL_LIST: Final = re.compile(r"^Calling tools:\n(?=\[\{'id': )", re.MULTILINE)
"""How smolagents repeats calls that the model has made in the protocol of its model server."""


@dataclass(frozen=True, slots=True)
class TextProtocol:
    """How the model calls a tool by writing text.

    Attributes
    ----------
    program
        Whose protocol it is.
    opener, closer
        What the argument of the call stands between.
    tool, argument
        Names under which the call is counted.
    instructions
        What the instructions of the conversation contain; None if the form is of this program alone.
    form
        How the call stands in later requests, with `{argument}`, or `{literal}` for it as a literal of Python.
    history
        What messages of the conversation have beside the call; None for nothing.
    may_lack_closer
        Whether the model server omits the closer, because requests name it as the end of the answer.
    """

    program: str
    opener: str
    closer: str
    tool: str
    argument: str
    form: str
    instructions: re.Pattern[str] | None = None
    history: re.Pattern[str] | None = None
    may_lack_closer: bool = False


TEXT_PROTOCOLS: Final = (
    TextProtocol(
        "mini-swe-agent",
        "```mswea_bash_command",
        "\n```",
        "bash",
        "command",
        "```mswea_bash_command\n{argument}\n```",
    ),
    TextProtocol(
        "smolagents",
        "<code>",
        "</code>",
        "python_interpreter",
        "code",
        "<code>\n{argument}\n</code>\nCalling tools:\n[{'id': 'call_1', 'type': 'function', "
        "'function': {'name': 'python_interpreter', 'arguments': {literal}}}]",
        instructions=re.compile(r"code sequence must be opened with \\?'<code>"),
        history=_CALL_LIST,
        may_lack_closer=True,
    ),
)


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call in a text.

    Attributes
    ----------
    call_id
        As the model server gave it; of a call that was made in text, the same for the same text.
    arguments
        JSON text.
    """

    call_id: str
    tool: str
    arguments: str


def call_of_answer(text: str, instructions: str) -> TextCall | None:
    """Return the call in an answer, if the conversation has a text protocol and the answer has one call.

    Parameters
    ----------
    instructions
        Of the conversation; only their first `MAX_CHARACTERS` count.
    """
    for protocol in TEXT_PROTOCOLS:
        demanded = protocol.instructions
        is_demanded = demanded is None or demanded.search(instructions[:MAX_CHARACTERS])
        if is_demanded and (found := _action(protocol, text)):
            return found
    return None


def text_of_call(tool: str, arguments: str) -> str:
    """Return a call that was made in text, in the form of later requests."""
    protocol = next(one for one in TEXT_PROTOCOLS if one.tool == tool)
    argument = str(orjson.loads(arguments).get(protocol.argument, ""))
    return protocol.form.replace("{literal}", repr(argument)).replace("{argument}", argument)


def native_message(message: dict[str, object]) -> dict[str, object]:
    """Return a message with the calls in its text as those of the protocol; the same message if it has none."""
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return message
    calls = _calls_of_history(_text(message.get("content")))
    return message | {"tool_calls": [_native(call) for call in calls]} if calls else message


def with_native_calls(messages: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Yield messages of chat completions of which calls and results in text are those of the protocol, one for one.

    A message that has calls already stays as it is. An observation after several calls is the result of the first.
    """
    pending, before = "", ""
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            read = native_message(message)
            calls = read["tool_calls"] if read is not message else None
            pending = str(calls[0]["id"]) if isinstance(calls, list) else ""
            before = _text(message.get("content")) if pending else ""
            yield read
            continue
        if role in ("user", "program") and pending:
            text = _text(message.get("content"))
            if is_program_text(text, before):
                content = text[found.end() :] if (found := _RESULT.match(text)) else text
                message = {"role": "tool", "tool_call_id": pending, "content": content}
                pending = ""
        yield message


def _calls_of_history(text: str) -> list[TextCall]:
    if len(text) > MAX_CHARACTERS:
        return []
    for protocol in TEXT_PROTOCOLS:
        if (protocol.history is None or protocol.history.search(text)) and (found := _action(protocol, text)):
            return [found]
    return _listed(text)


def _action(protocol: TextProtocol, text: str) -> TextCall | None:
    _, opener, rest = text[:MAX_CHARACTERS].partition(protocol.opener)
    argument, closer, rest = rest.partition(protocol.closer)
    if not opener or not (closer or protocol.may_lack_closer) or protocol.opener in rest:
        return None
    arguments = compact({protocol.argument: argument.strip()})
    digest = hashlib.blake2b(arguments.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return TextCall(f"text_{digest}", protocol.tool, arguments)


def _listed(text: str) -> list[TextCall]:
    """Return the calls of a list that smolagents has written, a literal of Python."""
    found = _CALL_LIST.search(text)
    if found is None:
        return []
    try:
        listed = ast.literal_eval(text[found.end() :].partition("\n")[0])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    calls: list[TextCall] = []
    for one in listed if isinstance(listed, list) else ():
        function = one.get("function") if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            return []
        arguments, call_id = function.get("arguments"), one.get("id")
        try:
            written = arguments if isinstance(arguments, str) else compact(arguments)
        except (TypeError, ValueError):
            return []
        calls.append(TextCall(call_id if isinstance(call_id, str) else "", name, written))
    return calls


def _native(call: TextCall) -> dict[str, object]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.tool, "arguments": call.arguments},
    }


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
