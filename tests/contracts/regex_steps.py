"""Counts what a backtracking matcher does: an interpreter of parsed patterns, slow and obvious.

Python's own matcher gives no count, and a stopwatch says more about the machine than about the pattern. Every attempt to
match one element at one place is a step. Optimisations of the real matcher are left out, so the count is an upper bound.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from re import _constants as op
from re import _parser as parser
from typing import Any

Continue = Callable[[int], bool]

_ONE_CHARACTER = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
_CATEGORIES: dict[object, Callable[[str], bool]] = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    op.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


# As plain numbers: operations on flags create objects, and these are used millions of times.
_IGNORECASE, _MULTILINE, _DOTALL = int(re.IGNORECASE), int(re.MULTILINE), int(re.DOTALL)


class TooManySteps(Exception):
    """The pattern takes more steps than were allowed."""


class StepCounter:
    """Searches a text for every match of a pattern and counts the steps.

    Parameters
    ----------
    pattern
        A compiled pattern.
    most
        Where counting ends with `TooManySteps`.
    """

    def __init__(self, pattern: re.Pattern[str], most: int) -> None:
        self._flags = pattern.flags
        self._parsed = _parsed(pattern)
        self._most = most
        self.steps = 0
        self._text = ""
        self._groups: dict[int, tuple[int, int]] = {}

    def scan(self, text: str) -> int:
        """Find all matches, as `sub` does, and return the number of steps so far."""
        place: int | None = 0
        while place is not None and place <= len(text):
            start, end = self.first(text, place)
            place = None if start is None or end is None else max(end, start + 1)
        return self.steps

    def first(self, text: str, place: int = 0) -> tuple[int | None, int | None]:
        """Return start and end of the first match from `place` on, or a pair of None."""
        self._text = text
        for start in range(place, len(text) + 1):
            self._groups = {}
            end = self._first_end(self._parsed, start)
            if end is not None:
                return start, end
        return None, None

    def _match(self, items: list, index: int, place: int, then: Continue) -> bool:
        found = self._past_single_characters(items, index, place)
        if found is None:
            return False
        index, place = found
        if index == len(items):
            return then(place)
        code, argument = items[index]

        def rest(at: int) -> bool:
            return self._match(items, index + 1, at, then)

        if code is op.BRANCH:
            return any(self._match(branch, 0, place, rest) for branch in argument[1])
        if code is op.SUBPATTERN:
            return self._subpattern(argument, place, rest)
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            return self._repeat(code, argument, place, rest)
        if code is op.ATOMIC_GROUP:
            end = self._first_end(argument, place)
            return end is not None and rest(end)
        if code in (op.ASSERT, op.ASSERT_NOT):
            return self._looks(argument, place) == (code is op.ASSERT) and rest(place)
        if code is op.GROUPREF:
            start, end = self._groups.get(argument, (0, 0))
            wanted = self._text[start:end]
            return self._text.startswith(wanted, place) and rest(place + len(wanted))
        raise NotImplementedError(str(code))

    def _past_single_characters(self, items: list, index: int, place: int) -> tuple[int, int] | None:
        """Return the first item that is more than a character or an anchor, and its place; None if one does not match."""
        while True:
            self.steps += 1
            if self.steps > self._most:
                raise TooManySteps
            if index == len(items):
                return index, place
            code, argument = items[index]
            if code in _ONE_CHARACTER:
                if not self._is_one(argument, place):
                    return None
                place += 1
            elif code is not op.AT:
                return index, place
            elif not self._is_at(argument, place):
                return None
            index += 1

    def _subpattern(self, argument: tuple, place: int, rest: Continue) -> bool:
        group, added, removed, items = argument
        before = self._flags
        self._flags = (before | added) & ~removed

        def close(end: int) -> bool:
            self._flags = before
            if group is not None:
                self._groups[group] = (place, end)
            return rest(end)

        try:
            return self._match(items, 0, place, close)
        finally:
            self._flags = before

    def _repeat(self, code: object, argument: tuple, place: int, rest: Continue) -> bool:
        least, most, items = argument
        if len(items) == 1 and items[0][0] in _ONE_CHARACTER:
            return self._repeat_one(code, items[0][1], least, most, place, rest)
        if code is op.POSSESSIVE_REPEAT:
            count = 0
            while count < most and (end := self._first_end(items, place)) is not None and end > place:
                place, count = end, count + 1
            return count >= least and rest(place)

        def further(count: int, at: int) -> bool:
            def again(end: int) -> bool:
                return end > at and further(count + 1, end)

            if code is op.MIN_REPEAT:
                return (count >= least and rest(at)) or (count < most and self._match(items, 0, at, again))
            return (count < most and self._match(items, 0, at, again)) or (count >= least and rest(at))

        return further(0, place)

    def _repeat_one(
        self, code: object, wanted: _Characters, least: int, most: int, place: int, rest: Continue
    ) -> bool:
        if code is op.MIN_REPEAT:
            count = 0
            while True:
                if count >= least and rest(place + count):
                    return True
                if count >= most or not self._is_one(wanted, place + count):
                    return False
                count += 1
        count = 0
        while count < most and self._is_one(wanted, place + count):
            count += 1
        if code is op.POSSESSIVE_REPEAT:
            return count >= least and rest(place + count)
        return any(rest(place + taken) for taken in range(count, least - 1, -1))

    def _first_end(self, items: list, place: int) -> int | None:
        ends: list[int] = []

        def note(end: int) -> bool:
            ends.append(end)
            return True

        return ends[0] if self._match(items, 0, place, note) else None

    def _looks(self, argument: tuple, place: int) -> bool:
        direction, items, width = argument
        if direction > 0:
            return self._first_end(items, place) is not None
        start = place - width
        return start >= 0 and self._first_end(items, start) is not None

    def _is_one(self, wanted: _Characters, place: int) -> bool:
        self.steps += 1
        if self.steps > self._most:
            raise TooManySteps
        return place < len(self._text) and wanted[self._text[place], self._flags]

    def _is_at(self, where: object, place: int) -> bool:
        text = self._text
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return place == 0 or bool(
                where is op.AT_BEGINNING and self._flags & _MULTILINE and text[place - 1] == "\n"
            )
        if where in (op.AT_END, op.AT_END_STRING):
            return place == len(text) or (where is op.AT_END and text[place:] == "\n")
        is_word = _CATEGORIES[op.CATEGORY_WORD]
        before = place > 0 and is_word(text[place - 1])
        after = place < len(text) and is_word(text[place])
        return (before != after) == (where is op.AT_BOUNDARY)


class _Characters(dict[tuple[str, int], bool]):
    """Whether an element for one character accepts a character under the flags of a pattern; worked out once for each."""

    def __init__(self, code: object, argument: object) -> None:
        self._element = code, argument

    def __missing__(self, key: tuple[str, int]) -> bool:
        self[key] = found = _accepts(*self._element, *key)
        return found


def _accepts(code: object, argument: Any, char: str, flags: int) -> bool:
    if code is op.ANY:
        return char != "\n" or bool(flags & _DOTALL)
    forms = {char, char.lower(), char.upper()} if flags & _IGNORECASE else {char}
    if code is op.IN:
        return any(_is_in(argument, form) for form in forms)
    return (chr(argument) in forms) == (code is op.LITERAL)


@functools.cache
def _parsed(pattern: re.Pattern[str]) -> list[tuple]:
    return _plain(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))


def _plain(items: parser.SubPattern) -> list[tuple]:
    """Return a parsed pattern as lists, which are quicker to read."""
    plain = []
    for code, argument in items:
        if code in _ONE_CHARACTER:
            argument = _Characters(code, argument)
        elif code is op.BRANCH:
            argument = None, [_plain(branch) for branch in argument[1]]
        elif code is op.SUBPATTERN:
            argument = *argument[:3], _plain(argument[3])
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            argument = *argument[:2], _plain(argument[2])
        elif code is op.ATOMIC_GROUP:
            argument = _plain(argument)
        elif code in (op.ASSERT, op.ASSERT_NOT):
            argument = argument[0], _plain(argument[1]), argument[1].getwidth()[0]
        plain.append((code, argument))
    return plain


def _is_in(items: list, char: str) -> bool:
    negated = items[0][0] is op.NEGATE
    for code, argument in items[1:] if negated else items:
        if (
            (code is op.LITERAL and ord(char) == argument)
            or (code is op.RANGE and argument[0] <= ord(char) <= argument[1])
            or (code is op.CATEGORY and _CATEGORIES[argument](char))
        ):
            return not negated
    return negated


@functools.cache
def sample(pattern: re.Pattern[str]) -> str:
    """Return a short text that the pattern, or most of it, matches: what an attacker would begin with."""
    return _sample(list(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)))


def _sample(items: list) -> str:
    text = ""
    for code, argument in items:
        if code is op.LITERAL:
            text += chr(argument)
        elif code is op.NOT_LITERAL:
            text += "b" if chr(argument) == "a" else "a"
        elif code is op.ANY:
            text += "a"
        elif code is op.IN:
            named = [
                low[0] if code is op.RANGE else low
                for code, low in argument
                if code in (op.LITERAL, op.RANGE)
            ]
            candidates = map(chr, [*range(33, 256), *named])
            text += next((char for char in candidates if _is_in(argument, char)), "")
        elif code is op.BRANCH:
            text += _sample(list(argument[1][0]))
        elif code is op.SUBPATTERN:
            text += _sample(list(argument[3]))
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            text += _sample(list(argument[2])) * max(1, argument[0])
        elif code is op.ATOMIC_GROUP:
            text += _sample(list(argument))
    return unicodedata.normalize("NFC", text)
