"""Coding agents and the bodies of their hooks, read into events of the API.

The agents use different names for the same things, and rename them between versions. A field is therefore looked up
under every name that an agent has used, and an unknown hook event is not an error. The names are in the tables of the
hosts, `detection/engine/tables/hosts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from detection.engine import tables
from detection.engine.wire_shapes import Shape, action_of
from detection.integrations.events import ReportedEvent
from detection.integrations.session_names import bounded, session_name
from detection.strict_json import compact

_MAX_DEPTH: Final = 80
MAX_ARGUMENT_CHARACTERS: Final = 16_384
"""Longer texts in arguments, such as a file to write, are cut."""
HOOK_WAIT_SECONDS: Final = 45
"""How long a hook waits for an operator; the hosts wait for at least 60 seconds."""
_CURL: Final = 'curl -sf -K "$HOME/.loopguard/curl"'
_WAITING_LINE: Final = (
    'sh -c \'a=$({curl} -m 2 --data-binary @- "{address}?wait={wait}") || exit 0;'
    ' case $a in {{\\"wait_url\\":*) a=${{a#*:\\"}}; {curl} -m {limit} "${{a%%\\"*}}"'
    ' || {{ echo "An operator has been asked." >&2; exit 2; }};; *) printf %s "$a";; esac\''
)
_EXIT_LINE: Final = (
    "sh -c 'a=$({curl} -m 2 --data-binary @- {address}) || exit 0;"
    ' case $a in {{\\"deny\\":*) a=${{a#*:\\"}}; echo "${{a%\\"*}}" >&2; exit 2;; esac\''
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
    by_exit_code
        Whether it reads the exit code and stderr of a hook, and not its output.
    """

    name: str
    title: str
    shape: Shape
    settings_file: str = ""
    by_exit_code: bool = False

    @property
    def hooks(self) -> tuple[str, ...]:
        """The hook events that LoopGuard uses, by the host's names; none for one that has plugins instead."""
        return self._events(*get_args(HookMoment))

    @property
    def before(self) -> tuple[str, ...]:
        """Those of them that may block a call."""
        return self._events("before_tool")

    def _events(self, *moments: str) -> tuple[str, ...]:
        rows = tables.table(f"hosts/{self.shape}") if self.settings_file else []
        return tuple(event for row in rows if row.get("moment") in moments for event in row.get("events", ()))


HOSTS: Final[Mapping[str, Host]] = {
    host.name: host
    for host in (
        Host("claude-code", "Claude Code", "claude_code", "~/.claude/settings.json"),
        Host("qwen-code", "Qwen Code", "qwen_code", "~/.qwen/settings.json"),
        Host("droid", "Factory Droid", "claude_code", "~/.factory/settings.json"),
        Host("cursor", "Cursor", "cursor", "~/.cursor/hooks.json"),
        Host("goose", "Goose", "goose", "~/.agents/plugins/loopguard/hooks/hooks.json"),
        Host("openhands", "OpenHands", "openhands", "~/.openhands/hooks.json"),
        Host("windsurf", "Windsurf", "windsurf", "~/.codeium/windsurf/hooks.json", by_exit_code=True),
        Host("kiro", "Kiro", "kiro", "~/.kiro/hooks/loopguard.json", by_exit_code=True),
        Host("codex", "Codex CLI", "codex", "~/.codex/hooks.json"),
        Host("gemini-cli", "Gemini CLI", "gemini_cli", "~/.gemini/settings.json"),
        Host("copilot", "Copilot CLI", "copilot", "~/.copilot/hooks/loopguard.json"),
        Host("opencode", "OpenCode", "opencode"),
        Host("kilo", "Kilo", "opencode"),  # takes the plugins of OpenCode
        Host("cline", "Cline", "opencode"),  # our plugins for both say what that of OpenCode says
        Host("pi", "pi", "opencode"),
        Host("openclaw", "OpenClaw", "openclaw"),
    )
}


PROXIES_OF_TOOLS: Final = frozenset(("mcp",))
"""Integrations that answer in place of tools; the agent behind them continues after a stop."""


