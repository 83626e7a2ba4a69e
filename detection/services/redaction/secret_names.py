"""Reads the names of fields and variables: which of them have secrets as values, by the table ``secret_names``."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from detection.engine import tables

SECRET_KINDS = ("secret", "phrase")
"""Kinds of names whose values are secrets, whatever they look like."""
MAX_CACHED_LETTERS = 65_536
"""Letters whose folded form is remembered: more than any text but noise has."""
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BETWEEN = re.compile(r"[\W_]+")
_OTHER_LETTERS = re.compile(r"[^\x00-\x7f]+")
_REMOVED = ("Cf", "Mn", "Me")
"""Categories of characters that do not show, and of marks on letters."""
_LONGEST = 4
"""Words of the longest name of the table."""


class _FoldedLetters(dict[int, str]):
    """By the code of a character, what it is read as: one character, or an empty text."""

    def __missing__(self, code: int) -> str:
        found = _folded_letter(chr(code))
        if len(self) < MAX_CACHED_LETTERS:
            self[code] = found
        return found


def _folded_letter(char: str) -> str:
    if unicodedata.category(char) in _REMOVED:
        return ""
    compatible = unicodedata.normalize("NFKC", char)
    base = [
        one for one in unicodedata.normalize("NFD", compatible) if unicodedata.category(one) not in _REMOVED
    ]
    if len(base) != 1:
        base = [compatible if len(compatible) == 1 else char]
    return _LOOK_ALIKES.get(base[0], base[0])


_LOOK_ALIKES: dict[str, str] = {
    char: row["letter"] for row in tables.rows("secret_names", kind="letter") for char in row["words"]
}
_FOLDED = _FoldedLetters()


def folded(text: str) -> tuple[str, list[int] | None]:
    """Return a text as a person reads it, with plain Latin letters for those that look like them.

    Accents and characters that do not show are removed.

    Returns
    -------
    tuple of str, and list of int or None
        The folded text, and the position in `text` of each of its characters and of its end; None if they are equal.
    """
    if text.isascii():
        return text, None
    plain = _OTHER_LETTERS.sub(_folded_run, text)
    if len(plain) == len(text):
        return plain, None
    places = [at for at, char in enumerate(text) if char.isascii() or _FOLDED[ord(char)]]
    return plain, [*places, len(text)]


def _folded_run(found: re.Match[str]) -> str:
    return found[0].translate(_FOLDED)


def _spellings(words: str) -> set[str]:
    """Return what words of the table are folded to, in small letters, in capital letters, and with a capital letter."""
    return {folded(form)[0].lower() for form in (words, words.upper(), words.title())}


def _together(words: str) -> str:
    return "".join(_BETWEEN.split(words))


_NAME_KINDS = ("secret", "phrase", "code", "weak")
_ROWS = [row for kind in _NAME_KINDS for row in tables.rows("secret_names", kind=kind)]
_KINDS: dict[str, str] = {
    _together(form): row["kind"] for row in _ROWS for words in row["words"] for form in _spellings(words)
}
_JOINED = tuple(
    (_together(form), row["kind"])
    for row in _ROWS
    if row.get("joined")
    for words in row["words"]
    for form in _spellings(words)
)
_HARMLESS = frozenset(
    f"{before} {words}"
    for row in tables.rows("secret_names", kind="harmless")
    for before in row["before"]
    for words in row["words"]
)
_BEHIND = frozenset(tables.words("secret_names", kind="behind"))
_PLAIN = frozenset(tables.words("secret_names", kind="plain"))
_NAMED = frozenset(tables.words("secret_names", kind="named"))
_VALUED = frozenset(map(_together, tables.words("secret_names", kind="valued")))
LAST_WORDS = frozenset(
    _BETWEEN.split(form)[-1]
    for row in _ROWS
    for words in row["words"]
    for form in _spellings(words)
    if " " in words
)
"""Last words of names of several words, which may be apart in a text."""


def _pattern() -> str:
    """Return a pattern of RE2 for the names of the table, in any spelling; it also matches in the middle of words."""
    forms = dict.fromkeys(form for row in _ROWS for words in row["words"] for form in _spellings(words))
    # A name that contains a shorter one of the table is found by that.
    short = [form for form in forms if not any(other != form and other in form for other in forms)]
    return "|".join(r"[_\-. ']?".join(map(re.escape, _BETWEEN.split(form))) for form in short)


NAMES = _pattern()
NAMED = "|".join(sorted(_NAMED))


@lru_cache(maxsize=4096)
def key_kind(key: str) -> str:
    """Return the kind of a name as in the table, or an empty text; ``userPassword`` is ``user_password``."""
    words = _words(key)
    while words:
        if _is_harmless(words):
            return ""
        kind = _kind_of_last(words)
        if kind:
            return kind
        last = words.pop()
        bare = last.rstrip("0123456789")
        if last in _BEHIND or not bare:
            continue
        if bare == last:
            return ""
        words.append(bare)
    return ""


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN.split(CAMEL.sub("_", folded(name)[0]).lower()) if word]


def _kind_of_last(words: list[str]) -> str:
    for count in range(min(_LONGEST, len(words)), 0, -1):
        kind = _KINDS.get("".join(words[-count:]))
        if kind:
            return kind
    return next((kind for form, kind in _JOINED if words[-1].endswith(form)), "")


def _is_harmless(words: list[str]) -> bool:
    return any(
        f"{words[-count - 1]} {' '.join(words[-count:])}" in _HARMLESS
        for count in range(1, min(3, len(words)))
    )


@lru_cache(maxsize=4096)
def names_a_name(key: str) -> bool:
    """Return whether a field contains a name, whose value is in another field beside it."""
    words = _words(key)
    return bool(words) and words[-1] in _NAMED


@lru_cache(maxsize=4096)
def names_a_value(key: str) -> bool:
    """Return whether a field contains the value of a name that is in another field beside it."""
    return "".join(_words(key)) in _VALUED


def is_plain_word(value: str) -> bool:
    """Return whether a value without quotes is a word that no secret is, or begins a sentence."""
    return value.rstrip(".!?)").lower() in _PLAIN
