"""Coding agents and the bodies of their hooks, read into events of the API.

The agents use different names for the same things, and rename them between versions. A field is therefore looked up
under every name that an agent has used, and an unknown hook event is not an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from detection.engine.wire_shapes import Shape, action_of
from detection.integrations.session_names import bounded, session_name
from detection.strict_json import compact

_MAX_DEPTH: Final = 80
MAX_ARGUMENT_CHARACTERS: Final = 16_384
"""Longer texts in arguments, such as a file to write, are cut."""
HOOK_WAIT_SECONDS: Final = 45
"""How long a hook waits for an operator; the hosts wait for at least 60 seconds."""
_CURL: Final = 'curl -sf -K "$HOME/.loopguard/curl"'
_WAITING_LINE: Final = (
    'sh -c \'a=$({curl} -m 3 --data-binary @- "{address}?wait={wait}") || exit 0;'
    ' case $a in {{\\"wait_url\\":*) a=${{a#*:\\"}}; {curl} -m {limit} "${{a%%\\"*}}"'
    ' || {{ echo "An operator has been asked." >&2; exit 2; }};; *) printf %s "$a";; esac\''
)
HookMoment = Literal["before_tool", "after_tool", "prompt", "answer", "compaction", "end", "other"]


@dataclass(frozen=True, slots=True)
class Host:
    """A coding agent that calls hooks.

    Attributes
    ----------
    name
        Name in paths, and of the agent if the hook names none.
    title
        Name for people.
    shape
        The form of its responses.
    settings_file
        Where its user's hooks are set; empty for one that has plugins instead.
    hooks
        The hook events that LoopGuard uses, by the host's names.
    """

    name: str
    title: str
    shape: Shape
    settings_file: str = ""
    hooks: tuple[str, ...] = ()


HOSTS: Final[Mapping[str, Host]] = {
    host.name: host
    for host in (
        Host(
            "claude-code",
            "Claude Code",
            "claude_code",
            "~/.claude/settings.json",
            (
                "PreToolUse",
                "PostToolUse",
                "PostToolUseFailure",
                "UserPromptSubmit",
                "Stop",
                "PreCompact",
                "SubagentStop",
                "SessionEnd",
            ),
        ),
        Host(
            "codex",
            "Codex CLI",
            "codex",
            "~/.codex/hooks.json",
            ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop"),
        ),
        Host(
            "gemini-cli",
            "Gemini CLI",
            "gemini_cli",
            "~/.gemini/settings.json",
            ("BeforeTool", "AfterTool", "BeforeAgent", "AfterAgent", "PreCompress", "SessionEnd"),
        ),
        Host(
            "copilot",
            "Copilot CLI",
            "copilot",
            "~/.copilot/hooks/loopguard.json",
            ("PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit"),
        ),
        Host("opencode", "OpenCode", "opencode"),
    )
}


def can_end_run(integration: str) -> bool:
    """Return whether a stop ends the run of a session with this integration; else its calls are blocked one by one."""
    host = HOSTS.get(integration.removeprefix("hooks/")) if integration.startswith("hooks/") else None
    return host is None or action_of(host.shape, "stop") == "end"


def hook_line(host: Host, url: str, *, waits: bool = True) -> str:
    """Return the shell command of a hook: it succeeds without output if LoopGuard is unreachable, slow or rejects it.

    Parameters
    ----------
    waits
        Wait for an operator where a call is on hold, and deny the call if that fails; only for agents that cannot ask
        their own user. The line then is one argument of `sh`, because some agents use the shell of their user.
    """
    address = f"{url}/api/v1/hooks/{host.name}"
    if not waits or action_of(host.shape, "hold") != "wait" or not host.hooks:
        return f"{_CURL} -m 3 --data-binary @- {address} || true"
    return _WAITING_LINE.format(
        curl=_CURL, address=address, wait=HOOK_WAIT_SECONDS, limit=HOOK_WAIT_SECONDS + 3
    )


def hook_settings(host: Host, url: str) -> dict[str, Any]:
    """Return the required content of a host's settings file."""
    before = host.hooks[:1]
    lines = {name: hook_line(host, url, waits=name in before) for name in host.hooks}
    if host.name == "copilot":
        return {
            "version": 1,
            "hooks": {name: [{"type": "command", "bash": line}] for name, line in lines.items()},
        }
    return {
        "hooks": {
            name: [{"matcher": "*", "hooks": [{"type": "command", "command": line}]}]
            for name, line in lines.items()
        }
    }


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One hook of a coding agent.

    Attributes
    ----------
    name
        The agent's name of the event, such as ``PreToolUse``.
    moment
        Its meaning here; for ``other``, nothing is recorded.
    session, parent_session
        See `session_names`.
    events
        Events in the form of the API, without their session.
    """

    name: str
    moment: HookMoment
    session: str
    parent_session: str = ""
    agent: str = ""
    model: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)


_MOMENTS: Final[Mapping[str, HookMoment]] = {
    "pretooluse": "before_tool",
    "beforetool": "before_tool",
    "toolexecutebefore": "before_tool",
    "posttooluse": "after_tool",
    "posttoolusefailure": "after_tool",
    "aftertool": "after_tool",
    "toolexecuteafter": "after_tool",
    "userpromptsubmit": "prompt",
    "userpromptsubmitted": "prompt",
    "beforeagent": "prompt",
    "chatmessage": "prompt",
    "stop": "answer",
    "afteragent": "answer",
    "precompact": "compaction",
    "precompress": "compaction",
    "sessioncompacted": "compaction",
    "subagentstop": "end",
    "sessionend": "end",
    "sessiondeleted": "end",
}
_SHELL_NUMBER: Final = re.compile(r"<shellId: \d+ (?=completed)")
"""Copilot CLI numbers the shells below their output, so that no two results would be equal."""
_PEOPLE: Final = frozenset(("", "user", "sdk", "prompt"))
"""Sources of prompts that a person has written; others are wake-ups by the agent's own schedule."""


