"""Masks what changes with every result and says nothing: times, durations, ids, addresses, and the call's own words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import is_not
from typing import Any

from detection.engine import tables
from detection.engine.identity import CONTAINERS, Keyer, dump, encoded
from detection.engine.results.json_text import JsonText
from detection.engine.substrings import has_part, lower

# A screen or two: what changes with every result stands in it; a judgement for the time of a result.
MAX_MASKED_CHARS = 8192
# A longer object is masked as a text; a judgement for the time of a result.
MAX_JSON_CHARS = 65_536

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

# Every pattern begins with a set of characters, so that the scan can skip what cannot match; so does nearly every
# alternative, for the same reason.
_VOLATILE_FORMS = (
    # After its digits, every form continues in one of these ways; most numbers do not.
    r"\d(?<!\d\d)(?=\d{9}|\d*+(?:[-/:.]\d| ?[smhdwyunµ]|x))(?:"
    # 2026-11-21T12:00:00.123Z and its parts
    r"\d\d\d[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?Z| ?[+-]\d\d:?\d\d)?)?"
    # A clock, but no line:column of a compiler, which follows a colon.
    r"|(?:\d:\d\d(?<![\w:.]\d\d:\d\d)|:\d\d(?<![\w:.]\d:\d\d))(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?![\w:])"
    # Durations: 0.12s, 35 ms, 12s
    r"|(?<![\w.]\d)\d*+(?:\.\d+ ?(?:s|secs?|seconds?|m|mins?|minutes?)| [mµun]s|[mµun]s|s"
    # 9 seconds ago, 3h ago
    r"| ?(?:secs?|seconds?|mins?|minutes?|hours?|days?|weeks?|months?|years?|[mhdw]) ago)(?!\w)"
    # Seconds or milliseconds since 1970, from the year 2020 on
    r"|[6-9](?<=1[6-9])(?<![\w.-]1[6-9])\d{8}(?:\d{3})?(?:\.\d+)?(?!\w)"
    # Addresses
    r"|x(?<=0x)[0-9a-fA-F]{4,16})"
)
# Programs that measure themselves write fractions of milliseconds: psql, bun, go. A whole value in quotation marks is a
# figure of a ledger and no address.
_FORMS = _VOLATILE_FORMS.replace(r"\.\d+ ?(?:s|", r"\.\d+ ?(?:[mµμun]?s|").replace(
    "(?<=0x)", '(?<=0x)(?<!"0x)'
)
_PLAIN_VOLATILE, _VOLATILE = re.compile(_VOLATILE_FORMS), re.compile(_FORMS)
# The same for ASCII text, without Unicode digits and letters: twice as fast.
_PLAIN_VOLATILE_ASCII, _VOLATILE_ASCII = re.compile(_VOLATILE_FORMS, re.ASCII), re.compile(_FORMS, re.ASCII)
# The same for other text in which all digits are those of ASCII.
_PLAIN_VOLATILE_DIGITS, _VOLATILE_DIGITS = (
    re.compile(forms.replace(r"\d", "[0-9]")) for forms in (_VOLATILE_FORMS, _FORMS)
)
_ASCII = bytes(range(128))
_DIGIT = re.compile(r"\d")
_MICROS = ("\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}")
# Text in kinds of characters: digits, separators of dates, units of time with the x of an address, line ends as spaces,
# and any other white space of ASCII.
_OTHER_SPACES = b"\t\v\f\r\x1c\x1d\x1e\x1f"
_KINDS = bytes.maketrans(
    b"0123456789/mhdwyunx\n" + _OTHER_SPACES, b"0" * 10 + b"-" + b"s" * 8 + b" " + b"\t" * len(_OTHER_SPACES)
)
# Whatever `_VOLATILE_ASCII` matches contains a date, a clock, a duration, seconds since 1970 or what has passed since.
_VOLATILE_KINDS = re.compile(rb"0(?:-00-00|:00|\.0++ ?s|s|0{9}| s(?:s|\S{0,6} ago))")
# By definition: 8-4-4-4-12.
_DASHES_OF_UUID = 4
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?!\w)")
_DAY_OF_MONTH = r"[a-z]{0,6} {1,2}\d{1,2}(?:,? \d{4})?\b(?: (?:[A-Z]{3,4} )?\d{4}\b)?"


def _words_of(column: str) -> tuple[str, ...]:
    return tuple(word for row in tables.table("volatile") for word in row.get(column, ()))


def _date_words() -> re.Pattern[str]:
    """Return the pattern of a date in words: `Sat Nov 21`, `March 3, 2026`."""
    days, months = _words_of("days"), _words_of("months")
    after_days = (f"{day}[a-z]{{0,6}},? (?:{'|'.join(months)}){_DAY_OF_MONTH}" for day in days)
    return tables.compiled("|".join([*after_days, *(month + _DAY_OF_MONTH for month in months)]))


def _labelled_id() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern of `request_id=7` and the like, with what stands between, and a fast check before it.

    The pattern begins with the first letters of the labels. In text of `lower`, each label ends as the check says, with
    an id after it.
    """
    labels, marks = _words_of("labels"), _words_of("marks")
    firsts = dict.fromkeys(word[0] for word in (*labels, *marks))
    # Upper and lower case are the same, and for one of the letters that means a third one.
    first = "".join(f"{letter}{letter.upper()}{'ſ' if letter == 's' else ''}" for letter in firsts)
    rests = ("|".join(f"(?<={word[0]}){word[1:]}" for word in words) for words in (labels, marks))
    label, mark = rests
    pattern = rf"([{first}](?<!\w.)(?i:(?:{label})[ _-]?id|{mark}))(\W{{1,4}})(?=\w*\d)[\w-]+"
    last = "".join(dict.fromkeys(word[-1] for word in labels))
    before = last + "".join(word[-len("id") - 1] for word in marks)
    check = rf"id(?:(?<=[{last}][ _-]id)|(?<=[{before}]id))\W{{1,4}}\w*\d"
    return tables.compiled(pattern), tables.compiled(check)


