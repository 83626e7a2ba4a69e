"""Which part of a file a call reads, and how much of a file was read again.

Reading a file in slices is work, and so is looking at one place again. Reading all of it a second time, in slices that
begin elsewhere, brings nothing new, although every answer is another text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from posixpath import normpath
from typing import Any, Final, NamedTuple

from detection.engine.memory import drop_oldest, hash_of
from detection.engine.tables import table

_ROWS = table("windows")
_FILE_NAMES: Final = tuple(name for row in _ROWS for name in row.get("file", ()))
_FILES: Final = frozenset(_FILE_NAMES)
_PLACE_NAMES: Final = tuple(name for row in _ROWS for name in row.get("where", ()))
_COMMANDS: Final = tuple(
    (re.compile(rf"(?:^|[;&(]|\bthen\b)\s*{row['pattern']}"), row["unit"])
    for row in _ROWS
    if "pattern" in row
)
_PROGRAMS: Final = ("sed ", "head ", "tail ", "awk ")
_PAIR = re.compile(r"L?(\d{1,9})\s?[-:,]\s?L?(\d{1,9})")
_MAX_COMMAND_CHARS = 1000
_MAX_INTERVALS = 12
_MAX_FILES = 4
_MAX_SEQS, _MAX_KEYS = 12, 6
_MIN_PARTS = 3
"""Parts of a pass: who reads a file in two parts, and again in two others, has not read it for long."""
_NEARLY_ALL = 0.8
"""A pass of three parts that begins half a part later leaves out a sixth."""
_REST = 2000
"""Lines that a call without an end reads at most: what the tools of coding agents return at once."""


class _Names(NamedTuple):
    first: tuple[str, ...]
    last: tuple[str, ...]
    number: tuple[str, ...]
    both: tuple[str, ...]


_ARGUMENTS: Final = tuple(
    _Names(*(tuple(row.get(column, ())) for column in ("first", "last", "count", "both")))
    for row in _ROWS
    if "pattern" not in row
)

Window = tuple[int, int, int]
"""Hash of a file, and the first and last of its lines or bytes that are read."""


def window_of(arguments: object, *, is_shell: bool, place: str = "") -> Window | None:
    """Return the part of a file that a call reads; None where it reads a whole one, or none.

    Parameters
    ----------
    arguments
        As compared.
    is_shell
        Whether they are a command.
    place
        The directory of a command, for a relative path.
    """
    if not isinstance(arguments, dict):
        return None
    if is_shell:
        command = arguments.get("command")
        return _of_command(command[:_MAX_COMMAND_CHARS], place) if isinstance(command, str) else None
    if _FILES.isdisjoint(arguments):
        return None
    path = next((arguments[name] for name in _FILE_NAMES if isinstance(arguments.get(name), str)), "")
    if not path:
        return None
    for names in _ARGUMENTS:
        found = _of_arguments(names, arguments)
        if found is not None:
            where = " ".join(str(arguments[name]) for name in _PLACE_NAMES if name in arguments)
            return hash_of(f"line {where} {path}" if where else f"line {path}"), *found
    return None


def _of_arguments(names: _Names, arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    for name in names.both:
        value = arguments.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and (found := _PAIR.fullmatch(value)):
            value = [found[1], found[2]]
        if isinstance(value, list) and len(value) == 2:
            return _checked(_number(value[0]), _number(value[1]))
    first = next((one for name in names.first if (one := _number(arguments.get(name))) is not None), None)
    last = next((one for name in names.last if (one := _number(arguments.get(name))) is not None), None)
    count = next((one for name in names.number if (one := _number(arguments.get(name))) is not None), None)
    if names.last and last is not None:
        return _checked(first or 1, last)
    if not names.number or (first is None and count is None):
        return None
    first = first or 1
    return _checked(first, first + (count or _REST) - 1)


def _of_command(command: str, place: str) -> Window | None:
    if not any(program in command for program in _PROGRAMS):
        return None
    for pattern, unit in _COMMANDS:
        found = pattern.search(command)
        if found is None:
            continue
        given = found.groupdict()
        path = given.get("file") or given.get("other")
        if not path:
            continue
        head, count = _number(given.get("head")), _number(given.get("count"))
        last = head or _number(given.get("last"))
        first = max(1, head - count + 1) if head and count else _number(given.get("first")) or 1
        if last is None and count:
            last = first + count - 1
        part = _checked(first, last)
        path = path.strip("\"'")
        if place and path[:1] not in ("/", "~"):
            path = normpath(f"{place}/{path}")
        return (hash_of(f"{unit} {path}"), *part) if part else None
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isdecimal() and len(value) <= 12:
        return int(value)
    return value if isinstance(value, int) and 0 <= value < 10**12 else None


def _checked(first: int | None, last: int | None) -> tuple[int, int] | None:
    if first is None or last is None or last < first:
        return None
    return max(1, first), max(1, last)


class Pass(NamedTuple):
    """A further pass over a file, in so many parts: the first one is number 1."""

    number: int
    parts: int
    seqs: tuple[int, ...]
    keys: tuple[str, ...]


def read_again(files: dict[str, Any], window: Sequence[int], seq: int, key: str) -> Pass | None:
    """Note that a part of a file was read; return the pass that it completes, if it does.

    A part of which more than half is known belongs to a further pass. That is complete when nearly everything was read
    again that an earlier pass has read.

    Parameters
    ----------
    files : dict
        What is remembered of files, by name; changed.
    """
    name, first, last = f"{window[0]:x}", window[1], window[2]
    file = files.pop(name, None) or {
        "once": [],
        "again": [],
        "parts": 0,
        "reads": 0,
        "passes": 1,
        "seqs": [],
        "keys": [],
    }
    files[name] = file
    drop_oldest(files, _MAX_FILES)
    once, covered = _merged(file["once"], first, last)
    if 2 * covered < last - first + 1:
        file["once"] = once
        file["parts"] += 1
        return None
    low, high = file["once"][0][0], file["once"][-1][1]
    file["again"], _ = _merged(file["again"], max(first, low), min(last, high))
    file["reads"] += 1
    file["seqs"] = [*file["seqs"], seq][-_MAX_SEQS:]
    if key not in file["keys"]:
        file["keys"] = [*file["keys"], key][-_MAX_KEYS:]
    is_complete = _size_of(file["again"]) >= _NEARLY_ALL * _size_of(file["once"])
    if min(file["parts"], file["reads"]) < _MIN_PARTS or not is_complete:
        return None
    file["passes"] += 1
    found = Pass(file["passes"], file["reads"], tuple(sorted(file["seqs"])), tuple(file["keys"]))
    file["again"], file["reads"], file["seqs"], file["keys"] = [], 0, [], []
    return found


def _merged(intervals: list[list[int]], first: int, last: int) -> tuple[list[list[int]], int]:
    """Return sorted intervals with one more, and how much of that one they contained before.

    The smallest gap is closed where there would be too many.
    """
    kept: list[list[int]] = []
    covered = 0
    for low, high in intervals:
        covered += max(0, min(high, last) - max(low, first) + 1)
    for low, high in sorted([*intervals, [first, last]]):
        if kept and low <= kept[-1][1] + 1:
            kept[-1][1] = max(kept[-1][1], high)
        else:
            kept.append([low, high])
    while len(kept) > _MAX_INTERVALS:
        gap = min(range(1, len(kept)), key=lambda at: kept[at][0] - kept[at - 1][1])
        kept[gap - 1][1] = kept.pop(gap)[1]
    return kept, covered


def _size_of(intervals: list[list[int]]) -> int:
    return sum(high - low + 1 for low, high in intervals)