def can_end_run(integration: str) -> bool:
    """Return whether a stop ends the run of a session with this integration; else its calls are blocked one by one."""
    if integration in PROXIES_OF_TOOLS:
        return False
    host = HOSTS.get(integration.removeprefix("hooks/")) if integration.startswith("hooks/") else None
    return host is None or action_of(host.shape, "stop") == "end"


def hook_line(host: Host, url: str, *, waits: bool = True) -> str:
    """Return the shell command of a hook: it succeeds without output if LoopGuard is unreachable, slow or rejects it.

    Parameters
    ----------
    waits
        Wait for an operator where a call is on hold, and deny the call if that fails; only for agents that cannot ask
        their own user, and read the output. The line then is one argument of `sh`, because some agents use the shell of
        their user.
    """
    address = f"{url}/api/v1/hooks/{host.name}"
    if host.by_exit_code:
        return _EXIT_LINE.format(curl=_CURL, address=address)
    if not waits or action_of(host.shape, "hold") != "wait" or not host.hooks:
        return f"{_CURL} -m 2 --data-binary @- {address} || true"
    return _WAITING_LINE.format(
        curl=_CURL, address=address, wait=HOOK_WAIT_SECONDS, limit=HOOK_WAIT_SECONDS + 3
    )


def hook_settings(host: Host, url: str) -> dict[str, Any]:
    """Return the required content of a host's settings file."""
    lines = {name: hook_line(host, url, waits=name in host.before) for name in host.hooks}
    if host.name == "copilot":
        return {
            "version": 1,
            "hooks": {name: [{"type": "command", "bash": line}] for name, line in lines.items()},
        }
    if host.name == "kiro":
        listed = [
            {"name": f"loopguard-{name}", "trigger": name, "action": {"type": "command", "command": line}}
            for name, line in lines.items()
        ]
        return {"version": "v1", "hooks": listed}
    if host.name == "windsurf":
        return {"hooks": {name: [{"command": line}] for name, line in lines.items()}}
    if host.name == "cursor":
        return {"version": 1, "hooks": {name: [{"command": line}] for name, line in lines.items()}}
    # A pattern of Goose is a regular expression; without one, a hook is for all tools.
    all_tools = {} if host.name == "goose" else {"matcher": "*"}
    return {
        "hooks": {
            name: [{**all_tools, "hooks": [{"type": "command", "command": line}]}]
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
    events: list[ReportedEvent] = field(default_factory=list)


_ROWS: Final = [row for name in tables.hosts() for row in tables.table(name)]


def _form(event: str) -> str:
    """Return the name of an event as names are compared."""
    return event.replace("_", "").replace(".", "").lower()


def _names() -> Mapping[str, tuple[str, ...]]:
    """Return the names of each field of a body."""
    found: dict[str, dict[str, None]] = {}
    for row in _ROWS:
        if "says" in row:
            found.setdefault(row["says"], {}).update(dict.fromkeys(row["names"]))
    return {field: tuple(names) for field, names in found.items()}


_MOMENTS: Final[Mapping[str, HookMoment]] = {
    _form(event): row["moment"]
    for row in _ROWS
    if "moment" in row
    for event in (*row.get("events", ()), *row.get("formerly", ()))
}
_TOOLS: Final[Mapping[str, str]] = {
    _form(event): row["tool"] for row in _ROWS if "tool" in row for event in row["events"]
}
"""The tools of events that are of one kind of tool."""
_WITHIN: Final = tuple(row["within"] for row in _ROWS if "within" in row)
_NAMES: Final = _names()
_FAILED: Final = tuple(word for row in _ROWS if "failed" in row for word in row["failed"])
_ERRORS: Final = [row for row in _ROWS if "error" in row]
_CONTENTS: Final = sorted(
    (row for row in _ROWS if "content" in row), key=lambda row: row.get("joined", False)
)
_REMOVED: Final = tuple(tables.compiled(row["removes"]) for row in _ROWS if "removes" in row)
_PEOPLE: Final = frozenset(source for row in _ROWS if "people" in row for source in row["people"])
"""Sources of prompts that a person has written."""


_UNNAMED: Final = (
    ("toolResult", "postToolUse"),
    ("toolName", "preToolUse"),
    ("prompt", "userPromptSubmitted"),
    ("reason", "sessionEnd"),
)


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
    for name_of_object in _WITHIN:
        if isinstance(inner := body.get(name_of_object), dict):
            body = {**inner, **body}
    name = _text(body, "event") or name or _unnamed(body)
    if not name:
        raise HookError("`hook_event_name` is required.")
    moment = _MOMENTS.get(_form(name), "other")
    conversation = _text(body, "session")
    place = _text(body, "place")
    sub_agent = _text(body, "sub_agent")
    main = session_name(conversation, program=host.name, place=place)
    session, parent = main, bounded(_text(body, "parent"))
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
        agent=bounded(_text(body, "agent") or host.name, 128),
        model=bounded(_text(body, "model"), 200),
        events=_events(moment, name, body),
    )


def _unnamed(body: Mapping[str, object]) -> str:
    """Return the event of a body in Copilot's camel case, which names none: what it is about tells."""
    if not {"sessionId", "timestamp"} <= body.keys():
        return ""
    return next((event for field, event in _UNNAMED if field in body), "other")


def _events(moment: HookMoment, name: str, body: dict[str, Any]) -> list[ReportedEvent]:
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
    call: ReportedEvent = {
        "type": "call" if moment == "before_tool" else "result",
        "tool": bounded(_text(body, "tool") or _TOOLS.get(_form(name), ""), 128),
        "arguments": _arguments(_first(body, "arguments")),
    }
    if moment == "before_tool" and (cwd := _text(body, "directory")):
        call["cwd"] = bounded(cwd, 1024)
    call_id = _text(body, "call_id")
    if call_id:
        call["call_id"] = bounded(call_id)
    if moment == "after_tool":
        answer = _first(body, "result")
        content, call["is_error"] = _result(answer)
        for pattern in _REMOVED if content else ():
            content = pattern.sub("", content or "")
        call["content"] = content
        if any(word in name.lower() for word in _FAILED):
            call["is_error"] = True
    return [call]


def _answer(body: dict[str, Any]) -> str | None:
    """Return the text that a turn ends with, which may be empty; None if the hook does not tell it."""
    text = _first(body, "answer")
    return text if isinstance(text, str) else None


def _prompt(body: dict[str, Any]) -> ReportedEvent:
    """Return the prompt of a hook. A host that repeats it gives the same id again; it then counts once."""
    prompt, prompt_id = _first(body, "prompt"), _text(body, "prompt_id")
    content = prompt if isinstance(prompt, str) else _text_of_parts(prompt) or None
    said: ReportedEvent = {"type": "message", "content": content}
    if prompt_id:
        place = compact([_text(body, "session"), prompt_id])
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
    for row in _CONTENTS:
        if "beside" in row and answer.keys() != {*row["content"], row["beside"]}:
            continue
        if row.get("joined") and any(name in answer for name in row["content"]):
            parts = [answer.get(name) for name in row["content"]]
            return "\n".join(part for part in parts if isinstance(part, str) and part), is_error
        for name in row["content"]:
            value = answer.get(name)
            text = value if isinstance(value, str) else _text_of_parts(value)
            if text:
                return text, is_error
    return compact(answer), is_error


def _is_error(answer: dict[str, Any]) -> bool | None:
    """Return what an answer says of itself: by a Boolean, by a word, or by naming an error; None if nothing."""
    for row in _ERRORS:
        if not {"alone", "success"} & row.keys() and isinstance(answer.get(row["error"]), bool):
            return bool(answer[row["error"]])
    for row in _ERRORS:
        value = answer.get(row["error"])
        if "success" in row and isinstance(value, (bool, str)):
            return value not in row["success"]
    return True if any(answer.get(row["error"]) for row in _ERRORS if row.get("alone")) else None


def _text_of_parts(value: Any) -> str:
    """Return the text of parts such as ``{"type": "text", "text": …}``; empty unless every part is text."""
    if not isinstance(value, list) or not value:
        return ""
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if len(known) == len(texts) else ""


def _first(body: dict[str, Any], field: str) -> Any:
    return next((body[name] for name in _NAMES[field] if body.get(name) is not None), None)


def _text(body: dict[str, Any], field: str) -> str:
    return next((body[name] for name in _NAMES[field] if isinstance(body.get(name), str) and body[name]), "")