_DATE_WORDS = _date_words()
_LABELLED_ID, _END_OF_LABEL = _labelled_id()
_REQUEST_ID = re.compile(r"[rR](?<!\w.)(?i:eq_[A-Za-z0-9]{8,})")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of JSON results that change without meaning, by the form of their names; see the table `volatile`."""

    anywhere: frozenset[str]
    beside: Mapping[str, frozenset[str]]
    holding: Mapping[str, str]


_TABLES = ("volatile", *tables.hosts())
_ROWS = [row for name in _TABLES for row in tables.table(name)]


def _fields_of(found: Iterable[Mapping[str, Any]]) -> _Fields:
    anywhere, beside, holding = set[str](), dict[str, frozenset[str]](), dict[str, str]()
    for row in found:
        names = row.get("fields", ())
        if "beside" in row:
            beside[row["beside"]] = beside.get(row["beside"], frozenset()).union(names)
        elif "holds" in row:
            holding |= dict.fromkeys(names, row["holds"])
        else:
            anywhere.update(names)
    return _Fields(frozenset(anywhere), beside, holding)


_Labels = tuple[tuple[str, re.Pattern[str]], ...]


def _labels_of(found: Iterable[Mapping[str, Any]]) -> _Labels:
    """Return each part with the pattern of its row; a second run of a pattern changes nothing more."""
    labelled = [(row["parts"], tables.compiled(row["text"])) for row in found if "text" in row]
    return tuple((part, pattern) for parts, pattern in labelled for part in parts)


_PLAIN_ROWS = [row for row in _ROWS if row.get("plain")]
_FIELDS, _PLAIN_FIELDS = _fields_of(_ROWS), _fields_of(_PLAIN_ROWS)
_LABELS, _PLAIN_LABELS = _labels_of(_ROWS), _labels_of(_PLAIN_ROWS)
_LABEL_PARTS, _PLAIN_LABEL_PARTS = (
    tables.parts([{"parts": [part.lower() for part, _ in labels]}]) for labels in (_LABELS, _PLAIN_LABELS)
)
# Each text that has such a field contains one of these: a fast check that mostly avoids parsing.
_FIELD_PARTS, _PLAIN_FIELD_PARTS = (
    tables.parts(row for row in rows if "fields" in row) for rows in (_ROWS, _PLAIN_ROWS)
)
# Objects with more names are tables by key, which do not come twice; a judgement for the memory of a process.
_MAX_CACHED_NAMES = 32
# What hosts write stands at the beginning, or all over a text.
_MAX_LABELLED_CHARS = 2048

# Where in a text something is wrong: it moves with every change above.
_POSITION = re.compile(
    r"[:lcpoLCPO](?:(?<=:)\d+:\d+"
    # The line of a file, which an extension ends.
    r"|(?:(?<=\.[a-z]:)|(?<=\.[a-z]{2}:)|(?<=\.(?!com|org|net|dev|app)[a-z]{3}:)|(?<=\.[a-z]{4}:))\d+(?![\w.]?\d)"
    r"|(?<!\w.)(?i:(?<=l)ines?|(?<=c)ol(?:umns?)?|(?<=c)har(?:acter)?|(?<=p)osition|(?<=o)ffset)[ :=]{0,2}\d+)"
)
# The same in other languages.
_NAMED_POSITION = tables.compiled(rf"(?i)(?:{'|'.join(_words_of('positions'))})[ :=]{{0,2}}\d{{1,9}}")
# What the client writes in the place of the end of a long text, or of bytes.
_CUT_BY_CLIENT = re.compile(
    r"\[(?:cut by loopguard-client: \d+ characters|\d+ bytes), sha256 [0-9a-f]{32}\]\s*\Z"
)
# The notice that the client writes is shorter, with any length in it.
_MAX_CUT_CHARS = 200
# An error repeats its arguments at its beginning; a judgement for the time of a result.
_MAX_WORDS_CHARS = 2048
_WORDS = re.compile(r"(\w+)")
# ASCII text with a space for whatever ends such a word: to split it as bytes is several times as fast.
_BREAKS = bytes(code if chr(code).isalnum() or chr(code) == "_" else ord(" ") for code in range(128)) + bytes(
    128
)
# Several words of an argument are one: a path, a name, a phrase, with the signs between and around them.
_MASKED = re.compile(r"(?:[^\w~]{0,6}~)+[^\w~]{0,6}")
# Three digits alone are a code, which names an error.
_FIGURE = re.compile(r"(?<![\w.~-])(?!\d{3}(?![\w%]))\d[\d.,]{0,20}(?<=\d)(?:x\d{1,9})?%?(?!\w)")


def normalise(
    text: str, volatile_fields: Collection[str] = (), parsed: JsonText | None = None, *, plain: bool = True
) -> str:
    """Return the text with times, dates, durations, ids, addresses, ANSI codes and spaces masked; other digits stay.

    Without `plain`, what formats and hosts are known to add is masked, too.
    """
    if text[:1] in ("{", "[") and len(text) <= MAX_JSON_CHARS:
        text = _without_fields(text, volatile_fields, parsed or JsonText(), plain=plain)
    head, tail = text[:MAX_MASKED_CHARS], text[MAX_MASKED_CHARS:]
    if "\x1b" in head:
        head = _ANSI.sub("", head)
    head, kinds = _single_spaced(head)
    if head.count("-") >= _DASHES_OF_UUID and _may_have_a_uuid(head):
        head = _UUID.sub("~", head)
    head = _without_times(head, kinds, plain=plain)
    lowered = lower(head)
    # Months and days begin with a capital letter.
    if head != lowered:
        head = _DATE_WORDS.sub("~", head)
    if _END_OF_LABEL.search(lowered):
        head = _LABELLED_ID.sub(r"\1\2~", head)
    if "req_" in lowered:
        head = _REQUEST_ID.sub("~", head)
    if has_part(lowered, _PLAIN_LABEL_PARTS if plain else _LABEL_PARTS):
        start = head if plain else head[:_MAX_LABELLED_CHARS]
        for part, label in _PLAIN_LABELS if plain else _LABELS:
            if part in start:
                head = label.sub(r"\g<kept>~", head)
    return head + tail if tail else head


def _single_spaced(text: str) -> tuple[str, bytes]:
    """Return the text with single spaces for its white space, and what `_KINDS` makes of it."""
    kinds = encoded(text).translate(_KINDS)
    lines = text.replace("\n", " ")
    # Most results have single spaces and line ends, and need not be split. Space beyond ASCII is not printable.
    if b"  " in kinds or b"\t" in kinds or not (text.isascii() or lines.isprintable()):
        text = " ".join(text.split())
        return text, encoded(text).translate(_KINDS)
    return lines.strip(" "), kinds


def _without_times(text: str, kinds: bytes, *, plain: bool) -> str:
    """Return the text with times, dates, durations and addresses masked."""
    if text.isascii():
        if _VOLATILE_KINDS.search(kinds):
            return (_PLAIN_VOLATILE_ASCII if plain else _VOLATILE_ASCII).sub("~", text)
    elif _has_other_digits(text):
        return (_PLAIN_VOLATILE if plain else _VOLATILE).sub("~", text)
    elif _VOLATILE_KINDS.search(kinds) or has_part(text, _MICROS):
        return (_PLAIN_VOLATILE_DIGITS if plain else _VOLATILE_DIGITS).sub("~", text)
    return text


def _has_other_digits(text: str) -> bool:
    """Return whether a text has digits beyond ASCII."""
    others = encoded(text).translate(None, _ASCII)
    return _DIGIT.search(others.decode("utf-8", "surrogatepass")) is not None


def _may_have_a_uuid(text: str) -> bool:
    """Return whether the first group of a UUID may be there: a fast check before a slow pattern."""
    start = text.find("-")
    while start >= 0:
        # Its first dash is the first of four, each five characters after the last.
        if (
            text[start + 5 : start + 6]
            == text[start + 10 : start + 11]
            == text[start + 15 : start + 16]
            == "-"
        ):
            return True
        start = text.find("-", start + 1)
    return False


def _without_fields(text: str, volatile_fields: Collection[str], parsed: JsonText, *, plain: bool) -> str:
    lowered = text.lower()
    if not has_part(lowered, _PLAIN_FIELD_PARTS if plain else _FIELD_PARTS) and not any(
        name.lower() in lowered for name in volatile_fields
    ):
        return text
    try:
        pruned = _pruned(parsed.value_of(text), frozenset(volatile_fields), plain=plain)
        return dump(pruned).decode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return text


def form_of(name: str) -> str:
    """Return the name of a field as the tables write it: `duration_ms` and `durationMs` are one."""
    return name.lower().replace("_", "").replace("-", "")


def _pruned(value: Any, own: frozenset[str], *, plain: bool) -> Any:
    """Return a value without the fields that change without meaning; the same object if it has none."""
    if isinstance(value, list):
        items = [_pruned(item, own, plain=plain) if isinstance(item, CONTAINERS) else item for item in value]
        return items if any(map(is_not, items, value)) else value
    names = tuple(value)
    find = _volatile_of if len(names) <= _MAX_CACHED_NAMES else _volatile_of.__wrapped__
    dropped, holding = find(names, own, plain)
    if holding:
        dropped = dropped.union(name for name, part in holding if _holds(value[name], part))
    inner = {
        name: pruned
        for name, item in value.items()
        if isinstance(item, CONTAINERS) and (pruned := _pruned(item, own, plain=plain)) is not item
    }
    if not dropped and not inner:
        return value
    return {name: inner.get(name, item) for name, item in value.items() if name not in dropped}


# Objects in one result have mostly the same names.
@lru_cache(maxsize=512)
def _volatile_of(
    names: tuple[str, ...], own: frozenset[str], plain: bool
) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Return which fields of an object change without meaning, and which do if their values hold something."""
    known = _PLAIN_FIELDS if plain else _FIELDS
    forms = {name: form_of(name) for name in names}
    anywhere = known.anywhere.union(*(known.beside[form] for form in forms.values() if form in known.beside))
    dropped = frozenset(
        name for name, form in forms.items() if form in anywhere or name in own or name.lower() in own
    )
    return dropped, tuple(
        (name, known.holding[form]) for name, form in forms.items() if form in known.holding
    )


