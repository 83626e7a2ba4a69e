"""Masks what changes with every result and says nothing: times, durations, ids, addresses, and the call's own words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import is_not
from typing import Any

from detection.engine import tables
from detection.engine.identity import CONTAINERS, Keyer, dump, encoded, parse

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
# Programs that measure themselves write fractions of milliseconds: psql, bun, go.
_FORMS = _VOLATILE_FORMS.replace(r"\.\d+ ?(?:s|", r"\.\d+ ?(?:[mµμun]?s|")
_PLAIN_VOLATILE, _VOLATILE = re.compile(_VOLATILE_FORMS), re.compile(_FORMS)
# The same for ASCII text, without Unicode digits and letters: twice as fast.
_PLAIN_VOLATILE_ASCII, _VOLATILE_ASCII = re.compile(_VOLATILE_FORMS, re.ASCII), re.compile(_FORMS, re.ASCII)
# The same for other text in which all digits are those of ASCII.
_PLAIN_VOLATILE_DIGITS, _VOLATILE_DIGITS = (
    re.compile(forms.replace(r"\d", "[0-9]")) for forms in (_VOLATILE_FORMS, _FORMS)
)
_ASCII = bytes(range(128))
_DIGIT = re.compile(r"\d")
_MICRO = "µ"
# ASCII text in kinds of characters: digits, separators of dates and decimals, and units of time with the x of an
# address.
_KINDS = bytes.maketrans(b"0123456789/:.mhdwyunx", b"0" * 10 + b"-" * 3 + b"s" * 8)
# Whatever `_VOLATILE_ASCII` matches contains one of these kinds, or a unit after a space.
_KINDS_OF_VOLATILE = (b"0-0", b"0s", b"0" * 10)
_KIND_OF_UNIT = b"0 s"
_UNITS_AFTER_SPACE = (" ago", " ms", " us", " ns")
# From this length on, a few searches are faster than a look at every character; measured.
_LONG_TEXT_CHARS = 400
# White space of ASCII beside spaces and line ends.
_OTHER_SPACES = "\t\v\f\r\x1c\x1d\x1e\x1f"
# By definition: 8-4-4-4-12.
_DASHES_OF_UUID = 4
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?!\w)")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_DAY_OF_MONTH = r"[a-z]{0,6} {1,2}\d{1,2}(?:,? \d{4})?\b(?: (?:[A-Z]{3,4} )?\d{4}\b)?"
_DATE_WORDS = re.compile(
    "|".join(
        [
            f"{day}[a-z]{{0,6}},? (?:{'|'.join(_MONTHS)}){_DAY_OF_MONTH}"
            for day in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
        ]
        + [month + _DAY_OF_MONTH for month in _MONTHS]
    )
)
_LABELLED_ID = re.compile(
    r"(?i)\b((?:request|req|trace|span|correlation|process)[ _-]?id|pg?id)(\W{1,4})(?=\w*\d)[\w-]+"
    r"|\breq_[A-Za-z0-9]{8,}"
)
_ID_LABELS = ("race", "span", "orrelation", "rocess", "pid", "PID", "pgid", "PGID")
_REQUEST_LABELS = ("equest", "req_", "req-", "req ")


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
# Each text that has such a field contains one of these: a fast check that mostly avoids parsing.
_FIELD_PARTS = tuple(part for row in _ROWS if "fields" in row for part in row["parts"])
_PLAIN_FIELD_PARTS = tuple(part for row in _PLAIN_ROWS if "fields" in row for part in row["parts"])
_SEPARATORS = str.maketrans("", "", "_-")
# Objects with more names are tables by key, which do not come twice; a judgement for the memory of a process.
_MAX_CACHED_NAMES = 32
# What hosts write stands at the beginning, or all over a text.
_MAX_LABELLED_CHARS = 2048

# Where in a text something is wrong: it moves with every change above.
_POSITION = re.compile(
    r"[:lcpoLCPO](?:(?<=:)\d+:\d+"
    r"|(?<!\w.)(?i:(?<=l)ines?|(?<=c)ol(?:umns?)?|(?<=c)har(?:acter)?|(?<=p)osition|(?<=o)ffset)[ :=]{0,2}\d+)"
)
# What the client writes in the place of the end of a long text, or of bytes.
_CUT_BY_CLIENT = re.compile(
    r"\[(?:cut by loopguard-client: \d+ characters|\d+ bytes), sha256 [0-9a-f]{32}\]\s*\Z"
)
# The notice that the client writes is shorter, with any length in it.
_MAX_CUT_CHARS = 200
# An error repeats its arguments at its beginning; a judgement for the time of a result.
_MAX_WORDS_CHARS = 2048
_WORDS = re.compile(r"(\w+)")
# Several words of an argument are one: a path, a name, a phrase.
_MASKED = re.compile(r"[/.]{0,3}~(?:\W{1,2}~)*")


def normalise(text: str, volatile_fields: Collection[str] = (), *, plain: bool = True) -> str:
    """Return the text with times, dates, durations, ids, addresses, ANSI codes and spaces masked; other digits stay.

    Without `plain`, what formats and hosts are known to add is masked, too.
    """
    if text[:1] in ("{", "[") and len(text) <= MAX_JSON_CHARS:
        text = _without_fields(text, volatile_fields, plain=plain)
    head, tail = text[:MAX_MASKED_CHARS], text[MAX_MASKED_CHARS:]
    if "\x1b" in head:
        head = _ANSI.sub("", head)
    # Most results have single spaces and line ends, and need not be split.
    lines = head.replace("\n", " ").strip()
    is_spaced = "  " not in lines and _has_single_spaces(lines)
    head = lines if is_spaced else " ".join(head.split())
    if head.count("-") >= _DASHES_OF_UUID and _may_have_a_uuid(head):
        head = _UUID.sub("~", head)
    is_ascii = head.isascii()
    if not is_ascii and _has_other_digits(head):
        head = (_PLAIN_VOLATILE if plain else _VOLATILE).sub("~", head)
    elif _may_be_volatile(head):
        if is_ascii:
            head = (_PLAIN_VOLATILE_ASCII if plain else _VOLATILE_ASCII).sub("~", head)
        else:
            head = (_PLAIN_VOLATILE_DIGITS if plain else _VOLATILE_DIGITS).sub("~", head)
    # Months and days begin with a capital letter.
    lowered = head.lower()
    if head != lowered:
        head = _DATE_WORDS.sub("~", head)
    # In ASCII, every labelled id contains one of these two.
    names_no_id = is_ascii and "id" not in lowered and "req_" not in lowered
    if not names_no_id and _may_name_an_id(head):
        head = _LABELLED_ID.sub(r"\1\2~", head)
    start = head if plain else head[:_MAX_LABELLED_CHARS]
    for part, label in _PLAIN_LABELS if plain else _LABELS:
        if part in start:
            head = label.sub(r"\g<kept>~", head)
    return head + tail if tail else head


def _may_be_volatile(text: str) -> bool:
    """Return whether a text may contain a time, a duration or an address, in digits of ASCII.

    A fast check before a slow pattern.
    """
    kinds = encoded(text).translate(_KINDS)
    for volatile in _KINDS_OF_VOLATILE:
        if volatile in kinds:
            return True
    if _KIND_OF_UNIT in kinds:
        for unit in _UNITS_AFTER_SPACE:
            if unit in text:
                return True
    return not text.isascii() and _MICRO in text


def _has_other_digits(text: str) -> bool:
    """Return whether a text has digits beyond ASCII."""
    others = encoded(text).translate(None, _ASCII)
    return _DIGIT.search(others.decode("utf-8", "surrogatepass")) is not None


def _has_single_spaces(text: str) -> bool:
    """Return whether the only white space of a text is spaces; False may be wrong."""
    # A space is the only white space that is printable.
    if len(text) < _LONG_TEXT_CHARS or not text.isascii():
        return text.isprintable()
    for space in _OTHER_SPACES:  # noqa: SIM110 - a loop costs half of what a generator costs
        if space in text:
            return False
    return True


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


def _may_name_an_id(text: str) -> bool:
    """Return whether the text may contain a labelled id: a fast check before a slow pattern."""
    for label in _ID_LABELS:
        if label in text:
            return True
    return "eq" in text and any(label in text for label in _REQUEST_LABELS)


def _without_fields(text: str, volatile_fields: Collection[str], *, plain: bool) -> str:
    lowered = text.lower()
    for part in _PLAIN_FIELD_PARTS if plain else _FIELD_PARTS:
        if part in lowered:
            break
    else:
        if not any(name.lower() in lowered for name in volatile_fields):
            return text
    try:
        pruned = _pruned(parse(text), frozenset(volatile_fields), plain=plain)
        return dump(pruned).decode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return text


def form_of(name: str) -> str:
    """Return the name of a field as the tables write it: `duration_ms` and `durationMs` are one."""
    return name.lower().translate(_SEPARATORS)


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
    return _POSITION.sub("~", text)


def without_words(text: str, sketch: str, keyer: Keyer) -> str:
    """Return the text with the words of the arguments masked, except three-digit codes, which name an error."""
    # Words at the odd places, and what separates them at the even ones.
    parts = _WORDS.split(text[:_MAX_WORDS_CHARS])
    words = parts[1::2]
    hidden = {
        word
        for word in set(words)
        # Single letters stay, and so do three-digit codes.
        if len(word) > 1
        and keyer.word_hashes[encoded(word)] in sketch
        and not (len(word) == 3 and word.isdigit())
    }
    if not hidden:
        return text
    parts[1::2] = ["~" if word in hidden else word for word in words]
    return _MASKED.sub("~", "".join(parts)) + text[_MAX_WORDS_CHARS:]
