"""Calls that dispatch another one: `use_mcp_tool{tool_name: "search_docs", …}` is a call of `search_docs`.

Its name is that of both tools, `use_mcp_tool → search_docs`: people see what the model called, and tool rules, classes
and counts are those of what ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from detection.engine.calls import Arguments, Call, ObservedCall
from detection.engine.identity import structured
from detection.engine.tables import table
from detection.engine.tool_verbs import intent_of, words_of

ARROW: Final = " → "
"""Stands between the tool that dispatches and the one that it calls."""

_ROWS = table("dispatchers")
_SERVER = "@server"
# A dispatcher of dispatchers is the most that is known; a judgement.
_MAX_DEPTH = 3
# Longer code makes more than one call; a judgement for the time of a call.
_MAX_CODE_CHARS = 4000
_TOOL = re.compile(r"[A-Za-z_][\w.:/-]{0,79}")
_CALL = re.compile(
    r"\b(?:(?:tools|codemode|mcp|functions|default_api)(?:\.(?!call_?tool\b)\w{1,60}){0,2}\.(\w{2,60})\s*\("
    r"|(?:call_?tool|invoke_?tool|use_mcp_tool)\(\s*[\"'](?:[\w.-]{1,40}[./:])?([\w-]{2,60})[\"'])",
    re.IGNORECASE,
)
_REPEATS = re.compile(r"\b(?:for|while|map|forEach|reduce|Promise\.all|gather)\b")


class _Dispatcher(NamedTuple):
    """A row of the table."""

    excepted: frozenset[str]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    server: tuple[str, ...]
    lists: tuple[str, ...]
    is_flat: bool
    is_noun: bool


def _dispatcher(row: Mapping[str, Any]) -> _Dispatcher:
    name, arguments, server, lists = (
        tuple(row.get(column, ())) for column in ("name", "arguments", "server", "list")
    )
    return _Dispatcher(
        frozenset(row.get("except", ())),
        name,
        arguments,
        server,
        lists,
        row.get("flat", False),
        row.get("noun", False),
    )


_BY_TOOL = {tool: _dispatcher(row) for row in _ROWS for tool in row.get("tools", ())}
_OF_ANY = tuple(_dispatcher(row) for row in _ROWS if "tools" not in row and "code" not in row)
_CODE = tuple(name for row in _ROWS for name in row.get("code", ()))
# A call of any tool that has none of these arguments dispatches nothing.
_HINTS = frozenset((*_CODE, *(name for one in _OF_ANY for name in (one.lists or one.names))))
_QUOTED = tuple(f'"{name}"' for name in sorted(_HINTS))


class Dispatched(NamedTuple):
    """What a call dispatches.

    Attributes
    ----------
    tool
        Name of the dispatched tool.
    arguments
        Its arguments as they are compared.
    server
        Where the tool is; empty if that is not said.
    """

    tool: str
    arguments: Arguments
    server: str = ""


def outer(name: str) -> str:
    """Return the tool that the model called, of the name of a call."""
    return name.partition(ARROW)[0]


def inner(name: str) -> str:
    """Return the tool that ran, of the name of a call."""
    return name.rpartition(ARROW)[2]


def named(tool: str, arguments: Arguments) -> str:
    """Return the name of a call: of its tool, with the one that it dispatches."""
    if isinstance(arguments, str) and _read(tool)[2] is None and not any(one in arguments for one in _QUOTED):
        return tool
    found = dispatched(tool, structured(arguments))
    return f"{outer(tool)}{ARROW}{found.tool}" if found is not None else tool


def judged(call: ObservedCall, *, interprets: bool) -> tuple[ObservedCall, Arguments]:
    """Return a call as it is judged, and its arguments as an object: of the tool that it dispatches, if it does.

    Parameters
    ----------
    interprets
        Whether settings read calls by what they mean; otherwise, each is a call of the tool that the model named.
    """
    arguments, tool = structured(call.arguments), call.tool
    found = dispatched(tool, arguments) if interprets and _may_dispatch(tool, arguments) else None
    if found is not None:
        tool = f"{outer(tool)}{ARROW}{found.tool}"
        arguments = found.arguments
        if found.server:
            # One name on two servers is two tools.
            arguments = {**(arguments if isinstance(arguments, dict) else {}), _SERVER: found.server}
    elif ARROW in tool:
        tool = outer(tool)
    else:
        return call, arguments
    as_called = call.arguments if found is None else arguments
    return Call(
        call.seq, tool, as_called, call.at, call.call_id, call.round, call.run, call.tokens, call.cost_usd, call.agent,
        call.cwd,
    ), arguments  # fmt: skip


def _may_dispatch(tool: str, arguments: Arguments) -> bool:
    """Return whether a call may dispatch another one, by the names of its tool and of its arguments; most do not."""
    if not isinstance(arguments, dict):
        return False
    return not _HINTS.isdisjoint(arguments) or ARROW in tool or _read(tool)[2] is not None


def dispatched(tool: str, arguments: Arguments) -> Dispatched | None:
    """Return what a call dispatches, through several dispatchers too; None for a call that dispatches nothing.

    Parameters
    ----------
    arguments
        Those of the call, parsed.
    """
    found = _once(outer(tool), arguments)
    for _ in range(_MAX_DEPTH - 1):
        if found is None or (one := _once(found.tool, found.arguments)) is None:
            break
        found = one._replace(server=f"{found.server}/{one.server}".strip("/"))
    return found


def _once(tool: str, arguments: Arguments) -> Dispatched | None:
    if not isinstance(arguments, dict):
        return None
    name, is_noun, row = _read(tool)
    if row is not None and (one := _by_row(row, arguments)) is not None:
        return one
    if _HINTS.isdisjoint(arguments):
        return None
    for row in _OF_ANY:
        if name in row.excepted or (row.is_noun and not is_noun):
            continue
        if (one := _by_row(row, arguments)) is not None:
            return one
    return _by_code(arguments)


@lru_cache(maxsize=512)
def _read(tool: str) -> tuple[str, bool, _Dispatcher | None]:
    """Return the name of a tool as the table has it, whether it is a single word without a verb, and its own row."""
    words = words_of(tool)
    name = "_".join(words)
    return name, len(words) == 1 and not intent_of(words), _BY_TOOL.get(name)


def _by_row(row: _Dispatcher, arguments: dict[str, Any]) -> Dispatched | None:
    if row.lists:
        calls = next((arguments[name] for name in row.lists if name in arguments), None)
        if not isinstance(calls, list) or len(calls) != 1 or not isinstance(calls[0], dict):
            return None
        arguments = calls[0]
    named = next((name for name in row.names if isinstance(arguments.get(name), str)), "")
    if not named or not _TOOL.fullmatch(arguments[named]):
        return None
    server = next((arguments[name] for name in row.server if isinstance(arguments.get(name), str)), "")
    tool = arguments[named]
    for name in row.arguments:
        if name != named and name in arguments:
            given = structured(arguments[name])
            return Dispatched(tool, given, server) if given is None or isinstance(given, dict) else None
    if not row.is_flat or (row.is_noun and len(words_of(tool)) == 1):
        return None
    rest = {name: value for name, value in arguments.items() if name != named and name not in row.server}
    return Dispatched(tool, rest, server)


def _by_code(arguments: dict[str, Any]) -> Dispatched | None:
    code = next((arguments[name] for name in _CODE if isinstance(arguments.get(name), str)), "")
    if not code or len(code) > _MAX_CODE_CHARS:
        return None
    calls = _CALL.findall(code)
    if len(calls) != 1 or _REPEATS.search(code):
        return None
    return Dispatched(calls[0][0] or calls[0][1], arguments)