def _holds(value: Any, part: str) -> bool:
    return isinstance(value, dict) and any(part in form_of(name) for name in value)


def is_cut(content: str) -> bool:
    """Return whether the client has sent a digest in the place of the end of a result, or of the whole."""
    end = content[-_MAX_CUT_CHARS:]
    return "sha256" in end and _CUT_BY_CLIENT.search(end) is not None


def without_positions(text: str) -> str:
    """Return the text with numbers of lines and columns masked."""
    return _NAMED_POSITION.sub("~", _POSITION.sub("~", text))


def without_figures(text: str) -> str:
    """Return an error with its figures masked, except three-digit codes, which name an error."""
    return _FIGURE.sub("~", text[:_MAX_WORDS_CHARS]) + text[_MAX_WORDS_CHARS:]


def without_words(text: str, sketch: str, keyer: Keyer) -> str:
    """Return the text with the words of the arguments masked, except three-digit codes, which name an error."""
    head = text[:_MAX_WORDS_CHARS]
    found = head.encode().translate(_BREAKS).decode().split() if head.isascii() else _WORDS.findall(head)
    # Single letters stay, and so do three-digit codes.
    words = [word for word in set(found) if len(word) > 1 and not (len(word) == 3 and word.isdigit())]
    hashed = keyer.word_hashes.of([*map(encoded, words)])
    hidden = {word for word, one in zip(words, hashed, strict=True) if one in sketch}
    if not hidden:
        return _MASKED.sub("~", head) + text[_MAX_WORDS_CHARS:] if "~" in head else text
    # Words at the odd places, and what separates them at the even ones.
    parts = _WORDS.split(head)
    parts[1::2] = ["~" if word in hidden else word for word in parts[1::2]]
    return _MASKED.sub("~", "".join(parts)) + text[_MAX_WORDS_CHARS:]
