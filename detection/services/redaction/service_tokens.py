"""Finds tokens and keys of services, by the forms of the table ``service_tokens``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import re2

from detection.engine import tables

Found = tuple[int, int, str]
"""Start and end of a secret in a text, and the name of its mark."""

_CLASSES = {
    "digit": "0-9",
    "hex": "0-9a-fA-F",
    "letter": "A-Za-z",
    "upper": "A-Z0-9",
    "alnum": "A-Za-z0-9",
    "word": "A-Za-z0-9_-",
    "dotted": "A-Za-z0-9_.=-",
    "base64": "A-Za-z0-9_+/=-",
}
_OF_LETTERS = ("digit", "hex", "letter", "upper", "alnum", "uuid")
"""Classes of which a token ends where a word does."""
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_EDGE = r"(?:\b|_)"
"""Where a token begins or ends: names join it to other words by underscores."""
_PART = re.compile(
    r"<(?P<kind>uuid|[a-z0-9]+|\[[^\]]+\])(?: (?P<count>\d+(?:-\d+|\+)?))?>|(?P<sign>[(|)])|(?P<text>[^<(|)]+)"
)
_DIFFERENT_CHARACTERS = 9
"""Of a token, which is random; 32 random hexadecimal digits have at least so many in all but one of 100,000."""
_DIFFERENT_BEHIND_SIGN = 4
"""Of what follows a beginning such as ``ghp_``, which no base64 has: only placeholders such as ``xxxx`` have fewer."""
_LEAST_BEGINNING = 4
"""Characters of a beginning with its sign: with fewer, words of other texts begin alike."""
_CHOICE = re.compile(r"\(([^|()]*)[^()]*\)")
_HINT_CHARACTERS = 3
"""Characters of a hint behind the beginning of a form: fewer are in many words, more take time for new texts."""
_NO_NAME = re.compile(r"[^a-z0-9]+")
_BESIDE = (
    r"(?i)({words})[\w. \t-]{{0,32}}[\"'`\\\s]{{0,4}}(?:\|\||[=:>,?]{{1,3}})[\"'`\\\s=]{{0,6}}"
    r"([A-Za-z0-9_.=:+/%-]{{12,}})"
)
"""A name with the name of a service in it, and its value."""


@dataclass(frozen=True, slots=True)
class ServiceToken:
    """One form of token; a row of the table.

    Attributes
    ----------
    mark
        Name of the mark that replaces it.
    pattern
        Of RE2, which needs linear time on any text.
    hint
        A pattern that each text with such a token contains; empty for one that is found by its name.
    beginning
        How many characters of it tell what it is, such as ``ghp_``; 0 where others begin so, too.
    """

    mark: str
    pattern: Any
    hint: str
    needs_digit: bool
    stands_alone: bool
    beginning: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> ServiceToken:
        """Return the token of a row."""
        flags = "" if row.get("exact") else "(?i)"
        return cls(
            mark_of(row["service"]),
            re2.compile(flags + pattern_of(row["form"])),
            "" if "beside" in row else row.get("hint") or hint_of(row["form"]),
            row.get("digit", False),
            row.get("alone", False),
            beginning_of(row["form"]),
        )

    def is_token(self, text: str, start: int, end: int) -> bool:
        """Return whether what matches the form is a token where it stands."""
        token = text[start:end]
        if self.beginning:
            if len({*token[self.beginning :]}) < _DIFFERENT_BEHIND_SIGN:
                return False
        elif len({*token}) < min(len(token) // 2, _DIFFERENT_CHARACTERS):
            return False  # a run of zeros in base64, such as that of a picture
        if self.needs_digit and not any(map(str.isdigit, token)):
            return False
        beside = text[start - 1 : start] + text[end : end + 1]
        return not self.stands_alone or not any(char.isalnum() or char in "._-+/" for char in beside)


def beginning_of(form: str) -> int:
    """Return how many characters of a form say by themselves whose token it is, such as ``ghp_``; 0 if none do."""
    text = _CHOICE.sub(r"\1", form.partition("<")[0])
    return len(text) if len(text) >= _LEAST_BEGINNING and text.endswith(("_", "-")) else 0


def mark_of(service: str) -> str:
    """Return the name of the mark for tokens of a service."""
    return f"{_NO_NAME.sub('-', service.lower()).strip('-')}-token"


def pattern_of(form: str) -> str:
    """Return the pattern of a form."""
    parts = [*_PART.finditer(form)]
    text = "".join(map(_pattern_of_part, parts))
    starts_word = parts[0]["text"] or parts[0]["sign"] or parts[0]["kind"] in (*_OF_LETTERS, "word")
    ends_word = parts[-1]["kind"] in _OF_LETTERS and not (parts[-1]["count"] or "").endswith("+")
    return (_EDGE if starts_word else "") + f"({text})" + (_EDGE if ends_word else "")


def _pattern_of_part(part: re.Match[str]) -> str:
    if part["text"] is not None:
        return re.escape(part["text"])
    if part["sign"] is not None:
        return "(?:" if part["sign"] == "(" else part["sign"]
    if part["kind"] == "uuid":
        return _UUID
    count = part["count"]
    if count.endswith("+"):
        return f"{_class_of(part)}{{{count[:-1]},}}"
    return f"{_class_of(part)}{{{count.replace('-', ',')}}}"


def _class_of(part: re.Match[str]) -> str:
    kind = part["kind"]
    return kind if kind.startswith("[") else f"[{_CLASSES[kind]}]"


def hint_of(form: str) -> str:
    """Return a short pattern for what each token of a form contains: its beginning, or its longest plain text."""
    parts = [*_PART.finditer(form)]
    first = next((at for at, part in enumerate(parts) if part["kind"]), len(parts))
    if first:
        head = "".join(map(_pattern_of_part, parts[:first]))
        if first == len(parts) or parts[first]["kind"] == "uuid":
            return _EDGE + head
        least = int(parts[first]["count"].rstrip("+").partition("-")[0])
        return rf"{_EDGE}{head}{_class_of(parts[first])}{{{min(least, _HINT_CHARACTERS)}}}"
    longest = max((part["text"] for part in parts if part["text"]), key=len)
    return re.escape(longest)


def _hints() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    hints = re2.Set.SearchSet(options)
    for token in TOKENS:
        hints.Add(token.hint)
    hints.Compile()
    return hints


_ROWS = tables.table("service_tokens")
SERVICES = tuple(dict.fromkeys(row["service"] for row in _ROWS))
TOKENS = tuple(ServiceToken.of_row(row) for row in _ROWS if "beside" not in row)
_NAMED = [(row["beside"], ServiceToken.of_row(row)) for row in _ROWS if "beside" in row]
_BY_WORD = {
    word: [token for words, token in _NAMED if word in words]
    for word in dict.fromkeys(word for words, _ in _NAMED for word in words)
}
_BESIDE_WORD = re2.compile(_BESIDE.format(words="|".join(_BY_WORD)))
_TOKEN_HINTS = _hints()
_AT_EDGES = [token.hint.removeprefix(_EDGE) for token in TOKENS if token.hint.startswith(_EDGE)]
_ELSEWHERE = [token.hint for token in TOKENS if not token.hint.startswith(_EDGE)]
TOKEN_HINT = "|".join((f"{_EDGE}(?:{'|'.join(_AT_EDGES)})", *_ELSEWHERE))
"""With the edge once: an automaton with one for each token is slower to build."""
WORD_HINT = "|".join(_BY_WORD)


def find_tokens(text: str) -> Iterator[Found]:
    """Yield the tokens that are recognised by their form."""
    for at in sorted(_TOKEN_HINTS.Match(text) or ()):
        token = TOKENS[at]
        for found in token.pattern.finditer(text):
            start, end = found.span(1)
            if token.is_token(text, start, end):
                yield start, end, token.mark


def find_beside_names(text: str) -> Iterator[Found]:
    """Yield the values of names with the name of a service in them that have a form of this service."""
    for found in _BESIDE_WORD.finditer(text):
        start, _ = found.span(2)
        value = found[2].rstrip(".:")
        for token in _BY_WORD[found[1].lower()]:
            if token.pattern.fullmatch(value) and token.is_token(text, start, start + len(value)):
                yield start, start + len(value), token.mark
                break
