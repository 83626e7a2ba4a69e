"""Finds the secrets in a text by the names before them: ``PGPASSWORD=x``, ``name: DB_PASSWORD`` with ``value: x``."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass

from detection.services.redaction.secret_names import (
    LAST_WORDS,
    NAMED,
    NAMES,
    is_plain_word,
    key_kind,
    names_a_name,
    names_a_value,
)

PAIR_CHARACTERS = 400
"""How far apart a name and its value may be: a few fields of one object."""
_WORDS_BEFORE = 48
"""Characters before a name in which its other words are looked for."""
_PLAIN = r"[^\s\"'`,;&<>\\]"
QUOTE = r"\\{0,3}[\"'`]"
VALUE = (
    r"(?:\\{0,3}\"(?P<double>[^\"\\\n]{3,4096})|\\{0,3}'(?P<single>[^'\\\n]{3,4096})"
    rf"|(?P<plain>{_PLAIN}{{4,512}}+))"
)
_BLOCK = r"(?:[|>][+-]?[ \t]{0,4}\r?\n[ \t]{1,64})?"
"""Before a value of YAML on a line of its own."""
_NAME = re.compile(
    r"(?<!\w)(?<!\w[.-])(?P<name>\w++(?:[.-]\w++)*+)(?:\\{0,3}[\"'`]\]?|\])?"
    r"\s{0,4}(?P<sign>=>|:=|[=:])\s{0,4}(?:b(?=['\"]))?"
)
_VALUE = re.compile(rf"{_BLOCK}(?!\d{{1,9}} bytes\b){VALUE}")
_REST = re.compile(rf"{_PLAIN}*+")
_CODE = re.compile(rf"(?:{QUOTE})?(?P<code>\d{{3,12}})(?![\w.])")
_LINE = re.compile(r"[^\r\n\"'`]{1,600}+")
"""More than the longest phrase."""
MAX_NAME_CHARACTERS = 128
_PHRASE_WORDS = range(3, 25)
_WORD_CHARACTERS = range(2, 25)
_EARLIER_WORDS = re.compile(r"(?:\w{1,24}[ '-]){1,3}\Z")
_CAPITAL = re.compile(r"\s{0,4}[A-Z]")
_NUMBER = re.compile(r"\A[-+]?[\d.,_]+(?:e[-+]?\d+)?%?\Z")
_WEAK_VALUE = re.compile(r"\A(?=\S*[\d!@#$%^&*:+/=~-])\S{6,}\Z")
_PUBLIC = re.compile(r"(?:ssh-|ecdsa-|sk-ssh-|-----BEGIN PUBLIC|https?://)|(?:[~.]{0,2}|[A-Za-z]:)[/\\][\w.]")
"""Public keys, addresses and paths, which fields for keys often contain."""
_PLAIN_VALUE = re.compile(
    # Masked; a placeholder, a variable or an expression of a program; an absolute path.
    r"(?i)\A(?:[*x.•…-]{3,}[.!?)]*|\?.*|(?-i:[a-z_]+=|(?:[A-Z][A-Z0-9_]*|[a-z]+(?:_[a-z]+)+)[)}\]]+)"
    r"|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*[)}\]]+"
    r"|[<{\[(].*|\$[{(]?\w.*|%[({\w].*|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?:[\[(].*)?|[A-Za-z_]\w*[\[(].*"
    r"|/(?:[\w.@+-]+/)+[\w.@+-]*)\Z"
)
_OPTION = re.compile(
    rf"(?<![\w-])--?(?P<name>[A-Za-z][\w.-]{{0,63}}+)(?:{QUOTE})?(?:\s{{1,4}}|=|,\s{{0,4}})(?![-=:|&])"
)
_VARIABLE = re.compile(
    r"(?i)(?<![^\s;&|])(?:ENV|ARG|setenv|setx)[ \t]{1,4}(?P<name>\w{1,64}+)[ \t]{1,4}(?![=:|&])"
)
_HEADER = re.compile(
    r"(?i)[\"'](?P<name>(?:proxy-)?authorization|(?:set-)?cookie|(?:[a-z]{1,20}-){1,4}[a-z]{1,20})[\"']"
    r"\s{0,4},\s{0,4}b?(?=[\"'])"
)
_HEADER_NAME = re.compile(r"(?i)authorization|cookie|[a-z]{1,24}(?:-[a-z]{1,24}){1,5}")
_ELEMENT = re.compile(
    r"<(?P<name>\w[\w:.-]{0,63}+)(?:\s[^<>]{0,200})?>\s{0,20}(?P<value>[^<>\s][^<>]{2,4096})(?=</)"
)
HINT = (
    rf"(?:{NAMES})[\w.\]-]*[\\\"'`\]]*\s*[:=]"
    rf"|(?:{NAMED})[\\\"'`]*\s*[:=]\s*[\\\"'`]*[\w.-]*(?:{NAMES})"
)


OPTION_HINT = rf"-[a-z-]*(?:{NAMES}|pass|auth|pat|bearer)"
VARIABLE_HINT = r"\b(?:env|arg|setenv|setx)[ \t]"
HEADER_HINT = r"[\"'](?:(?:proxy-)?authorization|(?:set-)?cookie|[a-z]+-[a-z-]+)[\"']\s*,"
ELEMENT_HINT = rf"<[\w:.-]*(?:{NAMES})"


@dataclass(slots=True)
class _Value:
    """A value in a text: its place, and the text that a reader sees there, without quotes only its beginning."""

    start: int
    end: int
    text: str
    is_quoted: bool


class _Values:
    """Reads the values of a text. Each character is read a bounded number of times, also where all have names."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._run = 0, 0
        """The last value without quotes: one that begins within it ends with it."""

    def at(self, place: int) -> _Value | None:
        """Return the value at a place, if there is one."""
        found = _VALUE.match(self._text, place)
        if found is None:
            return None
        group = str(found.lastgroup)
        start, end = found.span(group)
        if group == "plain":
            if not self._run[0] <= start < self._run[1]:
                rest = _REST.match(self._text, end)
                self._run = start, rest.end() if rest else end
            end = self._run[1]
        return _Value(start, end, found[group], group != "plain")


