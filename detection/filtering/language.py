"""The filter language: ``agent:browser detector:cycle,repeat -tool:bash cost:>0.1 "exact words"``.

Terms are separated by spaces and must all match. A term is a word, which is searched for in the texts of the list, or a
field with a colon and its values, of which one must match. A minus before a term negates it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

MAX_LENGTH: Final = 1_000
"""Maximum number of characters in a filter."""
MAX_VALUES: Final = 40
"""Maximum number of words and values in a filter, and thereby of terms."""
OPERATORS: Final = (">=", "<=", ">", "<")
_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,39}):")
_BARE = re.compile(r'[^\s,"]+')
_WORD = re.compile(r'[^\s"]+')
_PLAIN = re.compile(r'[^\s,"*]+')


class FilterError(ValueError):
    """A filter that cannot be applied.

    Attributes
    ----------
    detail
        What is wrong and what is allowed, for people.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = "".join(char if char.isprintable() else "\ufffd" for char in detail)


@dataclass(frozen=True, slots=True)
class Value:
    """A value as written; in a quoted value, no character has a special meaning."""

    text: str
    is_quoted: bool = False

    def __str__(self) -> str:
        if not self.is_quoted:
            return self.text
        return '"' + self.text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a filter.

    Attributes
    ----------
    field
        Lower case; empty for a word.
    operator
        One of `OPERATORS`, or empty for equality.
    values
        Not empty; one of them must match.
    """

    field: str
    values: tuple[Value, ...]
    operator: str = ""
    is_negated: bool = False

    def with_values(self, change: Callable[[str], str]) -> Term:
        """Return the term with changed values, in which no character has a special meaning."""
        texts = [change(value.text) for value in self.values]
        if all(value.text == text for value, text in zip(self.values, texts, strict=True)):
            return self
        values = zip(self.values, texts, strict=True)
        return replace(self, values=tuple(one if one.text == text else exact(text) for one, text in values))

    def __str__(self) -> str:
        field = f"{self.field}:{self.operator}" if self.field else ""
        return ("-" if self.is_negated else "") + field + ",".join(map(str, self.values))


def term(field: str, *values: str) -> Term:
    """Return the term that selects exactly these values."""
    return Term(field, tuple(exact(value) for value in values))


def exact(text: str) -> Value:
    """Return the value that matches only this text, in quotes if a character has a special meaning."""
    is_plain = _PLAIN.fullmatch(text) and not text.startswith((">", "<", "=")) and ".." not in text
    return Value(text, is_quoted=not is_plain)


def write(terms: Iterable[Term]) -> str:
    """Return terms as text; `parse` returns the same terms again."""
    return " ".join(map(str, terms))


def without(terms: Iterable[Term], fields: Collection[str]) -> tuple[Term, ...]:
    """Return the terms of other fields."""
    return tuple(one for one in terms if one.field not in fields)


@lru_cache(maxsize=256)
def parse(text: str) -> tuple[Term, ...]:
    """Return the terms of a filter, in order. Recent filters are remembered: a page reads the same few for many links.

    Raises
    ------
    FilterError
        For a filter that is too long, an open quote, or a field without a value. Reads every character once.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(f"A filter can have at most {MAX_LENGTH:,} characters.")
    if "\x00" in text:
        raise FilterError("A filter cannot contain a NUL character.")
    reader = _TermReader(text)
    terms = []
    while reader.has_more():
        terms.append(reader.term())
    return tuple(terms)


class _TermReader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.count = text, 0, 0

    def has_more(self) -> bool:
        """Skip spaces and return whether something follows."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    def is_at_end_of_term(self) -> bool:
        return self.at >= len(self.text) or self.text[self.at].isspace()

    def term(self) -> Term:
        is_negated = self.text[self.at] == "-"
        if is_negated:
            self.at += 1
            if self.is_at_end_of_term():
                raise FilterError("A term must follow `-` without a space.")
        found = _FIELD.match(self.text, self.at)
        if found is None:
            return Term("", (self.value(_WORD),), "", is_negated)
        self.at = found.end()
        operator = next((one for one in OPERATORS if self.text.startswith(one, self.at)), "")
        self.at += len(operator)
        if self.is_at_end_of_term():
            raise FilterError(f"`{found[0]}{operator}` needs a value.")
        values = [self.value(_BARE)]
        while self.at < len(self.text) and self.text[self.at] == ",":
            self.at += 1
            if self.is_at_end_of_term():
                raise FilterError(f"A value of `{found[1]}` must follow the comma without a space.")
            values.append(self.value(_BARE))
        if not self.is_at_end_of_term():
            raise FilterError("A space must follow a quoted value.")
        return Term(found[1].lower(), tuple(values), operator, is_negated)

    def value(self, bare: re.Pattern[str]) -> Value:
        self.count += 1
        if self.count > MAX_VALUES:
            raise FilterError(f"A filter can have at most {MAX_VALUES} words and values.")
        if self.text[self.at] == '"':
            return self.quoted()
        found = bare.match(self.text, self.at)
        if found is None:
            raise FilterError("A value is missing before the comma.")
        self.at = found.end()
        return Value(found[0])

    def quoted(self) -> Value:
        start = self.at
        parts: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return Value("".join(parts), is_quoted=True)
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\"):
                self.at += 1
                character = self.text[self.at]
            parts.append(character)
            self.at += 1
        raise FilterError(f"The quote at character {start + 1} is not closed.")
