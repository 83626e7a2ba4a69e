"""How alike are two calls? By whole words, with the textbook form of edit distance."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any


def edit_similarity(one: Sequence[Any], other: Sequence[Any]) -> float:
    """1 minus the edit distance over the longer length; two empty ones are equal."""
    longest = max(len(one), len(other))
    return 1.0 if not longest else 1.0 - _distance(one, other) / longest


def _distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        above, row = row, [i]
        for j, right in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (left != right)))
    return row[-1]


def words(text: str) -> list[str]:
    """Words of a text; signs only part them."""
    return re.sub(f"[{re.escape(string.punctuation.replace('_', ''))}]", " ", text).split()


def alike(one: Any, other: Any, ratio: float) -> float:
    """Share of fields whose values are at least `ratio` alike; a single common field counts by its own value."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return _values_alike(one, other)
    if len(one) == len(other) == 1 and one.keys() == other.keys():
        return _values_alike(next(iter(one.values())), next(iter(other.values())))
    names = one.keys() | other.keys()
    if not names:
        return 1.0
    same = [name for name in one.keys() & other.keys() if _values_alike(one[name], other[name]) >= ratio]
    return len(same) / len(names)


def _values_alike(one: Any, other: Any) -> float:
    if not isinstance(one, str) or not isinstance(other, str):
        return 1.0 if type(one) is type(other) and one == other else 0.0
    left, right = words(one), words(other)
    if left == right:
        return 1.0
    fewer, more = sorted((left, right), key=len)
    # Texts of a few words are alike, too, when one holds all words of the other.
    if fewer and len(more) <= 4 and set(fewer) <= set(more):
        return 1.0
    return edit_similarity(left, right)


def literally_alike(one: Any, other: Any, threshold: float) -> float:
    """The formula of the `similarity` preset: two empty containers score 1, lists of unlike length score 0."""
    if isinstance(one, str) and isinstance(other, str):
        return edit_similarity(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        names = set(one) | set(other)
        hits = [
            n
            for n in names
            if n in one and n in other and literally_alike(one[n], other[n], threshold) > threshold
        ]
        return len(hits) / len(names) if names else 1.0
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return 0.0
        if not one:
            return 1.0
        return sum(literally_alike(a, b, threshold) for a, b in zip(one, other, strict=True)) / len(one)
    return float(type(one) is type(other) and one == other)


def shared(one: Any, other: Any) -> float:
    """Return the share of fields with one name and one value; anything but an object is one field."""
    if not isinstance(one, dict) or not isinstance(other, dict) or not one or not other:
        return float(one == other)
    same = sum(1 for name in one if name in other and one[name] == other[name])
    return same / max(len(one), len(other))