class HookError(ValueError):
    """The body is not a hook's."""


def read_hook(host: Host, body: Any, name: str = "") -> HookEvent:
    """Read the body of a hook.

    Parameters
    ----------
    host
        The coding agent.
    body
        The parsed JSON document.
    name
        The moment, for agents whose bodies do not name it.

    Raises
    ------
    HookError
        If the body is not an object, or names no event.
    """
    if not isinstance(body, dict):
        raise HookError("The body of a hook must be an object.")
    name = _text(body, "hook_event_name", "hookEventName", "event") or name
    if not name:
        raise HookError("`hook_event_name` is required.")
    moment = _MOMENTS.get(name.replace("_", "").replace(".", "").lower(), "other")
    conversation = _text(body, "session_id", "sessionId", "sessionID")
    place = _text(body, "transcript_path", "cwd", "workingDirectory")
    sub_agent = _text(body, "agent_id", "agentId")
    main = session_name(conversation, program=host.name, place=place)
    session, parent = main, bounded(_text(body, "parent_session"))
    if sub_agent and sub_agent != conversation:
        session, parent = session_name(main, sub_agent), main
    if moment == "prompt" and (sub_agent or _text(body, "source") not in _PEOPLE):
        moment = "other"
    if moment == "answer" and _answer(body) is None:
        moment = "other"  # of a version that does not tell what the agent has said
    if moment == "end" and name.lower().startswith("subagent") and session == main:
        moment = "other"  # of a sub-agent that the host does not name
    return HookEvent(
        name=name,
        moment=moment,
        session=session,
        parent_session=parent,
        agent=bounded(_text(body, "agent_type", "agentType") or host.name, 128),
        model=bounded(_text(body, "model"), 200),
        events=_events(moment, name, body),
    )


