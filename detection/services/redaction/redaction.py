"""Removes secrets from events, before they are stored, logged, shown or forwarded.

A secret is replaced by a mark that names the rule that found it and is keyed per project: equal secrets keep equal
marks and different ones stay different, so identity and detection work on the marks, and the secret cannot be read or
guessed.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import re2

from detection.integrations.labels import (
    MAX_KEY_CHARACTERS,
    MAX_TAG_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    Labels,
)
from detection.services.redaction.named_values import is_secret, names_a_header
from detection.services.redaction.secret_names import (
    CAMEL,
    SECRET_KINDS,
    folded,
    key_kind,
    names_a_name,
    names_a_value,
)
from detection.services.redaction.secret_rules import (
    BASE64,
    PERCENT_ENCODED,
    PERCENT_HINT,
    PHRASE_HINT,
    RULES,
    hints_at,
    may_contain_secret,
)
from detection.services.redaction.seed_phrases import find_phrases
from detection.strict_json import Cleaner, JsonProblem, compact, loads

if TYPE_CHECKING:
    from detection.models import Project

MAX_NODES = 1_000_000
"""More values than an event can have, so that only the depth limits the walk."""
MAX_NAME_CHARACTERS = 128
"""Of a name with marks: the shortest column of names has these."""
_PROBE = 32
"""Characters of a text in base64 that are decoded first: they show that a file name or picture encodes no text."""
_FIELD = re.compile(r"\b([A-Za-z0-9][A-Za-z0-9_.-]{0,63}+)[\"']?\s{0,4}[=:]\s{0,4}[\"']?")
_FIELD_VALUE = re.compile(r"[^\s\"',;&]++")
_MARK_START = "[redacted:"
_MARK = re.compile(r"\[redacted:[a-z0-9-]{1,24}:[0-9a-f]{12}\]")
_SEPARATORS = re.compile(r"[_.\- ]+")
_OPTION = re.compile(r"--?[A-Za-z][\w-]{1,60}")
# Names of a few hundred characters, less than a megabyte of them; a judgement for the memory of a process.
_MAX_HARMLESS = 4096
_harmless: set[str] = set()
"""Names that were looked at and contain no secret by the rules of all projects."""


@dataclass(slots=True)
class _Span:
    """What is replaced in a text from `start` to `end`: by `text`, or by a mark of the kind `mark` if that is empty."""

    start: int
    end: int
    mark: str = ""
    text: str = ""


class _Spans:
    """Places of secrets in a text, in order and apart; marks that are in the text already are kept.

    Of two that overlap the first counts, but one that contains others takes their place.
    """

    def __init__(self, text: str) -> None:
        marks = _MARK.finditer(text) if _MARK_START in text else ()
        self._spans = [_Span(*mark.span(), text=mark[0]) for mark in marks]
        self._starts = [span.start for span in self._spans]

    def __iter__(self) -> Iterator[_Span]:
        return iter(self._spans)

    def __bool__(self) -> bool:
        return any(span.mark for span in self._spans)

    def overlapping(self, start: int, end: int) -> slice:
        """Return which spans have a character of this part of the text."""
        first = bisect.bisect_right(self._starts, start) - 1
        if first < 0 or self._spans[first].end <= start:
            first += 1
        return slice(first, bisect.bisect_left(self._starts, end))

    def add(self, span: _Span) -> None:
        """Add a place, unless it is known or a part of it is."""
        where = self.overlapping(span.start, span.end)
        known = self._spans[where]
        is_wider = all(span.start <= one.start and one.end <= span.end for one in known) and not (
            len(known) == 1 and known[0].start == span.start and known[0].end == span.end
        )
        if is_wider:
            self._spans[where] = [span]
            self._starts[where] = [span.start]


class Redactor:
    """Redactor with the rules of one project.

    Parameters
    ----------
    digest_secret
        The project's secret; keys the marks.
    names
        Names of more fields to redact, as `normalized_name` returns them; their mark is ``field``.
    patterns
        The project's own RE2 patterns; matches get the mark ``pattern``.
    """

    def __init__(
        self, digest_secret: bytes, names: frozenset[str] = frozenset(), patterns: tuple[str, ...] = ()
    ) -> None:
        self._secret = bytes(digest_secret)
        self._names = names
        self._patterns = _compiled(patterns)
        self.hits = 0

    @classmethod
    def of_project(cls, project: Project) -> Redactor:
        """Return a new redactor with the rules of a project."""
        names, patterns = frozenset(project.redacted_names), tuple(project.redaction_patterns)
        return cls(bytes(project.digest_secret), names, patterns)

    def text(self, text: str) -> str:
        """Return `text` with every secret that is recognised by its shape or name replaced by a mark."""
        text = self._text(self._without_patterns(text), decode=True)
        return self._named_fields(text) if self._names else text

    def may_change(self, names: Iterable[str]) -> bool:
        """Return whether `name` may change one of some names. Most of them came with the call before."""
        if self._patterns:
            return True
        unknown = {*names} - _harmless
        if not unknown:
            return False
        if may_contain_secret(folded("\n".join(unknown))[0]):
            return True
        if len(_harmless) > _MAX_HARMLESS:
            _harmless.clear()
        _harmless.update(unknown)
        return False

    def name(self, name: str) -> str:
        """Return the name of a session, an agent, a tool or the like with marks for the secrets in it.

        The same name is always the same, different ones stay different, and what was returned stays as it is: whoever
        knows the original name finds what it names. A name with marks has at most `MAX_NAME_CHARACTERS`.
        """
        if not self.may_change((name,)):
            return name
        cleaned = self._text(self._without_patterns(name), decode=False)
        if cleaned == name or len(cleaned) <= MAX_NAME_CHARACTERS:
            return cleaned
        digest = self._digest(name)
        return f"{cleaned[: MAX_NAME_CHARACTERS - len(digest) - 1]}~{digest}"

    def labels(self, labels: Labels) -> Labels:
        """Return tags and metadata without secrets; those in metadata are also found by the names of their keys."""
        if not any(labels):
            return labels
        values = loads(self.content(compact(dict(labels.metadata))).encode())
        metadata = {
            self.name(key)[:MAX_KEY_CHARACTERS]: str(value)[:MAX_VALUE_CHARACTERS]
            for key, value in values.items()
        }
        return Labels(tuple(self.name(tag)[:MAX_TAG_CHARACTERS] for tag in labels.tags), metadata)

    def _without_patterns(self, text: str) -> str:
        """Return a text with marks for what the project's own patterns match outside the marks in it."""
        for pattern in self._patterns:
            pieces, end = [], 0
            for mark in _MARK.finditer(text) if _MARK_START in text else ():
                pieces += [pattern.sub(self._pattern_mark, text[end : mark.start()]), mark[0]]
                end = mark.end()
            text = "".join((*pieces, pattern.sub(self._pattern_mark, text[end:])))
        return text

    def _pattern_mark(self, found: Any) -> str:
        return self._mark("pattern", found.group()) if found.group() else ""

    def content(self, text: str) -> str:
        """Redact arguments, a result or a message: by names and shapes where the text is JSON, else by shapes."""
        return self._json(text) if text[:1] in "{[" else self.text(text)

    def _json(self, text: str) -> str:
        # An escaped sign may hide where a word begins.
        if not (self._names or self._patterns or "\\" in text or hints_at(folded(text)[0])):
            return text
        try:
            value = Cleaner(MAX_NODES).value(loads(text))
        except JsonProblem:  # no JSON, or deeper than anything that is walked here
            return self.text(text)
        before = self.hits
        cleaned = self._walk(value, "")
        return text if self.hits == before else compact(cleaned)

    def _walk(self, value: Any, kind: str) -> Any:
        if isinstance(value, dict):
            return self._walk_fields(value, kind)
        if isinstance(value, list):
            return self._walk_items(value, kind)
        if isinstance(value, str):
            if value and kind and (kind in SECRET_KINDS or is_secret(value, kind)):
                return self._field(value)
            return self._json(value) if value[:1] in "{[" else self.text(value)
        if kind and value is not None and not isinstance(value, bool):
            return self._field(str(value)) if kind in SECRET_KINDS or is_secret(str(value), kind) else value
        return value

    def _field(self, value: str) -> str:
        return value if _MARK.fullmatch(value) else self._mark("field", value)

    def _walk_fields(self, fields: dict[str, object], kind: str) -> dict[str, object]:
        if kind in SECRET_KINDS:
            return {self._key(key): self._walk(inner, kind) for key, inner in fields.items()}
        kinds = {key: self._kind(key) or kind for key in fields}
        names = [
            name
            for key, name in fields.items()
            if isinstance(name, str) and not kinds[key] and names_a_name(key)
        ]
        of_value = next(filter(None, map(self._kind, names)), "")
        if of_value:
            kinds |= {key: of_value for key in fields if names_a_value(key)}
        return {self._key(key): self._walk(inner, kinds[key]) for key, inner in fields.items()}

    def _key(self, key: str) -> str:
        return self.text(key) if _may_be_secret(key) else key

    def _walk_items(self, items: list[Any], kind: str) -> list[Any]:
        """Redact a list, which may be a pair of a header or the arguments of a program."""
        walked = []
        named = ""
        for at, item in enumerate(items):
            walked.append(self._walk(item, kind if kind in SECRET_KINDS else named or kind))
            named = ""
            if isinstance(item, str):
                if _OPTION.fullmatch(item) and at + 1 < len(items) and not str(items[at + 1]).startswith("-"):
                    named = self._kind(item.lstrip("-"))
                elif len(items) == 2 and key_kind(item):
                    # Two names of fields are no pair: only a header, or a value that looks like a secret, is one.
                    is_header = names_a_header(item) and not names_a_header(str(items[1 - at]))
                    named = "secret" if is_header else "weak"
        return walked

    def _kind(self, key: str) -> str:
        return "secret" if self._names and normalized_name(key) in self._names else key_kind(key)

    def _named_fields(self, text: str) -> str:
        pieces, end = [], 0
        for field in _FIELD.finditer(text):
            if field.start() >= end and normalized_name(field[1]) in self._names:
                value = _FIELD_VALUE.match(text, field.end())
                if value is not None:
                    pieces += [text[end : field.end()], self._mark("field", value[0])]
                    end = value.end()
        return "".join([*pieces, text[end:]])

    def _text(self, text: str, *, decode: bool) -> str:
        plain, places = folded(text)
        spans = self._spans(plain, decode=decode)
        if not spans:
            return text
        pieces, end = [], 0
        for span in spans:
            start, after = (
                (span.start, span.end) if places is None else (places[span.start], places[span.end])
            )
            pieces.append(text[end:start])
            pieces.append(span.text or self._mark(span.mark, text[start:after]))
            end = after
        return "".join((*pieces, text[end:]))

    def _spans(self, text: str, *, decode: bool) -> _Spans:
        """Find the secrets in a folded text."""
        spans = _Spans(text)
        for hint in hints_at(text):
            if hint < len(RULES):
                for start, end, mark in RULES[hint].find(text):
                    spans.add(_Span(start, end, mark))
            elif hint == PHRASE_HINT:
                for start, end, mark in find_phrases(text):
                    spans.add(_Span(start, end, mark))
            elif decode and hint == PERCENT_HINT:
                for found in PERCENT_ENCODED.finditer(text):
                    self._add_percent_encoded(spans, found)
            elif decode:
                for found in BASE64.finditer(text):
                    if self._encodes_secret(found[0]):
                        spans.add(_Span(*found.span(), mark="base64"))
        return spans

    def _encodes_secret(self, encoded: str) -> bool:
        """Return whether a text is base64 of a text that contains a secret."""
        return bool(
            _plain_text(encoded[:_PROBE])
            and (plain := _plain_text(encoded))
            and self._spans(folded(plain)[0], decode=False)
        )

    def _add_percent_encoded(self, spans: _Spans, found: re.Match[str]) -> None:
        """Add the place of a percent-encoded text that contains secrets, with marks for them."""
        known = spans.overlapping(*found.span())
        if known.start < known.stop:
            return
        cleaned = self._text(unquote(found[0], encoding="latin-1"), decode=False)
        pieces, end = [], 0
        for mark in _MARK.finditer(cleaned):
            pieces += [_percent_encoded(cleaned[end : mark.start()]), mark[0]]
            end = mark.end()
        if pieces:
            text = "".join((*pieces, _percent_encoded(cleaned[end:])))
            spans.add(_Span(*found.span(), mark="percent", text=text))

    def _mark(self, kind: str, secret: str) -> str:
        self.hits += 1
        return f"[redacted:{kind}:{self._digest(secret)}]"

    def _digest(self, secret: str) -> str:
        return hmac.new(self._secret, secret.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:12]


