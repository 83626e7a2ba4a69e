"""Recognises errors that the service behind a tool causes, not the call: rate limits, time-outs and outages."""

from __future__ import annotations

import re
from typing import Literal

from detection.engine.substrings import contains_any

Trouble = Literal["", "rate limit", "time-out", "outage"]

_MAX_CHARS = 400
# The kinds in the order in which they are looked for: a gateway time-out is one of a gateway. Whatever a pattern
# matches contains one of the parts before it, which are found many times faster.
_TROUBLES: tuple[tuple[Trouble, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "rate limit",
        ("limit", "too many", "quota", "usage", "throttl", "429", "overload"),
        re.compile(
            r"(?i)\brate[ _-]?limit|\btoo many requests|\b(?:quota|usage limit|set usage) .{0,20}?(?:exceeded"
            r"|limit|reached)|\b(?:exceeds|exceeded|reached) (?:your|the) .{0,30}?(?:quota|limit)\b|\bthrottl"
            r"|\bstatus(?: code)?[ :=]{0,2}429\b|\b429 client error|\boverloaded"
        ),
    ),
    (
        "outage",
        (
            "server error",
            "gateway",
            "unavailable",
            "50",
            "connection",
            "econn",
            "upstream",
            "temporar",
            "remote",
            "retries",
        ),
        re.compile(
            r"(?i)\b(?:internal server error|bad gateway|service (?:is )?(?:temporarily )?unavailable"
            r"|gateway time-?out)|\b(?:status(?: code)?|http(?:/1\.1)?|error)[ :=]{1,2}50[0234]\b"
            r"|\b50[0234] server error|\bconnection (?:refused|reset|aborted|closed)|\beconn(?:refused|reset"
            r"|aborted)|\bupstream (?:error|connect)|\btemporar(?:y|ily) (?:failure|unavailable)"
            r"|\bremote end closed|\bmax retries exceeded"
        ),
    ),
    (
        "time-out",
        ("time", "deadline"),
        re.compile(
            r"(?i)\btime[ds]? ?out\b|\btimeouts?\b|\btimeout(?:error|exception)|\bdeadline exceeded|\betimedout"
        ),
    ),
)


def trouble_of(text: str) -> Trouble:
    """Return the kind of trouble that an error reports in its first 400 characters; empty if none.

    Costs one pass per kind.
    """
    head = text[:_MAX_CHARS]
    for trouble, parts, pattern in _TROUBLES:
        if contains_any(head, parts) and pattern.search(head):
            return trouble
    return ""
