"""Reads single spans of agents, in the four dialects that instrumentations use, into what happened.

Not read: prompts of the system, definitions of tools, and reasoning. Of the history that every span of a model repeats,
`conversations` takes what is new, where no other span tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from detection.integrations.otlp import attributes as names
from detection.integrations.otlp.decoding import Span
from detection.integrations.otlp.messages import input_messages, output_messages, parsed
from detection.strict_json import compact

HANDOFF: Final = "handoff"
"""The tool of a hand-off from one agent to another, where its span names none."""
_MODEL_OPERATIONS: Final = ("chat", "text_completion", "generate_content")
_AGENT_OPERATIONS: Final = ("invoke_agent", "invoke_workflow")
_ASKS: Final = (".doGenerate", ".doStream")
"""What the AI SDK calls its requests to a model; the spans around them say the same of several."""
_UNKNOWN_MODELS: Final = ("", "unknown")
_CLAUDE_CODE: Final = "claude_code."
"""Its spans have no arguments. Its log records have them, and say the same."""
_DEFAULT_AGENT: Final = "OpenAI Agent"
"""What opentelemetry-instrumentation-openai-agents-v2 calls the agent of every span that is not the agent's own."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A completed tool call with its result.

    Attributes
    ----------
    arguments
        An object, or text; None if nothing was recorded of the call, neither arguments nor a result.
    content
        The result or the message of the error; None if it was not recorded.
    """

    tool: str
    call_id: str
    arguments: dict[str, object] | str | None
    content: Any
    is_error: bool
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """A response of a model.

    Attributes
    ----------
    prompt
        What the user wrote, if the request ended with that.
    answer
        The text of the response; None if it called tools, or was not recorded.
    """

    model: str
    backend: str
    usage: Mapping[str, float]
    prompt: str
    answer: str | None


@dataclass(frozen=True, slots=True)
class AgentRun:
    """A run of an agent, or of the workflow around its agents."""

    name: str
    is_error: bool


Fact = ToolRun | ModelResponse | AgentRun


def read_span(span: Span) -> Fact | None:
    """Return what a span records about an agent; None for other spans."""
    found = span.attributes
    if span.name.startswith(_CLAUDE_CODE):
        return None
    operation = found.get("gen_ai.operation.name")
    kind = str(found.get("openinference.span.kind") or found.get("traceloop.span.kind") or "").lower()
    if operation == "agent_handoff":
        return _handoff(span)
    own = str(found.get("ai.operationId") or "")
    if operation in _MODEL_OPERATIONS or kind == "llm" or _is_older_model_call(found) or own.endswith(_ASKS):
        return _model_response(found)
    names_tool = operation is None and ("gen_ai.tool.name" in found or own == "ai.toolCall")
    if operation == "execute_tool" or kind == "tool" or names_tool:
        # The server's side of an MCP call; the agent's side is another span.
        return None if span.is_of_server else _tool_call(span)
    if operation in _AGENT_OPERATIONS or kind in ("agent", "workflow"):
        return AgentRun(agent_name(found), span.is_error)
    if kind == "chain" and not span.parent_id:
        return AgentRun("", span.is_error)
    return None


def agent_name(found: names.Attributes) -> str:
    """Return the agent that a span names."""
    name = names.text(found, names.AGENT)
    return "" if name == _DEFAULT_AGENT else name


def session_of(span: Span) -> str:
    """Return the conversation that a span names; empty without one."""
    return names.text(span.attributes, names.SESSION)


def _is_older_model_call(found: names.Attributes) -> bool:
    return "gen_ai.operation.name" not in found and found.get("llm.request.type") in ("chat", "completion")


def _handoff(span: Span) -> ToolRun:
    found = span.attributes
    agents = {name: found.get(f"gen_ai.handoff.{name}") for name in ("from_agent", "to_agent")}
    return ToolRun(HANDOFF, "", agents, span.error_text() if span.is_error else None, span.is_error)


def _tool_call(span: Span) -> ToolRun:
    found = span.attributes
    given, result = names.first(found, names.ARGUMENTS), names.first(found, names.RESULT)
    arguments, call_id = _arguments(given)
    content, answered_id, has_failed = _result(result)
    is_error = span.is_error or has_failed or "error.type" in found
    if content is None and is_error:
        content = span.error_text() or names.text(found, ("error.type",)) or None
    if arguments is None and (result is not None or is_error):
        arguments = {}  # contents are recorded, and there were no arguments
    tool = names.text(found, names.TOOL) or span.name.removeprefix("execute_tool ")
    known_id = names.text(found, names.CALL_ID) or call_id or answered_id
    return ToolRun(tool, known_id, arguments, content, is_error, names.text(found, names.CWD))


def _arguments(given: Any) -> tuple[dict[str, object] | str | None, str]:
    """Return the arguments of a call and its id, if they contain it.

    LangChain's callbacks wrap arguments together with the step of the graph, which differs in every call.
    """
    value = parsed(given)
    if not isinstance(value, dict):
        return (value if value is None or isinstance(value, str) else compact(value)), ""
    if "input_str" in value or ("inputs" in value and ("metadata" in value or "tags" in value)):
        more = value.get("kwargs")
        call_id = more.get("tool_call_id") if isinstance(more, dict) else None
        inner = parsed(value.get("inputs") or value.get("input_str"))
        arguments = inner if isinstance(inner, (dict, str)) else compact(inner)
        return arguments, call_id if isinstance(call_id, str) else ""
    # The text as the model wrote it, where it is one: the parser of events checks it.
    return (given if isinstance(given, str) else value), ""


def _result(result: Any) -> tuple[Any, str, bool]:
    """Return the content of a result, the id of its call, and whether it says that the tool failed."""
    value = parsed(result)
    for _ in range(4):
        if not isinstance(value, dict):
            break
        if "content" in value and "tool_call_id" in value:
            call_id = value["tool_call_id"]
            is_text = isinstance(call_id, str)
            return value["content"], call_id if is_text else "", value.get("status") == "error"
        # A message of LangChain, wrapped by its callbacks and by its own serialisation.
        inner = next(
            (value[key] for key in ("output", "data", "kwargs") if isinstance(value.get(key), dict)), None
        )
        value = parsed(inner)
    return result, "", False


def _model_response(found: names.Attributes) -> ModelResponse:
    tokens = {
        "input_tokens": names.INPUT_TOKENS,
        "output_tokens": names.OUTPUT_TOKENS,
        "cached_tokens": names.CACHED_TOKENS,
        "cache_write_tokens": names.CACHE_WRITE_TOKENS,
    }
    usage: dict[str, float] = {name: int(names.number(found, keys)) for name, keys in tokens.items()}
    if not any(usage.values()):
        usage = {}
    cost = names.number(found, names.COST)
    if cost:
        usage["cost_usd"] = float(cost)
    models = [names.text(found, (name,)) for name in names.MODEL]
    model = next((one for one in models if one not in _UNKNOWN_MODELS), "")
    prompt, answer = names.last_prompt(input_messages(found)), names.answer(found, output_messages(found))
    return ModelResponse(model, names.text(found, names.BACKEND), usage, prompt, answer)