def _events(moment: HookMoment, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    if moment == "prompt":
        return [_prompt(body)]
    if moment == "answer":
        return [{"type": "message", "role": "assistant", "content": _answer(body)}]
    if moment == "compaction":
        return [{"type": "compaction"}]
    if moment == "end":
        return [{"type": "end", "outcome": "completed"}]
    if moment not in ("before_tool", "after_tool"):
        return []
    call: dict[str, Any] = {
        "type": "call" if moment == "before_tool" else "result",
        "tool": bounded(_text(body, "tool_name", "toolName", "tool"), 128),
        "arguments": _arguments(_first(body, "tool_input", "toolArgs", "args")),
    }
    if moment == "before_tool" and (cwd := _text(body, "cwd", "workingDirectory")):
        call["cwd"] = bounded(cwd, 1024)
    call_id = _text(body, "tool_use_id", "toolUseId", "toolCallId", "callID")
    if call_id:
        call["call_id"] = bounded(call_id)
    if moment == "after_tool":
        answer = _first(body, "tool_response", "tool_result", "toolResult", "output", "error")
        content, call["is_error"] = _result(answer)
        call["content"] = _SHELL_NUMBER.sub("<", content) if content else content
        if "failure" in name.lower():
            call["is_error"] = True
    return [call]


def _answer(body: dict[str, Any]) -> str | None:
    """Return the text that a turn ends with, which may be empty; None if the hook does not tell it."""
    text = _first(body, "last_assistant_message", "prompt_response")
    return text if isinstance(text, str) else None


def _prompt(body: dict[str, Any]) -> dict[str, Any]:
    """Return the prompt of a hook. A host that repeats it gives the same id again; it then counts once."""
    prompt, prompt_id = body.get("prompt"), _text(body, "prompt_id", "promptId")
    content = prompt if isinstance(prompt, str) else _text_of_parts(prompt) or None
    said: dict[str, Any] = {"type": "message", "content": content}
    if prompt_id:
        place = compact([_text(body, "session_id", "sessionId", "sessionID"), prompt_id])
        said["id"] = (
            f"prompt-{hashlib.blake2b(place.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
        )
    return said


def _arguments(value: Any) -> Any:
    """Return arguments as the API accepts them: an object, or the text that the model wrote."""
    value = without_ends(value)
    return value if value is None or isinstance(value, (dict, str)) else {"value": value}


def without_ends(value: Any, depth: int = 0) -> Any:
    """Return arguments in which a text of a file's size is its beginning and a digest of the whole.

    What is nested deeper than `_MAX_DEPTH` is returned as it is: an event rejects it.
    """
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, str) and len(value) > MAX_ARGUMENT_CHARACTERS:
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{value[:MAX_ARGUMENT_CHARACTERS]}… {len(value)} characters, digest {digest}"
    if isinstance(value, dict):
        return {key: without_ends(one, depth + 1) for key, one in value.items()}
    return [without_ends(one, depth + 1) for one in value] if isinstance(value, list) else value


def _result(answer: Any) -> tuple[str | None, bool | None]:
    """Return the text of a tool's result, and whether the agent calls it an error.

    Shells answer with `stdout` and `stderr`, MCP tools with a list of parts; only the text counts there, so that the
    same answer is the same text in every agent. Anything else is kept as JSON.
    """
    if answer is None or isinstance(answer, str):
        return answer, None
    if not isinstance(answer, dict):
        return _text_of_parts(answer) or compact(answer), None
    is_error = _is_error(answer)
    for key in ("llmContent", "textResultForLlm", "text_result_for_llm", "content", "output"):
        value = answer.get(key)
        if isinstance(value, str) and value:
            return value, is_error
        if isinstance(value, list) and (text := _text_of_parts(value)):
            return text, is_error
    if "stdout" in answer or "stderr" in answer:
        parts = [
            part for part in (answer.get("stdout"), answer.get("stderr")) if isinstance(part, str) and part
        ]
        return "\n".join(parts), is_error
    return compact(answer), is_error


def _is_error(answer: dict[str, Any]) -> bool | None:
    for key in ("is_error", "isError"):
        if isinstance(answer.get(key), bool):
            return bool(answer[key])
    kind = answer.get("resultType", answer.get("result_type"))
    if isinstance(kind, str):
        return kind != "success"
    return True if answer.get("error") else None


def _text_of_parts(value: Any) -> str:
    """Return the text of parts such as ``{"type": "text", "text": …}``; empty unless every part is text."""
    if not isinstance(value, list) or not value:
        return ""
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if len(known) == len(texts) else ""


def _first(body: dict[str, Any], *names: str) -> Any:
    return next((body[name] for name in names if body.get(name) is not None), None)


def _text(body: dict[str, Any], *names: str) -> str:
    return next((body[name] for name in names if isinstance(body.get(name), str) and body[name]), "")
