"""Types that all protocols share: a model's answer with tool calls, its verdicts, and its resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from detection.gateway.protocols.answer_text import AnswerText

Message = dict[str, object]
MAX_REASKS: Final = 2
NOT_RUN: Final = "The call was not run."


@dataclass(slots=True)
class ToolCall:
    """A call in an answer.

    Attributes
    ----------
    id
        As the model server gave it, possibly empty, possibly used before.
    arguments
        The text that the model wrote.
    place
        Number of the call, block or item within the answer.
    choice
        Number of the choice, where an answer has several.
    kind
        The protocol's word for the sort of call.
    """

    id: str
    name: str
    arguments: str
    place: int = 0
    choice: int = 0
    kind: str = "function"


@dataclass(slots=True)
class TokenUsage:
    """Tokens of an answer; those read from a cache or written to it are part of the input."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class Answer:
    """An answer of a model.

    Attributes
    ----------
    messages
        The answer in the form that the model server expects back, if it cannot be derived from the calls alone.
    reasoning
        Text of the reasoning, if the model server expects it back.
    shown_id
        The id under which the client received it, if different.
    said
        Its text and its reasoning.
    """

    id: str = ""
    model: str = ""
    messages: list[Message] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    usage: TokenUsage = field(default_factory=TokenUsage)
    reasoning: str = ""
    shown_id: str = ""
    said: AnswerText = field(default_factory=AnswerText, compare=False)


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """The verdict on a call.

    Attributes
    ----------
    decision
        One of `engine.calls.DECISIONS`, without `hold`.
    ends_in_error
        Whether a stop is to end the answer as an error, in protocols that have such an end.
    ending
        What a blocked call asks of the agent; see `engine.calls.Verdict`.
    repeats
        Whether it is blocked because an identical call of the answer runs, whose result it gets.
    """

    decision: str
    message: str = ""
    ends_in_error: bool = False
    ending: str | None = None
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Resolution:
    """How an answer is handled.

    Attributes
    ----------
    action
        `forward` it; forward `some` of its calls; `reask` the model server, with the reasons as results; respond with
        `text` instead of the calls.
    blocked
        Numbers of the calls that do not run.
    text
        The message to the user, for `text`.
    ends_in_error
        Whether the answer ends as an error, in protocols that have such an end.
    without_tools
        Whether the model is to answer without further calls when it is asked again.
    """

    action: Literal["forward", "some", "reask", "text"]
    blocked: frozenset[int] = frozenset()
    text: str = ""
    ends_in_error: bool = False
    without_tools: bool = False


def resolve(verdicts: Sequence[AnswerVerdict], reasks_left: int) -> Resolution:
    """Return how an answer whose calls have these verdicts is handled."""
    everything = frozenset(range(len(verdicts)))
    stops = [verdict for verdict in verdicts if verdict.decision == "stop"]
    if stops:
        return Resolution("text", everything, stops[0].message or NOT_RUN, stops[0].ends_in_error)
    blocked = frozenset(n for n, verdict in enumerate(verdicts) if verdict.decision not in ("allow", "warn"))
    if not blocked:
        return Resolution("forward")
    if blocked != everything:
        return Resolution("some", blocked)
    if reasks_left > 0:
        is_finish = any(verdict.ending == "finish" for verdict in verdicts)
        return Resolution("reask", blocked, without_tools=is_finish)
    texts = dict.fromkeys(verdict.message or NOT_RUN for verdict in verdicts)
    return Resolution("text", blocked, "\n\n".join(texts))


def canonical_arguments(text: str) -> str:
    """Return arguments without the spaces that clients add or remove when they parse and write them again."""
    try:
        return orjson.dumps(orjson.loads(text)).decode()
    except (ValueError, TypeError):
        return text


def whole_number(value: Any) -> int:
    """Return a count in a usage document, 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def dicts(value: Any) -> list[dict[str, object]]:
    """Return the objects in a list; empty for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def object_field(data: dict[str, object], name: str) -> dict[str, object]:
    """Return an object in an object, empty if there is none; an answer with anything else there is unreadable.

    Raises
    ------
    TypeError
        It is not an object.
    """
    value = data.get(name) or {}
    if not isinstance(value, dict):
        raise TypeError(f"`{name}` is not an object")
    return value


def text_field(data: Any, name: str) -> str:
    """Return a text in an object, empty for anything else."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, str) else ""


def with_note(content: Any, note: str) -> Any:
    """Return the content of a result with a note before it: text stays text, and a list of parts gets one more."""
    if isinstance(content, list):
        kind = next((text_field(part, "type") for part in dicts(content)), "text")
        return [{"type": "input_text" if kind.startswith("input_") else "text", "text": note}, *content]
    return f"{note}\n\n{content}" if isinstance(content, str) else note
