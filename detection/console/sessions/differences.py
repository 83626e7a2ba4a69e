"""Differences between the arguments of two calls: by path where both are JSON, else by word.

The work is bounded: long values are compared as a whole and truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import orjson

MAX_PATHS, MAX_WORDS, SHOWN_CHARACTERS = 60, 400, 300
_ABSENT = object()
_SPACE = "␣"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. Parts are (how, text): `same`, `old` or `new`."""

    path: str
    parts: tuple[tuple[str, str], ...]


def between(old: str | None, new: str | None) -> tuple[Difference, ...]:
    """Compare two argument texts.

    Returns
    -------
    tuple of Difference
        Empty when they are equal.
    """
    if old == new:
        return ()
    before, after = _parsed(old), _parsed(new)
    if isinstance(before, dict | list) and isinstance(after, dict | list):
        left, right = dict(_leaves(before)), dict(_leaves(after))
        paths = [path for path in {**left, **right} if left.get(path, _ABSENT) != right.get(path, _ABSENT)]
        found = [
            Difference(path, _value_parts(left.get(path, _ABSENT), right.get(path, _ABSENT)))
            for path in paths[:MAX_PATHS]
        ]
        if len(paths) > MAX_PATHS:
            found.append(Difference("…", (("same", f"{len(paths) - MAX_PATHS} more differences"),)))
        return tuple(found)
    return (Difference("", _word_parts(old or "", new or "")),)


def _parsed(text: str | None) -> Any:
    if not text:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and depth < 40:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list) and value and depth < 40:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]", depth + 1)
    else:
        yield path, value


def _value_parts(old: Any, new: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(old, str) and isinstance(new, str):
        return _word_parts(old, new)
    parts = []
    if old is not _ABSENT:
        parts.append(("old", _short(old)))
    if new is not _ABSENT:
        parts.append(("new", _short(new)))
    return tuple(parts)


def _word_parts(old: str, new: str) -> tuple[tuple[str, str], ...]:
    left, right = old.split(" "), new.split(" ")
    if max(len(left), len(right)) > MAX_WORDS or max(len(old), len(new)) > SHOWN_CHARACTERS * 8:
        return (("old", _cut(old)), ("new", _cut(new)))
    parts: list[tuple[str, str]] = []
    for how, i1, i2, j1, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if how == "equal":
            parts.append(("same", " ".join(left[i1:i2])))
            continue
        if i2 > i1:
            parts.append(("old", _cut(_joined(left[i1:i2]))))
        if j2 > j1:
            parts.append(("new", _cut(_joined(right[j1:j2]))))
    return tuple(parts)


def _joined(words: Sequence[str]) -> str:
    """Return different words; of spaces alone, between which there are no words, a visible sign for each."""
    return " ".join(words) if any(words) else _SPACE * len(words)


def _short(value: Any) -> str:
    return _cut(orjson.dumps(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
