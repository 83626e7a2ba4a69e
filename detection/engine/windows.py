"""Which part of a file a call reads, and how much of a file was read again.

Reading a file in slices is work, and so is looking at one place again. Reading all of it a second time, in slices that
begin elsewhere, brings nothing new, although every answer is another text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from posixpath import normpath
from typing import Final, NamedTuple, NotRequired, TypedDict

from detection.engine.bounded import drop_oldest, hash_of
from detection.engine.tables import table

_ROWS = table("windows")
_FILE_NAMES: Final = tuple(name for row in _ROWS for name in row.get("file", ()))
_FILES: Final = frozenset(_FILE_NAMES)
_PLACE_NAMES: Final = tuple(name for row in _ROWS for name in row.get("where", ()))
_PLACES: Final = frozenset(_PLACE_NAMES)
_COMMANDS: Final = tuple(
    (tuple(row["parts"]), re.compile(rf"(?:^|[;&(]|\bthen\b)\s*{row['pattern']}"), row["unit"])
    for row in _ROWS
    if "pattern" in row
)
_WORDS: Final = tuple(
    f"{name} " for name in sorted({parts[0].split()[0].lstrip("-") for parts, _, _ in _COMMANDS})
)
_PROGRAMS: Final = re.compile(rf"\b(?:{'|'.join(_WORDS)})")
_PAIR_NAMES: Final = frozenset(name for row in _ROWS for name in row.get("both", ()))
_ROLE_OF: Final[Mapping[str, str]] = {
    name: role for role in ("count", "last", "first") for row in _ROWS for name in row.get(role, ())
}
_PAIR = re.compile(r"L?(\d{1,9})\s?[-:,]\s?L?(\d{1,9})")
# A command that reads a part of a file is short; a judgement for the time of a call, not measured.
_MAX_COMMAND_CHARS = 1000
# Parts that do not touch; of more, the closest are joined. A judgement for the size of the state.
_MAX_INTERVALS = 12
# Files that are read in parts at a time; a judgement for the size of the state.
_MAX_FILES = 4
# Tools list files in a list of objects, and not deeper.
_MAX_DEPTH = 2
# Calls that a finding names; a judgement for the size of the state.
_MAX_SEQS = 12
# Different calls among them; a judgement for the same reason.
_MAX_KEYS = 6
_MIN_PARTS = 3
"""Parts of a pass: who reads a file in two parts, and again in two others, has not read it for long."""
_NEARLY_ALL = 0.8
"""A pass of three parts that begins half a part later omits a sixth."""
_HALF = 0.5
"""A part of which at least half was read before belongs to a further pass; parts that overlap a little do not."""
_CREEPS = 8
"""Reads in a row that each overlap the one before by half: a window that creeps, or stays about where it is. A
judgement, not measured: who looks at one place a few times finds the right lines."""
_MAX_DIGITS = 12
"""Digits of a place in a file: bytes of a terabyte."""
_BEYOND = 10**_MAX_DIGITS
_REST = 2000
"""Lines that a call without an end reads at most: what the tools of coding agents return at once."""


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
    arguments = _with_file(arguments, 0)
    found = _of_arguments(arguments) if arguments is not None else None
    if arguments is None or found is None:
        return None
    path, where = _path_of(arguments), ""
    if not _PLACES.isdisjoint(arguments):
        where = " ".join(str(arguments[name]) for name in _PLACE_NAMES if name in arguments)
    return hash_of(f"line {where} {path}" if where else f"line {path}"), *found


def _with_file(arguments: dict[str, object], depth: int) -> dict[str, object] | None:
    """Return the arguments that name a file: of the call, or of the one file that they list."""
    if not _FILES.isdisjoint(arguments) and _path_of(arguments) is not None:
        return arguments
    if depth >= _MAX_DEPTH or len(arguments) > _MAX_DEPTH:
        return None
    for value in arguments.values():
        one = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(one, dict):
            return _with_file(one, depth + 1)
    return None


def _path_of(arguments: Mapping[str, object]) -> str | None:
    for name in _FILE_NAMES:
        path = arguments.get(name)
        if isinstance(path, str):
            return path
    return None


def _of_arguments(arguments: Mapping[str, object]) -> tuple[int, int] | None:
    given: dict[str, int] = {}
    for name, value in arguments.items():
        if name in _PAIR_NAMES and (pair := _pair(value)) is not None:
            return pair
        if name in _ROLE_OF and (number := _number(value)) is not None:
            given[_ROLE_OF[name]] = number
    if not given:
        return None
    first = given.get("first") or 1
    if "last" in given:
        return _checked(first, given["last"])
    return first, first + (given.get("count") or _REST) - 1


def _pair(value: object) -> tuple[int, int] | None:
    """Return a first and a last line that are given together."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and (found := _PAIR.fullmatch(value)):
        value = [found[1], found[2]]
    if isinstance(value, list) and len(value) == 2:
        return _checked(_number(value[0]), _number(value[1]))
    return None


