"""Identity of results: masking of times and ids, fingerprints of results and errors."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson

from detection.engine.identity import Keyer, dump, encoded, parse
from detection.engine.memory import EMPTY, ERROR, OK
from detection.engine.provider_trouble import Trouble, trouble_of
from detection.engine.tool_classes import ToolTraits

MAX_MASKED_CHARS = 8192
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
_VOLATILE = re.compile(_VOLATILE_FORMS)
# The same for ASCII text, without Unicode digits and letters: twice as fast.
_VOLATILE_ASCII = re.compile(_VOLATILE_FORMS, re.ASCII)
# ASCII text in kinds of characters: digits, separators of dates and decimals, and units of time with the x of an
# address.
_KINDS = bytes.maketrans(b"0123456789/:.mhdwyunx", b"0" * 10 + b"-" * 3 + b"s" * 8)
# Whatever `_VOLATILE_ASCII` matches contains one of these kinds.
_KINDS_OF_VOLATILE = (b"0-0", b"0s", b"0 s", b"0" * 10)
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
# What coding agents add to each result: "Chunk ID: 0fe9ea" (Codex), "<shellId: 7 completed with exit code 1>" (Copilot
# CLI), "<total_tokens>181985 tokens left</total_tokens>" (Claude Code).
_AGENT_NUMBER = re.compile(r"\b(Chunk ID: |shellId: |total_tokens>)[0-9a-f]{1,12}\b")
_AGENT_LABELS = ("Chunk ID: ", "<shellId: ", "<total_tokens>")
_REQUEST_LABELS = ("equest", "req_", "req-", "req ")

# Fields of JSON results that identify the request or the time, never the answer.
_VOLATILE_FIELDS = frozenset(
    (
        "request_id",
        "requestid",
        "trace_id",
        "traceid",
        "span_id",
        "correlation_id",
        "timestamp",
        "server_time",
        "pid",
        "pgid",
    )
)

# Each of them contains one of these: a fast check that mostly avoids parsing.
_FIELD_PARTS = ("request", "trace", "span_id", "correlation", "time", "pid")

_NOTHING = frozenset(("", "[]", "{}", "()", "null", "none", '""', "''", "[[]]"))
_ACKNOWLEDGED = re.compile(
    r"(?i)(?:ok|okay|done|success|successful|successfully|succeeded|true|yes|committed|saved|updated|created"
    r"|written|sent|deleted|applied|accepted|added|removed|clicked|typed|pressed|filled|selected|scrolled|noted"
    r"|your (?:command|action) ran successfully and did not produce any output)[.!]?"
)
# What runners wrap around an output: tags, and a named exit code.
_TAGGED = re.compile(
    r"(?i)<(return_?code|exit_?code|status)>\s*-?\d{1,3}\s*</\1>|</?[a-z_][\w -]{0,40}>"
    r"|\b(?:return|exit)(?:[ _-]?(?:code|status))?[ :=]{1,2}-?\d{1,3}\b\W?"
)
_EXIT_FIELDS = frozenset(("exit", "exit_code", "exitcode", "returncode", "return_code", "status", "code"))
_MAX_WRAPPED_CHARS = 160
# `false`, `36.0`, `[(0,)]`, `{"available": false}`
_VALUE = re.compile(
    r"(?i)[\[({\s]{0,6}(?:\"?[a-z_]\w{0,40}\"? ?[:=] ?)?\"?(?:true|false|yes|no"
    r"|[-+]?\d{1,20}(?:[.,]\d{1,20})?(?: ?[%$€])?)\"?[\])},.\s]{0,6}"
)
# What stands for a picture in a text: what it shows may be new.
_PICTURE = re.compile(
    r"(?i)[\[<(](?:image|screenshot|picture|photo)\b[^\]>)]{0,60}[\]>)]|screenshot (?:was )?(?:saved|taken"
    r"|captured|successful)\b.{0,80}"
)
# What searches say that find nothing; the query may follow.
_NOTHING_FOUND = re.compile(
    r"(?i)\b(?:no (?:\w{1,20} ){0,2}(?:results?|match(?:es)?|hits?|files?|items?|records?|entries|rows|documents?"
    r"|pages?)\b|nothing (?:was |has been |like that )?found|not found\b|0 (?:results|match(?:es)?|hits|files"
    r"|items|records|rows|documents)\b)"
)
_LOOKS_FAILED = re.compile(
    r"(?i)\W{0,3}(?:\w{0,30}(?:error|exception)\b|traceback \(most recent|fatal:|failed\b)"
)
# Where in a text something is wrong: it moves with every change above.
_POSITION = re.compile(
    r"[:lcpoLCPO](?:(?<=:)\d+:\d+"
    r"|(?<!\w.)(?i:(?<=l)ines?|(?<=c)ol(?:umns?)?|(?<=c)har(?:acter)?|(?<=p)osition|(?<=o)ffset)[ :=]{0,2}\d+)"
)
# What the client writes in the place of the end of a long text, or of bytes.
_CUT_BY_CLIENT = re.compile(
    r"\[(?:cut by loopguard-client: \d+ characters|\d+ bytes), sha256 [0-9a-f]{32}\]\s*\Z"
)
_MAX_CUT_CHARS = 200
_WORDS = re.compile(r"(\w+)")
# Several words of an argument are one: a path, a name, a phrase.
_MASKED = re.compile(r"[/.]{0,3}~(?:\W{1,2}~)*")


@dataclass(slots=True)
class ResultOutcome:
    """Identity of a result.

    Attributes
    ----------
    status : str
        `OK`, `ERROR` or `EMPTY`.
    digest : str
        Fingerprint of the masked result.
    error_digest : str or None
        Fingerprint of an error without the words of its call's arguments and without numbers of lines and columns.
    is_evidence : bool
        False where an identical result means nothing: an empty one, a bare "ok", or the stand-in for a picture.
    is_value : bool
        Whether a result is a bare number or Boolean, which many different calls have in common.
    is_picture : bool
        Whether the text only stands for a picture, which may show something new.
    is_cut : bool
        Whether the end of the text was cut off before it came here, so that only a digest of it is known.
    text, raw : str
        The result masked and as received.
    keyer : Keyer
        The project's digests, for what a detector keeps of the text.
    trouble : str
        What trouble of the provider an error reports; see `provider_trouble`. Nothing for tools that often fail, such
        as a shell.
    """

    status: str
    digest: str
    error_digest: str | None
    is_evidence: bool
    text: str
    raw: str
    keyer: Keyer
    trouble: Trouble = ""
    is_value: bool = False
    is_picture: bool = False
    is_cut: bool = False


def evaluate_result(
    content: str | None, is_error: bool | None, traits: ToolTraits, keyer: Keyer, sketch: str = ""
) -> ResultOutcome:
    """Identify a result.

    Parameters
    ----------
    content : str or None
        The text of the result.
    is_error : bool or None
        None lets the text decide: it is an error if it begins like one.
    traits : ToolTraits
        Names the fields that change without meaning.
    keyer : Keyer
        The project's digests.
    sketch : str
        Word sketch of the call's arguments; these words are masked in errors.

    Returns
    -------
    ResultOutcome
        Costs one pass over the first 8,192 characters, and a digest of the rest.
    """
    raw = content or ""
    failed = is_error if is_error is not None else bool(_LOOKS_FAILED.match(raw))
    text = normalise(raw, traits.volatile_result_fields)
    digest = keyer.digest(b"error" if failed else b"result", encoded(text))
    if failed:
        cause = _POSITION.sub("~", text)
        if sketch:
            cause = without_words(cause, sketch, keyer)
        error_digest = keyer.digest(b"cause", encoded(cause))
        trouble = trouble_of(text) if traits.tool_class != "fallible" else ""
        return ResultOutcome(ERROR, digest, error_digest, not _is_empty(text), text, raw, keyer, trouble)
    if len(text) > _MAX_WRAPPED_CHARS:
        return ResultOutcome(OK, digest, None, True, text, raw, keyer)
    if _PICTURE.fullmatch(text):
        return ResultOutcome(OK, digest, None, False, text, raw, keyer, is_picture=True)
    if _is_empty(text):
        return ResultOutcome(EMPTY, digest, None, False, text, raw, keyer)
    is_evidence, is_value = not _ACKNOWLEDGED.fullmatch(text), _VALUE.fullmatch(text) is not None
    return ResultOutcome(OK, digest, None, is_evidence, text, raw, keyer, is_value=is_value)


def is_cut(content: str) -> bool:
    """Return whether the client has sent a digest in the place of the end of a result, or of the whole."""
    return _CUT_BY_CLIENT.search(content[-_MAX_CUT_CHARS:]) is not None


def found_nothing(outcome: ResultOutcome) -> bool:
    """Return whether a search found nothing: an empty result, or a short one that says so, maybe with its query."""
    if outcome.status == OK:
        return len(outcome.text) <= _MAX_WRAPPED_CHARS and _NOTHING_FOUND.search(outcome.text) is not None
    return outcome.status == EMPTY


def _is_empty(text: str) -> bool:
    """Return whether a result is empty, however wrapped: `[]`, `<output></output>`, `{"exit_code":0,"output":""}`."""
    if len(text) > _MAX_WRAPPED_CHARS:
        return False
    if text.lower() in _NOTHING:
        return True
    if text[:1] == "{":
        if not any(nothing in text for nothing in ('""', "[]", "{}", "null")):
            return False
        try:
            fields = parse(text)
        except ValueError:
            return False
        return isinstance(fields, dict) and not any(
            value for name, value in fields.items() if name.lower() not in _EXIT_FIELDS
        )
    return text[:1] in "<erER" and _TAGGED.sub("", text).strip().lower() in _NOTHING


def normalise(text: str, volatile_fields: Collection[str] = ()) -> str:
    """Return the text with times, dates, durations, ids, addresses, ANSI codes and spaces masked; other digits stay."""
    if text[:1] in ("{", "[") and len(text) <= MAX_JSON_CHARS:
        text = _without_fields(text, volatile_fields)
    head, tail = text[:MAX_MASKED_CHARS], text[MAX_MASKED_CHARS:]
    if "\x1b" in head:
        head = _ANSI.sub("", head)
    # A space is the only white space that is printable, so most results need not be split.
    lines = head.replace("\n", " ").strip()
    head = lines if lines.isprintable() and "  " not in lines else " ".join(head.split())
    if head.count("-") >= 4:
        head = _UUID.sub("~", head)
    is_ascii = head.isascii()
    if not is_ascii:
        head = _VOLATILE.sub("~", head)
    elif _may_be_volatile(head):
        head = _VOLATILE_ASCII.sub("~", head)
    # Months and days begin with a capital letter.
    lower = head == head.lower()
    if not lower:
        head = _DATE_WORDS.sub("~", head)
    # In lower-case ASCII, every labelled id contains one of these two.
    plain = lower and is_ascii and "id" not in head and "req_" not in head
    if not plain and _may_name_an_id(head):
        head = _LABELLED_ID.sub(r"\1\2~", head)
    for label in _AGENT_LABELS:
        if label in head:
            head = _AGENT_NUMBER.sub(r"\1~", head)
            break
    return head + tail if tail else head


def _may_be_volatile(text: str) -> bool:
    """Return whether ASCII text may contain a time, a duration or an address; a fast check before a slow pattern."""
    kinds = text.encode().translate(_KINDS)
    for volatile in _KINDS_OF_VOLATILE:  # noqa: SIM110 - a loop costs half of what a generator costs
        if volatile in kinds:
            return True
    return False


def _may_name_an_id(text: str) -> bool:
    """Return whether the text may contain a labelled id: a fast check before a slow pattern."""
    for label in _ID_LABELS:
        if label in text:
            return True
    return "eq" in text and any(label in text for label in _REQUEST_LABELS)


def _without_fields(text: str, volatile_fields: Collection[str]) -> str:
    lowered = text.lower()
    for part in _FIELD_PARTS:
        if part in lowered:
            break
    else:
        if not any(name.lower() in lowered for name in volatile_fields):
            return text
    dropped = _VOLATILE_FIELDS.union(volatile_fields) if volatile_fields else _VOLATILE_FIELDS
    try:
        return dump(_pruned(parse(text), dropped)).decode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return text


def _pruned(value: Any, dropped: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {
            name: _pruned(item, dropped) if isinstance(item, dict | list) else item
            for name, item in value.items()
            if name not in dropped and name.lower() not in dropped
        }
    if isinstance(value, list):
        return [_pruned(item, dropped) if isinstance(item, dict | list) else item for item in value]
    return value


def without_words(text: str, sketch: str, keyer: Keyer) -> str:
    """Return the text with the words of the arguments masked, except three-digit codes, which name an error."""
    # Words at the odd places, and what separates them at the even ones.
    parts = _WORDS.split(text[:2048])
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
    return _MASKED.sub("~", "".join(parts)) + text[2048:]


def as_text(content: Any) -> str | None:
    """Return a result as text; anything other than text becomes compact JSON."""
    if content is None or isinstance(content, str):
        return content
    return orjson.dumps(content, default=str).decode()
