"""The directory in which a call runs: the one that its host reports, or the one that its arguments name.

`git pull` in six repositories is six calls, and the same answer in each of them says something else. A directory that
the call does not depend on is no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from posixpath import normpath
from types import MappingProxyType
from typing import Any

from detection.engine.tables import load_table

FIELD = "cwd"
"""The argument that holds the directory of a call as it is compared."""
_ROWS = load_table("directories")["row"]
ARGUMENTS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {tool: tuple(row["arguments"]) for row in _ROWS for tool in row["tools"]}
)
"""By name of the tool, the arguments that name the directory in which it runs; `shell` stands for all shells."""

LISTS = frozenset(program for row in _ROWS for program in row.get("lists", ()))
"""Programs that list a directory."""

_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_OPTION_NAMES = tuple(option for row in _ROWS for option in row.get("options", ()))
_OPTIONS = "|".join(map(re.escape, _OPTION_NAMES))
_VARIABLES = tuple(variable for row in _ROWS for variable in row.get("variables", ()))
_SENDS = _OPTION_NAMES + _VARIABLES
_PATH = r"(?:\"([^\"\n]{1,400})\"|'([^'\n]{1,400})'|([^\s\"';&|<>]{1,400}))"
_GOES = re.compile(rf"\s{{0,8}}(?:cd|pushd)\s{{1,8}}{_PATH}[ \t]{{0,8}}(?:&&|;|\n)")
_IS_SENT = re.compile(rf"(?:^|[\s;&|(])(?:(?:{_OPTIONS})[ =]|(?:{'|'.join(_VARIABLES)})=){_PATH}")
# A command changes the directory first; a judgement for the time of a call, not measured.
_MAX_COMMAND_CHARS = 1000


def located(arguments: Mapping[str, Any], names: tuple[str, ...], cwd: str) -> dict[str, Any]:
    """Return the arguments of a call with the directory in which it starts, instead of any that names it relatively.

    A command that begins by going to an absolute directory runs there, wherever it starts.

    Parameters
    ----------
    names
        The arguments that may name a directory.
    cwd
        The directory that the host reports; not empty.
    """
    named = next((name for name in names if isinstance(arguments.get(name), str) and arguments[name]), "")
    kept = {name: value for name, value in arguments.items() if name != named}
    command = arguments.get("command")
    goes = _GOES.match(command, 0, _MAX_COMMAND_CHARS) if isinstance(command, str) else None
    if goes is None or not _ABSOLUTE.match(_path(goes)):
        kept[FIELD] = _joined(cwd, arguments[named] if named else "")
    return kept


def place_of(arguments: object, names: tuple[str, ...], cwd: str) -> str:
    """Return the directory in which a command runs, as far as it is known; empty if nothing is.

    Parameters
    ----------
    arguments
        Those of a shell, as compared; `located` may have put the directory of the host there already.
    """
    if not isinstance(arguments, dict):
        return cwd
    place = cwd
    for name in (FIELD, *names):
        if name in arguments and isinstance(arguments[name], str):
            place = arguments[name]
            break
    command = arguments.get("command")
    if not isinstance(command, str):
        return place
    found = _GOES.match(command, 0, _MAX_COMMAND_CHARS)
    if found is not None:
        place = _joined(place, _path(found))
    for name in _SENDS:
        if name in command:
            found = _IS_SENT.search(command, 0, _MAX_COMMAND_CHARS)
            return _joined(place, _path(found)) if found is not None else place
    return place


def _path(found: re.Match[str]) -> str:
    return found[1] or found[2] or found[3] or ""


@lru_cache(maxsize=512)
def _joined(base: str, path: str) -> str:
    if base and not _ABSOLUTE.match(path):
        path = f"{base}/{path}"
    return normpath(path.replace("\\", "/"))