def _of_command(command: str, place: str) -> Window | None:
    for word in _WORDS:
        if word in command:
            break
    else:
        return None
    if not _PROGRAMS.search(command):
        return None
    for parts, pattern, unit in _COMMANDS:
        if any(part not in command for part in parts):
            continue
        found = pattern.search(command)
        if found is None:
            continue
        given = found.groupdict()
        path = given.get("file") or given.get("other")
        if not path:
            continue
        head, count = _number(given.get("head")), _number(given.get("count"))
        last = head or _number(given.get("last"))
        skipped = _number(given.get("skip"))
        first = max(1, head - count + 1) if head and count else _number(given.get("first")) or 1
        if skipped is not None:
            first = skipped + 1
        if last is None and count:
            last = first + count - 1
        part = _checked(first, last)
        path = path.strip("\"'")
        if place and path[:1] not in ("/", "~"):
            path = normpath(f"{place}/{path}")
        return (hash_of(f"{unit} {path}"), *part) if part else None
    return None


def _number(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) <= _MAX_DIGITS else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _BEYOND:
        return value
    return None


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


class PartsRead(TypedDict):
    """What was read of a file: its parts, those that were read again, and the calls and number of the pass in hand.

    `place` is the part that was read last, and `creeps` how often in a row one was read that overlaps the last one.
    """

    once: list[list[int]]
    again: list[list[int]]
    parts: int
    reads: int
    passes: int
    seqs: list[int]
    keys: list[str]
    place: NotRequired[list[int]]
    creeps: NotRequired[int]


def read_again(files: dict[str, PartsRead], window: Sequence[int], seq: int, key: str) -> Pass | None:
    """Note that a part of a file was read; return the pass that it completes, if it does.

    A part of which more than half is known belongs to a further pass. That is complete when nearly everything was read
    again that an earlier pass has read. A window that creeps over a file, line by line, reads the same lines again with
    each call; every `_CREEPS` of them count as so many passes.

    Parameters
    ----------
    files : dict
        What is remembered of files, by name; changed.
    """
    name, first, last = f"{window[0]:x}", window[1], window[2]
    file = files.pop(name, None)
    if file is None:
        files[name] = {
            "once": [[first, last]], "again": [], "parts": 1, "reads": 0, "passes": 1, "seqs": [], "keys": [],
        }  # fmt: skip
        drop_oldest(files, _MAX_FILES)
        return None
    files[name] = file
    if _covered(file["once"], first, last) < _HALF * (last - first + 1):
        _add(file["once"], first, last)
        file["parts"] += 1
        return None
    low, high = file["once"][0][0], file["once"][-1][1]
    _add(file["again"], max(first, low), min(last, high))
    file["reads"] += 1
    before, file["place"] = file.get("place", file["once"][-1]), [first, last]
    size = last - first + 1
    # How much a call without an end reads is not known.
    is_near = size != _REST and key not in file["keys"] and _covered([[*before]], first, last) >= _HALF * size
    file["creeps"] = file.get("creeps", 0) + 1 if is_near else 0
    file["seqs"] = [*file["seqs"], seq][-_MAX_SEQS:]
    if key not in file["keys"]:
        file["keys"] = [*file["keys"], key][-_MAX_KEYS:]
    if file["creeps"] and file["creeps"] % _CREEPS == 0:
        return Pass(file["creeps"], file["creeps"], tuple(sorted(file["seqs"])), tuple(file["keys"]))
    is_complete = _size_of(file["again"]) >= _NEARLY_ALL * _size_of(file["once"])
    if min(file["parts"], file["reads"]) < _MIN_PARTS or not is_complete:
        return None
    file["passes"] += 1
    found = Pass(file["passes"], file["reads"], tuple(sorted(file["seqs"])), tuple(file["keys"]))
    file["again"], file["reads"], file["seqs"], file["keys"] = [], 0, [], []
    return found


def _covered(intervals: list[list[int]], first: int, last: int) -> int:
    """Return how much of a part lies within sorted intervals."""
    return sum(
        min(high, last) - max(low, first) + 1 for low, high in intervals if low <= last and first <= high
    )


def _add(intervals: list[list[int]], first: int, last: int) -> None:
    """Add a part to sorted intervals that do not touch; the smallest gap is closed where there would be too many."""
    start = 0
    while start < len(intervals) and intervals[start][1] < first - 1:
        start += 1
    end = start
    while end < len(intervals) and intervals[end][0] <= last + 1:
        first, last = min(first, intervals[end][0]), max(last, intervals[end][1])
        end += 1
    intervals[start:end] = [[first, last]]
    if len(intervals) > _MAX_INTERVALS:
        gap = min(range(1, len(intervals)), key=lambda at: intervals[at][0] - intervals[at - 1][1])
        intervals[gap - 1][1] = intervals.pop(gap)[1]


def _size_of(intervals: list[list[int]]) -> int:
    return sum(high - low + 1 for low, high in intervals)
