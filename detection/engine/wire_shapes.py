"""The formats in which integrations receive a verdict: the actions each supports, and the message in its format.

The formats of coding agents are those of their hooks: `before` a tool runs, or `after` it with its result. Each of them
rejects or ignores what it does not know, and then runs the call, so a form has no keys but those documented here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from detection.engine.calls import DECISIONS, Decision

Shape = Literal[
    "text",
    "openai",
    "anthropic",
    "gemini",
    "mcp",
    "claude_code",
    "codex",
    "gemini_cli",
    "copilot",
    "opencode",
    "qwen_code",
    "cursor",
    "goose",
    "openhands",
    "windsurf",
    "kiro",
    "openclaw",
]
SHAPES: Final[tuple[Shape, ...]] = (
    "text", "openai", "anthropic", "gemini", "mcp", "claude_code", "codex", "gemini_cli", "copilot", "opencode",
    "qwen_code", "cursor", "goose", "openhands", "windsurf", "kiro", "openclaw",
)  # fmt: skip
Moment = Literal["before", "after"]
Action = Literal["run", "run_with_message", "replace", "ask", "wait", "end"]

_CLIENT: Final[tuple[Action, ...]] = ("run", "run_with_message", "replace", "wait", "end")
ACTIONS: Final[Mapping[Shape, tuple[Action, ...]]] = {
    "text": _CLIENT,
    "openai": _CLIENT,
    "anthropic": _CLIENT,
    "gemini": _CLIENT,
    "mcp": ("run", "run_with_message", "replace", "wait", "replace"),
    "claude_code": ("run", "run_with_message", "replace", "ask", "end"),
    "codex": ("run", "run_with_message", "replace", "wait", "replace"),
    "gemini_cli": ("run", "run_with_message", "replace", "wait", "end"),
    "copilot": ("run", "run_with_message", "replace", "ask", "replace"),
    "opencode": _CLIENT,
    "qwen_code": ("run", "run_with_message", "replace", "ask", "replace"),
    "cursor": ("run", "run_with_message", "replace", "wait", "replace"),
    "goose": ("run", "run", "replace", "wait", "replace"),
    "openhands": ("run", "run", "replace", "wait", "replace"),
    "windsurf": ("run", "run", "replace", "wait", "replace"),
    "kiro": ("run", "run", "replace", "wait", "replace"),
    "openclaw": ("run", "run_with_message", "replace", "ask", "end"),
}
"""What an integration does with each decision, in the order of `DECISIONS`.

