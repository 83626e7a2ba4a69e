"""Removes secrets from events, before they are stored, logged, shown or forwarded.

A secret is replaced by a mark that is keyed per project: equal secrets keep equal marks and different ones stay
different, so identity and detection work on the marks, and the secret cannot be read or guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache, partial
from typing import Any

from detection.strict_json import Cleaner, JsonProblem, compact, loads

_KEY_WORDS = (
    r"passwords?|passwd|pwd|passphrase|secrets?|client[_-]?secret|auth[_-]?token|access[_-]?token|refresh[_-]?token|id[_-]?token"
    r"|bearer[_-]?token|session[_-]?token|token|api[_-]?keys?|apikey|access[_-]?key(?:[_-]?id)?|secret[_-]?key|private[_-]?key"
    r"|authorization|proxy-authorization|set-cookie|cookies?|credentials?|connection[_-]?string|x-api-key"
)
MAX_NODES = 1_000_000
"""More values than an event can have; only the depth limits the walk."""
SENSITIVE_KEY = re.compile(rf"(?i)^(?:.*[_\-. ])?(?:{_KEY_WORDS})$")
PAGING_KEY = re.compile(r"(?i)(?:page|next|continuation|cursor|sync)[_-]?token$")
"""Cursors of lists are called tokens too and are no secrets."""

VALUE_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "pem",
        # Without an end, all that follows may belong to the key.
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[^-]++|-(?!----END ))*+"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?+"
        ),
    ),
    (
        "jwt",
        # What begins like one and is none is passed over as a whole: trying again from each place inside it takes
        # quadratic time.
        re.compile(
            r"\beyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+|(?P<no_secret>\beyJ[A-Za-z0-9_-]*+)"
        ),
    ),
    ("bearer", re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}")),
    ("key", re.compile(r"\blg_[0-9a-hjkmnp-tv-z]{10}_[0-9a-f]{64,}")),
    (
        "key",
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
            r"|\bsk-[A-Za-z0-9_-]{16,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[0-9A-Za-z_-]{30,}|\bnpm_[A-Za-z0-9]{30,}"
            r"|\bpypi-[A-Za-z0-9_-]{30,}|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|\bhf_[A-Za-z0-9]{30,}|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
        ),
    ),
    ("userinfo", re.compile(r"(?<=://)[^\s/@:\"']{1,128}:[^\s/@\"']{1,256}(?=@)")),
)
_ASSIGNMENT = re.compile(
    rf"(?i)(\b(?:[A-Za-z0-9]{{1,40}}[_-])?(?:{_KEY_WORDS})[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?)([^\s\"',;&]{{4,512}})"
)
_FIELD = re.compile(r"\b([A-Za-z0-9][A-Za-z0-9_.-]{0,63}+)[\"']?\s{0,4}[=:]\s{0,4}[\"']?")
_FIELD_VALUE = re.compile(r"[^\s\"',;&]{1,512}")
_CARD = re.compile(r"\b(?:\d[ -]?){12,18}\d\b")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[_.\- ]+")
# Most texts hold nothing that could be a secret. Plain searches tell that in a hundredth of the time of one large pattern.
_HINTS = (
    "passw", "pwd", "passphrase", "secret", "token", "authoriz", "cookie", "credential", "bearer", "basic ", "lg_",
    "api_key", "api-key", "apikey", "access_key", "access-key", "accesskey", "private_key", "private-key", "privatekey",
    "connection_string", "connection-string", "connectionstring", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat",
    "glpat", "sk-", "xox", "npm_", "pypi-", "k_live", "k_test", "hf_",
)  # fmt: skip
_HINTS_AS_SPELLED = ("eyJ", "-----BEGIN", "AKIA", "ASIA", "AIza", "SG.")
_LONG_NUMBER = re.compile(r"\d[\d -]{11,}\d")


def is_suspicious(text: str) -> bool:
    """Return whether a text may contain a secret: a cheap check that errs on the side of yes."""
    lowered = text.lower()
    for hint in _HINTS:
        if hint in lowered:
            return True
    for hint in _HINTS_AS_SPELLED:
        if hint in text:
            return True
    return ("://" in text and "@" in text) or _LONG_NUMBER.search(text) is not None


class Redactor:
    """Redacts for one project.

    Parameters
    ----------
    digest_secret
        The project's secret; keys the marks.
    names
        Names of more fields to redact, as `normalized_name` returns them.
    """

    def __init__(self, digest_secret: bytes, names: frozenset[str] = frozenset()) -> None:
        self._secret = bytes(digest_secret)
        self._names = names
        self.hits = 0

    def text(self, text: str) -> str:
        """Return `text` with every secret that its shape or its name gives away replaced by a mark."""
        if not self._is_suspicious(text):
            return text
        # Shapes first: what follows "Authorization:" is a word and the secret after it.
        text = _ASSIGNMENT.sub(self._mark_assigned, self._shapes(text))
        return self._named_fields(text) if self._names else text

    def arguments(self, text: str) -> str:
        """Redact argument text: by key names and shapes where it is JSON, else like any text."""
        return self._json(text) if text[:1] in "{[" else self.text(text)

    def content(self, text: str) -> str:
        """Redact a result's or message's text."""
        return self._json(text) if text[:1] in "{[" else self.text(text)

    def _json(self, text: str) -> str:
        if not self._is_suspicious(text):
            return text
        try:
            value = Cleaner(MAX_NODES).value(loads(text))
        except JsonProblem:  # no JSON, or deeper than anything that is walked here
            return self.text(text)
        before = self.hits
        cleaned = self._walk(value, sensitive=False)
        return text if self.hits == before else compact(cleaned)

    def _walk(self, value: Any, *, sensitive: bool) -> Any:
        if isinstance(value, dict):
            return {
                key: self._walk(inner, sensitive=sensitive or self._is_sensitive(key))
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._walk(inner, sensitive=sensitive) for inner in value]
        if isinstance(value, str):
            if sensitive and value:
                return self._mark("value", value)
            return self._json(value) if value[:1] in "{[" else self.text(value)
        if sensitive and value is not None and not isinstance(value, bool):
            return self._mark("value", str(value))
        return value

    def _is_suspicious(self, text: str) -> bool:
        if is_suspicious(text):
            return True
        lowered = text.lower() if self._names else ""
        # Whatever is between the words of a name, its longest word is there.
        return any(max(name.split("_"), key=len) in lowered for name in self._names)

    def _is_sensitive(self, key: str) -> bool:
        return is_sensitive(key) or (bool(self._names) and normalized_name(key) in self._names)

    def _named_fields(self, text: str) -> str:
        pieces, end = [], 0
        for field in _FIELD.finditer(text):
            if field.start() >= end and normalized_name(field[1]) in self._names:
                value = _FIELD_VALUE.match(text, field.end())
                if value is not None:
                    pieces += [text[end : field.end()], self._mark("value", value[0])]
                    end = value.end()
        return "".join([*pieces, text[end:]])

    def _mark_assigned(self, found: re.Match[str]) -> str:
        return found[1] + self._mark("value", found[2])

    def _shapes(self, text: str) -> str:
        for kind, shape in VALUE_SHAPES:
            text = shape.sub(partial(self._mark_shape, kind), text)
        return _CARD.sub(lambda found: self._mark("card", found[0]) if _luhn(found[0]) else found[0], text)

    def _mark_shape(self, kind: str, found: re.Match[str]) -> str:
        return found[0] if found.lastgroup == "no_secret" else self._mark(kind, found[0])

    def _mark(self, kind: str, secret: str) -> str:
        if secret.startswith("[redacted:"):
            return secret
        self.hits += 1
        return f"[redacted:{kind}:{hmac.new(self._secret, secret.encode('utf-8', 'replace'), hashlib.sha256).hexdigest()[:12]}]"


@lru_cache(maxsize=4096)
def is_sensitive(key: str) -> bool:
    """Return whether a field of this name contains a secret; ``userPassword`` and ``user_password`` are one name."""
    spelled = _CAMEL.sub("_", key)
    return bool(SENSITIVE_KEY.match(spelled)) and not PAGING_KEY.search(spelled)


def normalized_name(name: str) -> str:
    """Return the spelling by which names of fields are compared: ``customerEmail`` as ``customer_email``."""
    return _SEPARATORS.sub("_", _CAMEL.sub("_", name.strip())).strip("_").lower()


def _luhn(text: str) -> bool:
    digits = [int(char) for char in text if char.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
