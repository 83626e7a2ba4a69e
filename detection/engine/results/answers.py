"""What a result says, by the tables: a failure, a refusal, something pending, nothing, a receipt, a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from detection.engine import tables
from detection.engine.identity import CONTAINERS, encoded
from detection.engine.results.json_text import JsonText
from detection.engine.results.masking import form_of
from detection.engine.substrings import contains_any, has_part
from detection.engine.tool_classes import ToolTraits

# What a result says of itself stands at its beginning, or in its last lines; a judgement for the time of a result.
MAX_HEAD_CHARS = 400
# Two or three last lines: an exit code, a summary; a judgement for the same reason.
MAX_TAIL_CHARS = 200
# One sentence; a longer text that contains `done` or `not found` says something else, too. A judgement.
MAX_WRAPPED_CHARS = 160
"""A longer text is no picture, no acknowledgement and no value."""
# Tools that find nothing repeat their query and give advice, in a few sentences; a judgement.
MAX_SHORT_CHARS = 400
"""A longer text is not empty, and does not say that nothing was found."""
# Larger objects carry data, and a failure in them stands in the head; a judgement for the time of a result.
_MAX_JSON_CHARS = 2048
# A verdict has a few fields of a word each; judgements, not measured.
_MAX_RECORD_VALUES, _MAX_RECORD_CHARS = 12, 24
# A receipt names its id at its beginning; what follows is compared as it is.
_MAX_RECEIPT_CHARS = 512


def _pattern(says: str, *, plain: bool = False, at_start: bool = False) -> re.Pattern[str]:
    found = (row for row in tables.rows("answers", says=says) if row.get("plain") or not plain)
    return tables.pattern(found, at_start=at_start)


_PLAIN_BEGINS_FAILED = _pattern("begins_failed", plain=True, at_start=True)
_NOT_OF_PROGRAMS = tables.pattern(
    (row for row in tables.rows("answers", says="failure") if row.get("of") != "programs"), at_start=True
)
# What the host refused is no output of a program.
_FAILURE = tables.pattern(
    (row for says in ("failure", "refusal") for row in tables.rows("answers", says=says)), at_start=True
)
_REFUSAL = _pattern("refusal", at_start=True)
_ENDS_FAILED = _pattern("ends_failed")
# A named exit code and the end of the line before it; longer outputs end so, too, if what they show has failed.
_MAX_EXIT_CHARS, _MAX_EXIT_LINES = 40, 3
_UNMADE = _pattern("unmade", at_start=True)
_PLAIN_WORDS = re.compile(r"[^\W_]+")
# A date or a duration with its label, such as `Execution time: ~`; a judgement, not measured.
_MAX_MOMENT_CHARS, _MOMENT_WORDS = 60, 3
_REJECTION = _pattern("rejection", at_start=True)
_BEGINS_FAILED = tables.pattern(
    (row for says in ("begins_failed", "failure", "refusal") for row in tables.rows("answers", says=says)),
    at_start=True,
)
# Rows with the same parts are checked together.
_PENDINGS = {
    parts: tuple(tables.compiled(row["pattern"]) for row in rows)
    for parts, rows in groupby(tables.rows("answers", says="pending"), lambda row: tables.parts([row]))
}
_BEGINS_PENDING = _pattern("begins_pending", at_start=True)
_ACKNOWLEDGED, _PLAIN_ACKNOWLEDGED = _pattern("acknowledged"), _pattern("acknowledged", plain=True)
_PICTURE, _PLAIN_PICTURE = _pattern("picture"), _pattern("picture", plain=True)
_NOTHING_ROWS = tables.rows("answers", says="nothing")
_NOTHING_FOUND = re.compile("|".join(row["pattern"] for row in _NOTHING_ROWS))
_PLAIN_NOTHING_FOUND = tables.pattern(row for row in _NOTHING_ROWS if row.get("plain"))
_NOTHING_FOUND_PARTS = tables.parts(_NOTHING_ROWS)
# Begins a sentence or a value.
_SENTENCE = ".:!?~\"'([{>*#,;-"
_BEGINS = rf" {{0,3}}\W?(?:{'|'.join(map(re.escape, _NOTHING_FOUND_PARTS))})"
_NOTHING_BEGINS = re.compile(rf"\A{_BEGINS}")
# Begins with a set of characters, so that the scan can skip what cannot match.
_NOTHING_BEGINS_LATER = re.compile(rf"[{re.escape(_SENTENCE)}]{_BEGINS}")
_EMPTY = _pattern("empty")
_FRAMES = tuple(
    (row["parts"][0], row["parts"][1:], re.compile(row["frame"]))
    for name in tables.hosts()
    for row in tables.table(name)
    if "frame" in row
)
_DECLINED, _DONE = _pattern("declined"), _pattern("done", at_start=True)
_DECLINED_PARTS = tables.parts(tables.rows("answers", says="declined"))

_NOTHING = frozenset(("", "[]", "{}", "()", "null", "none", '""', "''", "[[]]"))
_EMPTY_PARTS = ('""', "[]", "{}", "null")
# What runners wrap around an output: tags, and a named exit code.
_TAGGED = re.compile(
    r"(?i)<(return_?code|exit_?code|status)>\s*-?\d{1,3}\s*</\1>|</?[a-z_][\w -]{0,40}>"
    r"|\b(?:return|exit)(?:[ _-]?(?:code|status))?[ :=]{1,2}-?\d{1,3}\b\W?"
)
# `false`, `36.0`, `[(0,)]`, `{"available": false}`, `{"state": "off"}`
_VALUE = re.compile(
    r"(?i)[\[({\s]{0,6}(?:\"?[a-z_]\w{0,40}\"? ?[:=] ?)?\"?(?:true|false|yes|no"
    r"|on|off|open|closed|up|down|online|offline|(?:un)?available|enabled|disabled|(?:in)?active"
    r"|pass(?:ed|es)?|fail(?:s|ed)?|(?:in)?valid|(?:un)?healthy|allowed|positive|negative|neutral|normal|unknown"
    r"|[-+]?\d{1,20}(?:[.,]\d{1,20})?(?: ?[%$€])?)\"?[\])},.\s]{0,6}"
)
# A few short fields, such as `{"condition": "cloudy", "celsius": 7}`: a weather that many towns have in common.
_FEW_VALUES = re.compile(
    r'(?i)\{(?: ?"[\w-]{1,40}" ?: ?(?:"[\w.%$€+-]{0,24}"|-?\d[\d.,]{0,20}|true|false|null) ?,?){1,3} ?\}'
)
# What identifies or dates a receipt: any word with a digit in it, and whatever is masked already.
_FIGURES = re.compile(r"(?<![\w~])[#$€£]?\w*[\d~][\w~]*(?:[.:,/-]\w*[\d~][\w~]*)*")
# The same from its first digit on, so that the scan can skip what cannot match; and where such a word began before.
_FROM_DIGIT = re.compile(r"[\d~][\w~]*(?:[.:,/-]\w*[\d~][\w~]*)*")
_BEGAN_BEFORE = re.compile(r"~(?<=[\w#$€£]~)")
# The same by its label, where it has no digit: `"id": "kXbQzPwa"`, `with id abc-def`. It begins with a set of
# characters, so that the scan can skip what cannot match.
_NAMED_IDS = re.compile(
    r'(["iIrR\u0130\u0131](?:(?<=")'
    r'(?i:\w{0,40}(?:id|ref|reference|number|hash|sha|token|url|link|etag|cursor)")\s{0,3}:'
    r'|(?<!\w.)(?i:(?<=i)d|(?<=r)ef(?:erence)?)\b[:=#]?)[ #]{0,3})("[^"]{0,400}"|(?<=[ #:=])[\w-]+)'
)
_NAMED_ID_PARTS = ('"', "id", "ref")
_HASHES = re.compile(
    r"\b[iI][dD]\b[ :=#]{1,3}[\w-]+|\b(?=[0-9a-f]{0,63}?[a-f])(?=[a-f]{0,63}?\d)[0-9a-f]{7,64}\b"
)
# Whatever `_HASHES` matches contains seven hexadecimal digits, or one of these.
_HEX_KINDS = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_SHORTEST_HASH = b"0" * 7
_ID_PARTS = ("id ", "id:", "id=", "id#")
# What a receipt calls an id, a number or a reference, or a word that looks like one. Nothing secret has these names.
_GIVEN_ID = re.compile(
    r'(?i)"(?:\w{0,30}id|\w{0,30}number|ref|reference)"\s{0,3}:\s{0,3}(?:"([\w.:#/-]{1,40})"|(\d{1,20}))'
    r"|\b(?:id|number|no\.?|ref|reference)\b[ :=#]{1,3}(?=[\w-]{0,40}?\d)([\w-]{1,40})"
    r"|\b((?-i:[A-Z]{1,8})-\d{1,20})\b|(?<!\w)(#\d{1,12})\b"
)
_ONLY_MASKED = re.compile(r"[\s~\W]*")


def _columns(says: str, *, plain: bool = False) -> frozenset[str]:
    return frozenset(
        name
        for row in tables.rows("json_answers", says=says)
        if row.get("plain") or not plain
        for name in row["fields"]
    )


_FAILURES = tables.rows("json_answers", says="failure")
_SUCCESSES = tables.rows("json_answers", says="success")
_BESIDE = _columns("beside")
_WRAPPERS, _PLAIN_WRAPPERS = _columns("wrapper"), _columns("wrapper", plain=True)
_FAILURE_FIELDS, _FAILURE_PARTS = _columns("failure"), tables.parts(_FAILURES)
_TELLING_FIELDS = _FAILURE_FIELDS | _columns("success")


def failed(content: str, is_error: bool | None, traits: ToolTraits, parsed: JsonText, *, plain: bool) -> bool:
    """Return whether a result is an error: by the word of the client, or by what it says itself.

    Where the client calls it none, what a tool reads or a program prints may begin like an error: it has to have the
    form of one.
    """
    if is_error or plain:
        return is_error if is_error is not None else _PLAIN_BEGINS_FAILED.match(content) is not None
    if content[:1] == "{" and len(content) <= _MAX_JSON_CHARS and contains_any(content, _FAILURE_PARTS):
        fields = parsed.object_of(content)
        if fields is not None:
            return is_failed_object(fields)
    if traits.reads and (is_error is False or traits.reads_errors):
        return len(content) <= MAX_HEAD_CHARS and _NOT_OF_PROGRAMS.match(content) is not None
    runs_programs = traits.tool_class == "fallible" and is_error is False
    if (_FAILURE if runs_programs else _BEGINS_FAILED).match(content) is not None:
        return True
    return not runs_programs and _ends_failed(content)


def _ends_failed(content: str) -> bool:
    """Return whether the last of a few lines says that a program failed."""
    tail = content[-_MAX_EXIT_CHARS:]
    return "exit" in tail and content.count("\n") < _MAX_EXIT_LINES and _ENDS_FAILED.search(tail) is not None


def is_doubtful(content: str) -> bool:
    """Return whether what only begins like an error may be what was to be read."""
    return content[:1] != "{" and _FAILURE.match(content) is None


def is_unmade(content: str) -> bool:
    """Return whether the short answer of a write says that there was nothing to change, or that it changed nothing."""
    return len(content) <= MAX_WRAPPED_CHARS and _UNMADE.match(content) is not None


def is_moment(text: str) -> bool:
    """Return whether a masked text has a time, a date or a duration, and hardly anything else."""
    return "~" in text and len(text) <= _MAX_MOMENT_CHARS and len(_PLAIN_WORDS.findall(text)) <= _MOMENT_WORDS


def is_failed_object(fields: Mapping[str, Any]) -> bool:
    """Return whether an object says that its call failed."""
    named = {form_of(str(name)): value for name, value in fields.items()}
    if _TELLING_FIELDS.isdisjoint(named) or any(_has(row, named) for row in _SUCCESSES):
        return False
    return any(_has(row, named) for row in _FAILURES)


def _has(row: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    if "hollow" in row and not is_hollow(named.get(row["hollow"], "nothing")):
        return False
    if "needs" in row and not any(named.get(name) for name in row["needs"]):
        return False
    for name in row["fields"]:
        value = named.get(name)
        if value is None:
            continue
        if "values" in row:
            known = value.lower() if isinstance(value, str) else value
            if any(known == one and type(known) is type(one) for one in row["values"]):
                return True
        elif "ends" in row:
            ends = isinstance(value, str) and value.lower().endswith(tuple(row["ends"]))
            if ends and _only_beside(named, name):
                return True
        elif "at_least" in row:
            is_code = type(value) is int and row["at_least"] <= value < row["below"]
            if is_code and _only_beside(named, name):
                return True
        elif isinstance(value, str | dict | list) and value and _only_beside(named, name):
            return True
    return False


def _only_beside(named: Mapping[str, Any], name: str) -> bool:
    """Return whether nothing but what belongs to a failure stands beside a field."""
    return all(
        other == name or other in _BESIDE or other in _FAILURE_FIELDS or is_hollow(value)
        for other, value in named.items()
    )


def is_refused(text: str) -> bool:
    """Return whether an error says that the host did not run the call."""
    return _REFUSAL.match(text[:MAX_HEAD_CHARS]) is not None


def is_rejected(text: str) -> bool:
    """Return whether a refusal says that a person refused."""
    return _REJECTION.match(text[:MAX_HEAD_CHARS]) is not None


def is_pending(text: str) -> bool:
    """Return whether a result says at its beginning or its end that what was asked for is not there yet."""
    if len(text) > MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        text = f"{text[:MAX_HEAD_CHARS]}\n{text[-MAX_TAIL_CHARS:]}"
    lowered = text.lower()
    if _BEGINS_PENDING.match(lowered):
        return True
    for parts, patterns in _PENDINGS.items():
        if has_part(lowered, parts) and any(pattern.search(lowered) for pattern in patterns):
            return True
    return False


def is_empty(text: str, parsed: JsonText, *, plain: bool) -> bool:
    """Return whether a result is empty, however wrapped: `[]`, `<output></output>`, `{"exit_code":0,"output":""}`."""
    if len(text) > (MAX_WRAPPED_CHARS if plain else MAX_SHORT_CHARS):
        return False
    return is_nothing(text if plain else without_frame(text), parsed, plain=plain)


def is_nothing(text: str, parsed: JsonText, *, plain: bool) -> bool:
    """Return whether a short text without a frame is empty."""
    if len(text) > MAX_WRAPPED_CHARS and text[:1] != "{":
        return False
    if text.lower() in _NOTHING or (not plain and _EMPTY.fullmatch(text)):
        return True
    if text[:1] == "{":
        if not any(nothing in text for nothing in _EMPTY_PARTS):
            return False
        fields = parsed.object_of(text)
        if fields is None:
            return False
        if plain:
            return not any(value for name, value in fields.items() if form_of(name) not in _PLAIN_WRAPPERS)
        own = {form_of(name): value for name, value in fields.items()}
        content = [value for name, value in own.items() if name not in _WRAPPERS]
        return bool(content) and all(map(is_hollow, content))
    return (
        text[:1] in ("<erER" if plain else "<erER[(")
        and _TAGGED.sub("", text).strip(" []()").lower() in _NOTHING
    )


def without_frame(text: str) -> str:
    """Return the output of a command without what its host writes around it."""
    for first, others, frame in _FRAMES:
        if first in text and all(part in text for part in others):
            text = frame.sub("", text).strip()
    return text


def is_hollow(value: Any) -> bool:
    """Return whether a value contains nothing: it is empty, zero, or only repeats the call, at any depth."""
    if isinstance(value, str):
        return _ONLY_MASKED.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(map(is_hollow, value.values()))
    if isinstance(value, list):
        return all(map(is_hollow, value))
    return not value


def says_nothing_found(text: str, *, plain: bool) -> bool:
    """Return whether a text says that nothing was found; in a longer one, a sentence must begin so."""
    if plain:
        return len(text) <= MAX_WRAPPED_CHARS and _PLAIN_NOTHING_FOUND.search(text) is not None
    if len(text) > MAX_SHORT_CHARS or not contains_any(text, _NOTHING_FOUND_PARTS):
        return False
    lowered = text.lower()
    if len(text) <= MAX_WRAPPED_CHARS:
        return _NOTHING_FOUND.search(lowered) is not None
    if _NOTHING_BEGINS.match(lowered) is None and _NOTHING_BEGINS_LATER.search(lowered) is None:
        return False
    return any(
        not (before := lowered[: found.start()].rstrip()) or before[-1] in _SENTENCE
        for found in _NOTHING_FOUND.finditer(lowered)
    )


def is_acknowledgement(text: str, *, plain: bool) -> bool:
    """Return whether a text says that something is done, and nothing else."""
    if len(text) > MAX_WRAPPED_CHARS:
        return False
    return (_PLAIN_ACKNOWLEDGED if plain else _ACKNOWLEDGED).fullmatch(text) is not None


def is_picture(text: str, *, plain: bool) -> bool:
    """Return whether a text only stands for a picture."""
    if len(text) > MAX_WRAPPED_CHARS:
        return False
    return (_PLAIN_PICTURE if plain else _PICTURE).fullmatch(text) is not None


def is_value(text: str) -> bool:
    """Return whether a text is a bare number or Boolean, or an object with a few short values."""
    if len(text) > MAX_WRAPPED_CHARS:
        return False
    return _VALUE.fullmatch(text) is not None or (text[0] == "{" and _FEW_VALUES.fullmatch(text) is not None)


def is_record(text: str, parsed: JsonText) -> bool:
    """Return whether a text is an object of a few short values, some of them maybe in an object of their own."""
    fields = parsed.object_of(text) if text[:1] == "{" else None
    if not fields:
        return False
    values: list[Any] = []
    for value in fields.values():
        values += value.values() if isinstance(value, dict) else (value,)
    return len(values) <= _MAX_RECORD_VALUES and all(map(_is_short, values))


def _is_short(value: Any) -> bool:
    return len(value) <= _MAX_RECORD_CHARS if isinstance(value, str) else not isinstance(value, CONTAINERS)


def is_declined(text: str) -> bool:
    """Return whether a result that is not an error begins by saying that the write did not happen."""
    head = text[:MAX_HEAD_CHARS]
    return (
        contains_any(head, _DECLINED_PARTS)
        and _DONE.match(text) is None
        and _DECLINED.search(head) is not None
    )


def receipt_of(text: str) -> str:
    """Return a receipt without what tells it from the next one: ids, numbers, times and hashes."""
    head = text[:_MAX_RECEIPT_CHARS]
    if contains_any(head, _NAMED_ID_PARTS):
        head = _NAMED_IDS.sub(r"\1~", head)
    head = _FROM_DIGIT.sub("~", head)
    if _BEGAN_BEFORE.search(head):
        head = _FIGURES.sub("~", head)
    return head + text[_MAX_RECEIPT_CHARS:]


def without_hashes(text: str) -> str:
    """Return the answer of a command without hashes and ids that are called so; other figures stay."""
    if len(text) > MAX_HEAD_CHARS:
        return text
    may_match = _SHORTEST_HASH in encoded(text).translate(_HEX_KINDS) or has_part(text.lower(), _ID_PARTS)
    return _HASHES.sub("~", text) if may_match else text


def id_in(text: str) -> str:
    """Return the id that a receipt gives to what was done, as it is written there; empty if it names none."""
    found = _GIVEN_ID.search(text, 0, MAX_HEAD_CHARS)
    return "" if found is None else next(filter(None, found.groups()), "")
