"""Removes secrets from events, before they are stored, logged, shown or forwarded.

A secret is replaced by a mark that names the rule that found it and is keyed per project: equal secrets keep equal
marks and different ones stay different, so identity and detection work on the marks, and the secret cannot be read or
guessed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import re2

from detection.services.redaction.secret_rules import (
    BASE64,
    CAMEL,
    CARD,
    HINTS,
    LONG_BASE64,
    NUMBER_HINT,
    PERCENT_ENCODED,
    PERCENT_HINT,
    RULES,
    SecretRule,
    is_card,
    key_kind,
    looks_secret,
)
from detection.strict_json import Cleaner, JsonProblem, compact, loads

MAX_NODES = 1_000_000
"""More values than an event can have, so that only the depth limits the walk."""
_PROBE = 32
"""Characters of a text in base64 that are decoded first: they show that a file name or picture encodes no text."""
_PAIRS = (
    ("name", "value"),
    ("key", "value"),
    ("header", "value"),
    ("field", "value"),
    ("Name", "Value"),
    ("Key", "Value"),
)
_FIELD = re.compile(r"\b([A-Za-z0-9][A-Za-z0-9_.-]{0,63}+)[\"']?\s{0,4}[=:]\s{0,4}[\"']?")
_FIELD_VALUE = re.compile(r"[^\s\"',;&]{1,512}")
_MARK_CHARACTERS = 48
_MARK = re.compile(r"\[redacted:[a-z0-9-]{1,24}:[0-9a-f]{12}\]")
_SEPARATORS = re.compile(r"[_.\- ]+")
_HEADER = re.compile(r"(?i)(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{1,60}")
_OPTION = re.compile(r"--?[A-Za-z][\w-]{1,60}")


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

    def text(self, text: str) -> str:
        """Return `text` with every secret that is recognised by its shape or name replaced by a mark."""
        for pattern in self._patterns:
            text = pattern.sub(
                lambda found: self._mark("pattern", found.group()) if found.group() else "", text
            )
        text = self._text(text, decode=True)
        return self._named_fields(text) if self._names else text

    def content(self, text: str) -> str:
        """Redact arguments, a result or a message: by names and shapes where the text is JSON, else by shapes."""
        return self._json(text) if text[:1] in "{[" else self.text(text)

    def _json(self, text: str) -> str:
        if not (self._names or self._patterns or HINTS.Match(text) or LONG_BASE64.search(text)):
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
            if value and (kind == "strong" or (kind == "weak" and looks_secret(value))):
                return self._mark("field", value)
            return self._json(value) if value[:1] in "{[" else self.text(value)
        if kind == "strong" and value is not None and not isinstance(value, bool):
            return self._mark("field", str(value))
        return value

    def _walk_fields(self, fields: dict[str, Any], kind: str) -> dict[str, Any]:
        kinds = {key: kind if kind == "strong" else self._kind(key) or kind for key in fields}
        for name, value in _PAIRS:
            if isinstance(fields.get(name), str) and value in fields:
                kinds[value] = (
                    kinds[value] if kinds[value] == "strong" else self._kind(fields[name]) or kinds[value]
                )
                kinds[name] = kind
        return {key: self._walk(inner, kinds[key]) for key, inner in fields.items()}

    def _walk_items(self, items: list[Any], kind: str) -> list[Any]:
        """Redact a list, which may be a pair of a header or the arguments of a program."""
        walked = []
        named = ""
        for at, item in enumerate(items):
            walked.append(self._walk(item, kind if kind == "strong" else named or kind))
            named = ""
            if isinstance(item, str):
                if _OPTION.fullmatch(item) and at + 1 < len(items) and not str(items[at + 1]).startswith("-"):
                    named = self._kind(item.lstrip("-"))
                elif len(items) == 2 and key_kind(item):
                    # Two names of fields are no pair: only a value that looks like a secret is one.
                    named = "strong" if _HEADER.fullmatch(item) else "weak"
        return walked

    def _kind(self, key: str) -> str:
        return "strong" if self._names and normalized_name(key) in self._names else key_kind(key)

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
        for hint in sorted(HINTS.Match(text) or ()):
            if hint < len(RULES):
                text = self._apply(RULES[hint], text)
            elif hint == NUMBER_HINT:
                text = CARD.sub(
                    lambda found: self._mark("card", found[0]) if is_card(found[0]) else found[0], text
                )
            elif hint == PERCENT_HINT and decode:
                text = PERCENT_ENCODED.sub(self._percent_decoded, text)
        return BASE64.sub(self._decoded, text) if decode and LONG_BASE64.search(text) else text

    def _apply(self, rule: SecretRule, text: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            group = rule.replaced_group(found)
            if group is None or _is_in_mark(text, found.start(group)):
                return found[0]
            start, end = found.start(group) - found.start(), found.end(group) - found.start()
            return found[0][:start] + self._mark(rule.name, found[group]) + found[0][end:]

        return rule.pattern.sub(replaced, text)

    def _decoded(self, found: re.Match[str]) -> str:
        """Return a mark for base64 of a text that contains a secret, and anything else as it is."""
        encoded = found[0]
        if _plain_text(encoded[:_PROBE]) and (plain := _plain_text(encoded)):
            before = self.hits
            self._text(plain, decode=False)
            if self.hits > before:
                return self._mark("base64", encoded)
        return encoded

    def _percent_decoded(self, found: re.Match[str]) -> str:
        """Return a percent-encoded text with marks for the secrets in it, and any other one as it is."""
        before = self.hits
        cleaned = self._text(unquote(found[0], encoding="latin-1"), decode=False)
        if self.hits == before:
            return found[0]
        pieces, end = [], 0
        for mark in _MARK.finditer(cleaned):
            pieces += [_percent_encoded(cleaned[end : mark.start()]), mark[0]]
            end = mark.end()
        return "".join((*pieces, _percent_encoded(cleaned[end:])))

    def _mark(self, kind: str, secret: str) -> str:
        if secret.startswith("[redacted:"):
            return secret
        self.hits += 1
        digest = hmac.new(self._secret, secret.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
        return f"[redacted:{kind}:{digest[:12]}]"


def _percent_encoded(text: str) -> str:
    return quote(text, safe="~*!()+", encoding="latin-1")  # each byte as it was


def _is_in_mark(text: str, place: int) -> bool:
    """Return whether a position is inside a mark, whose name may look like a field name."""
    at = text.rfind("[redacted:", max(0, place - _MARK_CHARACTERS), place + len("[redacted:"))
    mark = _MARK.match(text, at) if at >= 0 else None
    return mark is not None and mark.end() > place


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
