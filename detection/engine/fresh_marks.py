"""Finds marks of an order among its arguments: what is new each time and says nothing of what is ordered.

An order with another `idempotency_key` is the same order, unless one answer has both: those are two. A `request_id` may
be such a mark, or name the request that a call is about, and a `timestamp` may be the time of sending, or what is
written down. Those count as marks only of tools that make, pay or send something, and only if they look like what a
program makes up. The names are in the table `marks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from detection.engine import tables
from detection.engine.bounded import hash_of
from detection.engine.substrings import has_part
from detection.engine.tool_classes import ToolTraits
from detection.engine.tool_verbs import words_of
from detection.engine.writes import COUNTED, effect_of


def _words(column: str, about: str) -> frozenset[str]:
    return frozenset(tables.words("marks", column, about=about))


_ALWAYS, _MADE_UP, _TIMES = (_words("names", about) for about in ("any write", "made up", "time"))
_NAMES = _ALWAYS | _MADE_UP | _TIMES
_STEMS = tuple(_words("stems", "made up"))
_AROUND = _words("names", "around")
_MAKES, _ANSWERS = _words("verbs", "made up"), _words("nouns", "made up")
_ORDERS, _NOTES = _words("verbs", "time"), _words("nouns", "time")
_RANDOM = re.compile(
    r"(?i)\A(?:[a-z]{1,8}[-_])?"
    r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[a-z]{0,63}\d)(?=\d{0,63}[a-z])[0-9a-z]{16,64})"
)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}|1[6-9]\d{8}(?:\d{3})?(?:\.\d{1,9})?")
_HANDED, _HANDS_OVER, _NO_AGENTS = (
    frozenset(tables.words("marks", column, about="hand-over")) for column in ("names", "verbs", "nouns")
)
# A header or an option of a command, and its value.
_MARK_IN_LINE = re.compile(r"(?<![\w-])([A-Za-z][\w-]{4,40})(\s{0,2}[:=]\s{0,2})[\w-]{4,80}")
_PARTS_OF_MARKS = tables.words("marks", "parts", about="any write")
# As much of a line as is read to say what it does; see `shell_commands`.
_MAX_LINE_CHARS = 4096
# Tools that have no effect, or one that is no order.
_OTHERS = frozenset(("read", "poll", "wait", "fallible", "exempt"))


def _form_of(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def without_marks(tool: str, arguments: Any, traits: ToolTraits) -> Any:
    """Return the arguments of an order without its marks; the same object if it has none, or nothing else."""
    if traits.is_shell:
        return _line_without(arguments, traits)
    if traits.tool_class in _OTHERS or not isinstance(arguments, dict) or len(arguments) < 2:
        return arguments
    if not _HANDED.isdisjoint(arguments) and _hands_over(tool):
        return {name: value for name, value in arguments.items() if name not in _HANDED} or arguments
    marks, around = _named(tuple(arguments))
    if not marks and not around:
        return arguments
    if effect_of(traits, arguments) not in COUNTED:
        return arguments
    kept = _without(tool, arguments, marks)
    for name in around:
        inner = kept.get(name)
        if isinstance(inner, dict):
            kept = kept | {name: _without(tool, inner, _named(tuple(inner))[0])}
    return kept or arguments


def marks_of(tool: str, arguments: Any, traits: ToolTraits) -> int:
    """Return a hash of the arguments of an order that has marks; 0 for one without."""
    if without_marks(tool, arguments, traits) is arguments:
        return 0
    return hash_of(json.dumps(arguments, sort_keys=True))


def _line_without(arguments: Any, traits: ToolTraits) -> Any:
    """Return the arguments of a shell without the marks in the headers of what its line sends."""
    if not isinstance(arguments, dict):
        return arguments
    for name, line in arguments.items():
        head = line[:_MAX_LINE_CHARS] if isinstance(line, str) else ""
        if not has_part(head.lower(), _PARTS_OF_MARKS):
            continue
        kept = _MARK_IN_LINE.sub(_kept, head) + line[_MAX_LINE_CHARS:]
        if kept != line and effect_of(traits, arguments) in COUNTED:
            return arguments | {name: kept}
    return arguments


def _kept(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}" if _form_of(found[1]) in _ALWAYS else found[0]


@lru_cache(maxsize=512)
def _hands_over(tool: str) -> bool:
    """Return whether a tool passes the work to another agent, by its name."""
    words = words_of(tool)
    return words[0] in _HANDS_OVER and _NO_AGENTS.isdisjoint(words)


# Calls of one tool have mostly the same names.
@lru_cache(maxsize=512)
def _named(names: tuple[Any, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of these names may be marks, and which are around some."""
    forms = {name: _form_of(name) for name in names if isinstance(name, str)}
    return (
        tuple(name for name, form in forms.items() if form in _NAMES or any(stem in form for stem in _STEMS)),
        tuple(name for name, form in forms.items() if form in _AROUND),
    )


def _without(tool: str, arguments: Mapping[str, object], marks: tuple[str, ...]) -> dict[str, object]:
    dropped = {name for name in marks if _is_mark(tool, name, arguments[name])}
    return {name: value for name, value in arguments.items() if name not in dropped}


def _is_mark(tool: str, name: str, value: Any) -> bool:
    form = _form_of(name)
    if form in _ALWAYS:
        return True
    words = set(words_of(tool))
    if form in _TIMES:
        return bool(words & _ORDERS) and not words & _NOTES and _CLOCK.fullmatch(str(value)) is not None
    is_made_up = isinstance(value, str) and _RANDOM.fullmatch(value) is not None
    return is_made_up and bool(words & _MAKES) and not words & _ANSWERS