def find_named(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the secrets that stand beside their names."""
    values = _Values(text)
    pairs = _Pairs(text, values)
    for found in _NAME.finditer(text):
        place, name = found.end(), found["name"][-MAX_NAME_CHARACTERS:]
        kind = key_kind(name) or _kind_of_words(text, found)
        if kind == "weak" and found["sign"] == ":" and _CAPITAL.match(text, place):
            continue  # the output of a program, such as ``PASS: TestParser``
        if kind:
            secret = _secret(text, values, place, kind)
            if secret is not None:
                yield *secret, "assignment"
            continue
        for value, of_kind in pairs.read(found, name):
            if is_secret(value.text, of_kind, is_quoted=value.is_quoted):
                yield value.start, value.end, "assignment"


def find_options(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the values of command-line options whose name says so, also in lists of arguments."""
    values = _Values(text)
    for found in _OPTION.finditer(text):
        kind, value = key_kind(found["name"]), values.at(found.end())
        if kind and kind != "code":
            # Several are a number of them or their file. An option called `pass` has no other use, unlike a field.
            kind = (
                "weak"
                if found["name"].endswith(("s", "S")) and not found["name"].lower().endswith("pass")
                else "secret"
            )
        if kind and value and is_secret(value.text, kind, is_quoted=value.is_quoted):
            yield value.start, value.end, "option"


def find_variables(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the values of variables that are set without a sign of equality, where they look like secrets."""
    values = _Values(text)
    for found in _VARIABLE.finditer(text):
        value = values.at(found.end())
        if key_kind(found["name"]) and value and looks_secret(value.text):
            yield value.start, value.end, "environment"


def find_headers(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the values of headers in lists of pairs, such as ``("X-Api-Key", "x")``."""
    values = _Values(text)
    for found in _HEADER.finditer(text):
        kind, value = key_kind(found["name"]), values.at(found.end())
        if kind and value and not names_a_header(value.text) and is_secret(value.text, kind):
            yield value.start, value.end, "header-pair"


def find_elements(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the texts of XML elements whose name says so."""
    for found in _ELEMENT.finditer(text):
        kind = key_kind(found["name"])
        if kind and is_secret(found["value"].strip(), kind, is_quoted=False):
            yield *found.span("value"), "element"


def names_a_header(text: str) -> bool:
    """Return whether a text is the name of a header itself, as in a list of names."""
    return _HEADER_NAME.fullmatch(text) is not None


def _kind_of_words(text: str, found: re.Match[str]) -> str:
    """Return the kind of a name of several words, such as ``API key``; in a sentence its value may be harmless."""
    if found["name"].lower() not in LAST_WORDS:
        return ""
    earlier = _EARLIER_WORDS.search(text[max(0, found.start() - _WORDS_BEFORE) : found.start()])
    kind = key_kind(earlier[0] + found["name"]) if earlier else ""
    return "weak" if kind == "secret" else kind


def _secret(text: str, values: _Values, place: int, kind: str) -> tuple[int, int] | None:
    if kind == "code":
        code = _CODE.match(text, place)
        return code.span("code") if code else None
    value = values.at(place)
    if value is None:
        return None
    end = _end_of_phrase(text, value.start) if kind == "phrase" and not value.is_quoted else 0
    if end:
        return value.start, end
    is_one = is_secret(value.text, kind, is_quoted=value.is_quoted)
    return (value.start, value.end) if is_one else None


def _end_of_phrase(text: str, start: int) -> int:
    """Return where a phrase of several words ends that takes the rest of a line; 0 if there is none, or a sentence."""
    found = _LINE.match(text, start)
    line = found[0].rstrip() if found else ""
    words = line.split(" ")
    is_phrase = len(words) in _PHRASE_WORDS and all(
        word.isalpha() and len(word) in _WORD_CHARACTERS and not is_plain_word(word) for word in words
    )
    return start + len(line) if is_phrase else 0


class _Pairs:
    """Names and values in fields of their own, such as ``"name": "DB_PASSWORD", "value": "x"``, in any order."""

    def __init__(self, text: str, values: _Values) -> None:
        self._text, self._values = text, values
        self._named: tuple[int, str] | None = None
        self._value: _Value | None = None

    def read(self, found: re.Match[str], name: str) -> Iterator[tuple[_Value, str]]:
        """Read one more field; yield the value that now has a name, with the kind of this name."""
        if names_a_name(name):
            value = self._values.at(found.end())
            kind = key_kind(value.text) if value else ""
            earlier, self._value = self._value, None
            if earlier and self._are_together(earlier.end, found.start()):
                if kind:
                    yield earlier, kind
                self._named = None
            else:
                self._named = (found.end(), kind)
        elif names_a_value(name):
            value = self._values.at(found.end())
            named, self._named = self._named, None
            if named and self._are_together(named[0], found.start()):
                if named[1] and value:
                    yield value, named[1]
            else:
                self._value = value

    def _are_together(self, start: int, end: int) -> bool:
        return end - start <= PAIR_CHARACTERS and not any(char in "{}" for char in self._text[start:end])


def is_secret(value: str, kind: str, *, is_quoted: bool = True) -> bool:
    """Return whether the value of a name of a kind is a secret."""
    if kind == "code":
        return bool(_CODE.fullmatch(value))
    if kind == "weak":
        return looks_secret(value)
    return not (is_placeholder(value) if is_quoted else is_plain(value))


def is_plain(value: str) -> bool:
    """Return whether a value is a plain word, a placeholder, a mark, or an expression of a program."""
    return "[redacted:" in value or is_plain_word(value) or _PLAIN_VALUE.match(value) is not None


def looks_secret(value: str) -> bool:
    """Return whether the value of a weakly named field has to be a secret: no plain word, and a digit or sign in it."""
    if _PUBLIC.match(value) or _NUMBER.match(value):
        return False
    return bool(_WEAK_VALUE.match(value) or _is_login(value)) and not is_plain(value)


def _is_login(value: str) -> bool:
    """Return whether a value is a name and a password in base64."""
    try:
        name, colon, _ = base64.b64decode(value, validate=True).decode("ascii").partition(":")
    except ValueError:
        return False
    return bool(colon) and name.isprintable()


def is_placeholder(value: str) -> bool:
    """Return whether a value in quotes stands for another one."""
    return (
        value[0] in "<{"
        or value.startswith(("${", "$(", "%("))
        or "[redacted:" in value
        or not value.strip("*x.•…- ")
    )
