"""Message templates per rung, and the wire shapes that messages are sent in.

A message names the tool, the count, the window and what to do next. It never quotes arguments, which would feed the loop.
The services store the templates of a project.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any, Literal

from detection.engine.calls import Decision, Finding
from detection.engine.detectors import detector_for
from detection.engine.policy import Policy

Shape = Literal["text", "openai", "anthropic", "mcp", "claude_code"]

MAX_TOOL_CHARACTERS = 128
"""Length of a tool name in a message."""
SHAPES: tuple[Shape, ...] = ("text", "openai", "anthropic", "mcp", "claude_code")


def shape_named(name: str) -> Shape | None:
    """Return the wire shape with this name, or None."""
    return next((shape for shape in SHAPES if shape == name), None)


TEMPLATES: Mapping[str, str] = {
    "warn": "[WARNING: $what. You may be in a loop. $advice]",
    "chance": (
        "The call was not run. $sentence. Reflect: why did the earlier calls not help? Change the inputs, use a "
        "different tool, or answer with what you know. The same call again will end the session."
    ),
    "block": "The call was not run. $sentence. $advice",
    "ask": "The call is on hold. $sentence. An operator decides whether it may run.",
    "judge": "The call is on hold. $sentence. A justification has been requested.",
    "stop": (
        "Tool call loop detected: $what. Session stopped to prevent unintended looping. Adjust the inputs or the "
        "strategy, or break the request into smaller steps."
    ),
}
"""Default message templates by rung; see `message` for the placeholders."""


def message(
    rung: str | None,
    finding: Finding,
    policy: Policy,
    templates: Mapping[str, str] | None = None,
    *,
    after_guidance: bool = False,
) -> str:
    """Return the message of a rung.

    Parameters
    ----------
    rung : str or None
        `observe` and None have no message.
    finding : Finding
        The finding; its `detail["tool"]` names the tool.
    policy : Policy
        For the time to live.
    templates : mapping, optional
        Templates by rung instead of the defaults. Placeholders: `$what` (the finding in words), `$sentence` (the same with a
        capital letter), `$advice`, `$tool`, `$count`, `$limit`, `$window`, `$kind` and `$seconds`.
    after_guidance : bool
        Whether the agent got a chance to change its approach before.

    Returns
    -------
    str
        Plain text.
    """
    template = (templates or {}).get(rung or "") or TEMPLATES.get(rung or "")
    if template is None:
        return ""
    what = describe(finding) + (", again after guidance to try another way" if after_guidance else "")
    return Template(template).safe_substitute(
        what=what,
        sentence=what[:1].upper() + what[1:],
        advice=detector_for(finding.kind).advice,
        tool=_shown(str(finding.detail.get("tool", ""))),
        count=finding.count,
        limit=finding.limit,
        kind=finding.kind,
        seconds=finding.window_seconds or policy.values["ttl_seconds"],
        window=_window(finding),
    )


def _shown(tool: str) -> str:
    return "".join(char for char in tool if char.isprintable())[:MAX_TOOL_CHARACTERS]


def _window(finding: Finding) -> str:
    if finding.window_seconds:
        return f"{finding.window_seconds:g} seconds"
    return f"{finding.window_calls} calls" if finding.window_calls else "this session"


def describe(finding: Finding) -> str:
    """Return the finding in words, without arguments."""
    return detector_for(finding.kind).describe(finding)


def render(
    shape: Shape, decision: Decision, text: str, call_id: str = "", model: str = ""
) -> dict[str, Any] | str:
    """Return a message in the wire shape of a client.

    Parameters
    ----------
    shape : {"text", "openai", "anthropic", "mcp", "claude_code"}
        The protocol of the client.
    decision : str
        The verdict. In the OpenAI shape, `stop` becomes a whole chat completion with `finish_reason: "error"`.
    text : str
        The message.
    call_id, model : str
        Id of the call and name of the model, for shapes that contain them.

    Raises
    ------
    ValueError
        For an unknown shape.
    """
    if shape == "text":
        return text
    is_blocked = decision in ("block", "hold", "stop")
    if shape == "openai":
        if decision == "stop":
            return {
                "id": f"chatcmpl-loopguard-{call_id}" if call_id else "chatcmpl-loopguard",
                "object": "chat.completion",
                "model": model,
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "error"}
                ],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    if shape == "anthropic":
        return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_blocked}
    if shape == "mcp":
        return {"content": [{"type": "text", "text": text}], "isError": is_blocked}
    if shape == "claude_code":
        if decision == "stop":
            return {"continue": False, "stopReason": text}
        output: dict[str, Any] = {"hookEventName": "PreToolUse"}
        if is_blocked:
            output |= {"permissionDecision": "deny", "permissionDecisionReason": text}
        elif text:
            output["additionalContext"] = text
        return {"hookSpecificOutput": output}
    raise ValueError(f"unknown shape {shape!r}; one of {', '.join(SHAPES)}")
