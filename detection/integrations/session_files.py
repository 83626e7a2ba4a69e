"""What the readers of coding agents' session files share: values of lines that are as they are, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from detection.integrations.events import ReportedEvent, ReportedUsage
from detection.integrations.session_names import bounded
from detection.integrations.transcripts import events_of_message
from detection.strict_json import compact

_MAX_DOLLARS: Final = 1_000_000
"""More is no cost of one response."""
_MAX_MILLISECONDS: Final = 4_102_444_800_000
"""The year 2100."""


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


def cost_of(data: Mapping[str, Any], key: str) -> float | None:
    """Return an amount of US dollars; None if there is none, and for 0, which programs write for unknown prices."""
    value = data.get(key)
    is_amount = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MAX_DOLLARS
    return value if is_amount else None


def moment_of(data: Mapping[str, Any], key: str) -> str | None:
    """Return a time that is written as milliseconds since 1970 in ISO 8601; None if there is none."""
    value: Any = data.get(key)
    is_moment = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MAX_MILLISECONDS
    )
    return datetime.fromtimestamp(value / 1_000, UTC).isoformat() if is_moment else None


def texts_of(data: Mapping[str, Any], key: str) -> str:
    """Return the text of a content: itself, or that of its parts, one a line."""
    if content := text_of(data, key):
        return content
    parts = [part for part in objects_of(data, key) if part.get("type") in (None, "text")]
    return "\n".join(filter(None, (text_of(part, "text") for part in parts)))


def usage_of(
    data: Mapping[str, Any],
    read: tuple[str, ...],
    written: tuple[str, ...],
    cached: str,
    kept: str = "",
    cost: float | None = None,
) -> ReportedUsage | None:
    """Return the tokens of a response, by the names of their counts; None if there are none.

    Parameters
    ----------
    read, written
        Counts that make up the input and the output.
    cached, kept
        Counts of the input that came from a cache, and that went into one.
    cost
        In US dollars, if it is known.
    """
    usage: ReportedUsage = {
        "input_tokens": count_of(data, *read),
        "output_tokens": count_of(data, *written),
        "cached_tokens": count_of(data, cached),
        "cache_write_tokens": count_of(data, kept),
        "cost_usd": cost,
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
