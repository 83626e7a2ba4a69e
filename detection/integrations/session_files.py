"""What the readers of coding agents' session files share: values of lines that are as they are, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detection.integrations.events import ReportedEvent, ReportedUsage
from detection.integrations.session_names import bounded
from detection.integrations.transcripts import events_of_message
from detection.strict_json import compact


def text_of(data: Mapping[str, Any], key: str) -> str:
    """Return a text, or an empty one if there is none."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def object_of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object, or an empty one if there is none."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def objects_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list, or none."""
    values = data.get(key)
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def count_of(data: Mapping[str, Any], *keys: str) -> int:
    """Return the sum of numbers of tokens; what is none counts as 0."""
    values = (data.get(key) for key in keys)
    return sum(one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0)


def usage_of(
    data: Mapping[str, Any], read: str, written: tuple[str, ...], cached: str
) -> ReportedUsage | None:
    """Return the tokens of a response, by the names of their counts; None if there are none."""
    usage: ReportedUsage = {
        "input_tokens": count_of(data, read),
        "output_tokens": count_of(data, *written),
        "cached_tokens": count_of(data, cached),
        "cache_write_tokens": 0,
        "cost_usd": None,
    }
    return usage if usage["input_tokens"] or usage["output_tokens"] else None


def prompt_events(common: ReportedEvent, text: str) -> Iterator[ReportedEvent]:
    """Yield the message of a text on the user's side, which a program may have written."""
    if text:
        for event in events_of_message({"role": "user", "content": text}, "openai"):
            yield common | event


def response_events(
    common: ReportedEvent, calls: list[tuple[str, str, Any]], usage: ReportedUsage | None
) -> Iterator[ReportedEvent]:
    """Yield the calls of a response of the model, each given as id, tool and arguments; the first has its usage."""
    for call_id, tool, arguments in calls:
        given = arguments if isinstance(arguments, (dict, str)) else compact(arguments or {})
        yield common | {
            "type": "call", "call_id": bounded(call_id) or None, "tool": bounded(tool, 128) or "unnamed",
            "arguments": given, "usage": usage,
        }  # fmt: skip
        usage = None
    if usage is not None:
        yield common | {"type": "usage", "usage": usage}


def result_event(common: ReportedEvent, call_id: str, content: Any, *, is_error: bool) -> ReportedEvent:
    """Return the result of a call."""
    text = content if content is None or isinstance(content, str) else compact(content)
    return common | {
        "type": "result", "round": None, "call_id": bounded(call_id) or None, "content": text, "is_error": is_error
    }  # fmt: skip
