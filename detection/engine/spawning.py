"""Calls that start sub-agents, and what they tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from detection.engine.calls import Arguments
from detection.engine.dispatching import inner
from detection.engine.identity import structured
from detection.engine.tables import table
from detection.engine.tool_verbs import bare_name, words_of

_PROMPTS_OF: Final[dict[str, tuple[str, ...]]] = {
    tool: tuple(row["prompts"]) for row in table("spawns") for tool in row["tools"]
}
_NUMBER = re.compile(r"_?\d{1,3}$")
# Sub-agents that one call starts; more count as so many. A judgement for the time of a call.
_MAX_PROMPTS = 64


def starts_agents(tool: str) -> bool:
    """Return whether calls of a tool start sub-agents, by its name alone."""
    return bool(_prompt_names(tool))


def prompts_of(tool: str, arguments: Arguments) -> list[str]:
    """Return what a call tells each sub-agent that it starts; nothing for a call that starts none."""
    names, arguments = _prompt_names(tool), structured(arguments)
    if not names or not isinstance(arguments, dict):
        return []
    return [*_prompts(arguments, names)][:_MAX_PROMPTS]


def _prompt_names(tool: str) -> tuple[str, ...]:
    name = inner(tool)
    return _PROMPTS_OF.get(bare_name(name)) or _PROMPTS_OF.get("_".join(words_of(name)), ())


def _prompts(arguments: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    """Yield the values of the first of these arguments that is there."""
    for name in names:
        values = [arguments[name]] if name in arguments else _numbered(arguments, name)
        found = [one for value in values for one in _texts(value, names)]
        if found:
            yield from found
            return


def _numbered(arguments: dict[str, Any], name: str) -> list[Any]:
    return [
        value
        for key, value in arguments.items()
        if key.startswith(name) and _NUMBER.fullmatch(key, len(name)) is not None
    ]


def _texts(value: Any, names: tuple[str, ...]) -> Iterator[str]:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one.strip():
            yield one
        elif isinstance(one, dict):
            yield from _first(one, names)


def _first(value: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    return [text for name in names if isinstance(text := value.get(name), str) and text.strip()][:1]