@lru_cache(maxsize=4096)
def _may_be_secret(name: str) -> bool:
    """Return whether a name has to be looked at; nearly all are those of others before."""
    return bool(hints_at(folded(name)[0]))


def _percent_encoded(text: str) -> str:
    return quote(text, safe="~*!()+", encoding="latin-1")  # each byte as it was


def normalized_name(name: str) -> str:
    """Return the spelling by which names of fields are compared: ``customerEmail`` as ``customer_email``."""
    return _SEPARATORS.sub("_", CAMEL.sub("_", name.strip())).strip("_").lower()


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(compile_pattern(pattern) for pattern in patterns)


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern of a project's own; `re2.error` if RE2 does not understand it or it takes too much memory."""
    options = re2.Options()
    options.max_mem = 1 << 20
    options.log_errors = False
    return re2.compile(pattern, options)


def _plain_text(encoded: str) -> str:
    """Return the readable text that is encoded, or an empty one."""
    whole = encoded.rstrip("=").translate(_STANDARD)
    try:
        plain = base64.b64decode(whole[: len(whole) // 4 * 4] + _tail(whole)).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return plain if all(char.isprintable() or char in "\r\n\t" for char in plain[:_PROBE]) else ""


def _tail(whole: str) -> str:
    """Return the last group of base64 with its padding; one character alone encodes nothing."""
    rest = whole[len(whole) // 4 * 4 :]
    return rest + "=" * (4 - len(rest)) if len(rest) > 1 else ""


_STANDARD = str.maketrans("-_", "+/")