`run` the call; `run_with_message`: run it, and the model reads the message with its result; `replace`: do not run it,
the message is its result; `ask` the user of the coding agent; `wait` for the decision of an operator, then as decided;
`end` the run. MCP, Codex, Copilot CLI, Qwen Code, Cursor, Goose, OpenHands, Windsurf and Kiro cannot end a run from
outside: there every further call is replaced. The models of the last four of these read nothing of a hook whose call
runs.
"""

WARNED_WITH_RESULT: Final[frozenset[Shape]] = frozenset(("codex", "gemini_cli", "cursor"))
"""Coding agents whose model reads the message of a call that runs only with the result."""

NO_REASON: Final = "The call was not run."
"""Used instead of an empty message, which some coding agents treat as an error before they run the call."""


def shape_named(name: str) -> Shape | None:
    """Return the wire shape with this name, or None."""
    return next((shape for shape in SHAPES if shape == name), None)


def action_of(shape: Shape, decision: Decision) -> Action:
    """Return what an integration does with a decision; see `ACTIONS`."""
    return ACTIONS[shape][DECISIONS.index(decision)]


def answers_always(shape: Shape) -> bool:
    """Return whether a client of this shape expects an answer even when there is no message: coding agents do."""
    return shape in _HOOKS


def render(
    shape: Shape,
    decision: Decision,
    text: str,
    call_id: str = "",
    model: str = "",
    tool: str = "",
    *,
    moment: Moment = "before",
    is_answer: bool = False,
    notice: str = "",
) -> dict[str, object] | str:
    """Return a message in the wire shape of a client.

    Parameters
    ----------
    shape : str
        The protocol of the client, one of `SHAPES`.
    decision : str
        The verdict. In the OpenAI shape, `stop` becomes a whole chat completion with `finish_reason: "error"`, and in
        the Gemini shape a whole response with `finishReason: "OTHER"`.
    text : str
        The message.
    call_id, model, tool : str
        Id of the call, name of the model and of the tool, for shapes that contain them.
    moment : {"before", "after"}
        For coding agents: whether the verdict is on a call, or on its result.
    is_answer : bool
        Whether the message contains the known answer of the call; it is not an error then.
    notice : str
        For coding agents: what a person reads about the end of the run; the message if it is empty.

    Raises
    ------
    ValueError
        For an unknown shape.
    """
    if shape == "text":
        return text
    is_blocked = decision in ("block", "hold", "stop")
    if shape == "openai":
        return _openai(decision, text, call_id, model)
    is_error = is_blocked and not is_answer
    if shape == "anthropic":
        return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_error}
    if shape == "gemini":
        return _gemini(decision, text, call_id, model, tool, is_error=is_error)
    if shape == "mcp":
        return {"content": [{"type": "text", "text": text}], "isError": is_error}
    if shape not in _HOOKS:
        raise ValueError(f"unknown shape {shape!r}; one of {', '.join(SHAPES)}")
    before, after = _HOOKS[shape]
    if moment == "before":
        text = text or (NO_REASON if is_blocked else "")
        return before(action_of(shape, decision), text, notice or text)
    return after(action_of(shape, decision), text, notice or text)


def ended(shape: Shape, notice: str) -> dict[str, object]:
    """Return the answer to the hook at the end of a session whose run was ended, for hosts whose person reads it."""
    return {"systemMessage": _as_written(notice)} if shape == "claude_code" else {}


def _as_written(text: str) -> str:
    """Return a text as the hook may take it out of JSON: it is a script of the shell, and reads no escapes."""
    return " ".join(text.replace('"', "'").replace("\\", "/").split())


def _openai(decision: Decision, text: str, call_id: str, model: str) -> dict[str, object]:
    if decision != "stop":
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {
        "id": f"chatcmpl-loopguard-{call_id}" if call_id else "chatcmpl-loopguard",
        "object": "chat.completion",
        "model": model,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "error"}
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _gemini(
    decision: Decision, text: str, call_id: str, model: str, tool: str, *, is_error: bool
) -> dict[str, object]:
    if decision == "stop":
        content = {"role": "model", "parts": [{"text": text}]}
        response: dict[str, object] = {
            "candidates": [{"index": 0, "content": content, "finishReason": "OTHER"}],
            "modelVersion": model,
        }
        return response | ({"responseId": f"loopguard-{call_id}"} if call_id else {})
    answer = {"error" if is_error else "output": text}
    return {"functionResponse": {"id": call_id, "name": tool, "response": answer}}


def _claude_code_before(action: Action, text: str, notice: str) -> dict[str, object]:
    output: dict[str, object] = {"hookEventName": "PreToolUse"}
    if action in ("replace", "wait", "end"):
        output |= {"permissionDecision": "deny", "permissionDecisionReason": text}
    elif action == "ask":
        output |= {"permissionDecision": "ask", "permissionDecisionReason": text}
    elif text:
        output["additionalContext"] = text
    # `continue: false` alone would let this call run and end the run only after it.
    end = {"continue": False, "stopReason": notice} if action == "end" else {}
    return {"hookSpecificOutput": output} | end


def _claude_code_after(action: Action, text: str, notice: str) -> dict[str, object]:
    if action == "end":
        return {"continue": False, "stopReason": notice or NO_REASON}
    return _context("PostToolUse", text)


def _codex_before(action: Action, text: str, _: str) -> dict[str, object]:
    if action in ("run", "run_with_message"):
        # Any other key than those of a denial makes the hook fail. The message comes with the result.
        return {}
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": text,
        }
    }


def _codex_after(_: Action, text: str, __: str) -> dict[str, object]:
    return _context("PostToolUse", text)


def _gemini_cli_before(action: Action, text: str, notice: str) -> dict[str, object]:
    if action == "end":
        return {"decision": "deny", "reason": text, "continue": False, "stopReason": notice}
    return {} if action in ("run", "run_with_message") else {"decision": "deny", "reason": text}


def _gemini_cli_after(action: Action, text: str, notice: str) -> dict[str, object]:
    if action == "end":
        return {"continue": False, "stopReason": notice or NO_REASON}
    return _context("AfterTool", text)


def _copilot_before(action: Action, text: str, _: str) -> dict[str, object]:
    if action in ("run", "run_with_message"):
        return {"additionalContext": text} if text else {}
    decision = "ask" if action == "ask" else "deny"
    return {"permissionDecision": decision, "permissionDecisionReason": text}


def _copilot_after(_: Action, text: str, __: str) -> dict[str, object]:
    return {"additionalContext": text} if text else {}


def _opencode(action: Action, text: str, notice: str) -> dict[str, object]:
    """Return the form that LoopGuard's plugin reads.

    It throws the message if the call must not run. If the run has to stop, it aborts the session and shows the notice.
    """
    answer: dict[str, object] = {"run": action in ("run", "run_with_message"), "message": text}
    return {**answer, "stop": True, "notice": notice} if action == "end" else {**answer, "stop": False}


def _openclaw(action: Action, text: str, notice: str) -> dict[str, object]:
    """Return the form of OpenCode, with whether its own user is to be asked."""
    return {**_opencode(action, text, notice), "ask": action == "ask"}


def _cursor_before(action: Action, text: str, _: str) -> dict[str, object]:
    if action in ("run", "run_with_message"):
        return {}
    return {"permission": "deny", "user_message": text, "agent_message": text}


def _cursor_after(_: Action, text: str, __: str) -> dict[str, object]:
    return {"additional_context": text} if text else {}


def _goose_before(action: Action, text: str, _: str) -> dict[str, object]:
    return {"decision": "allow"} if action == "run" else {"decision": "block", "reason": text}


def _openhands_before(action: Action, text: str, _: str) -> dict[str, object]:
    return {} if action == "run" else {"decision": "deny", "reason": text}


def _exit_before(action: Action, text: str, _: str) -> dict[str, object]:
    """Return the form of hosts that read an exit code: the hook writes the text to stderr and ends with 2."""
    return {} if action == "run" else {"deny": _as_written(text)}


def _nothing(_: Action, __: str, ___: str) -> dict[str, object]:
    return {}


def _context(event: str, text: str) -> dict[str, object]:
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}} if text else {}


_Form = Callable[[Action, str, str], dict[str, object]]
_HOOKS: Final[Mapping[Shape, tuple[_Form, _Form]]] = {
    "claude_code": (_claude_code_before, _claude_code_after),
    "codex": (_codex_before, _codex_after),
    "gemini_cli": (_gemini_cli_before, _gemini_cli_after),
    "copilot": (_copilot_before, _copilot_after),
    "opencode": (_opencode, _opencode),
    "qwen_code": (_claude_code_before, _claude_code_after),
    "cursor": (_cursor_before, _cursor_after),
    "goose": (_goose_before, _nothing),
    "openhands": (_openhands_before, _nothing),
    "windsurf": (_exit_before, _nothing),
    "kiro": (_exit_before, _nothing),
    "openclaw": (_openclaw, _openclaw),
}
"""Per coding agent, the forms before and after a tool."""
