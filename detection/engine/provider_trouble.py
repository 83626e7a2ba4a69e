"""Recognises errors that the service behind a tool causes, not the call: rate limits, time-outs and outages.

It takes evidence of a provider. Limits and time-outs of the call itself, and services on this machine, are no such
trouble: another call, or a mended one, is what helps there. The words are in the table `provider`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, cast

from detection.engine import tables
from detection.engine.substrings import contains_any

Trouble = Literal["", "rate limit", "time-out", "outage"]

# Providers say what is wrong first; a judgement: further on, such words are the content of a page.
_MAX_CHARS = 400


def _troubles() -> tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...]:
    """Return the kinds in the order of the table: a gateway time-out is an outage of a gateway."""
    named: dict[str, list[Any]] = {}
    for row in tables.table("provider"):
        named.setdefault(row["trouble"], []).append(row)
    return tuple((name, tables.parts(found), tables.pattern(found)) for name, found in named.items())


_TROUBLES = _troubles()


def trouble_of(text: str) -> Trouble:
    """Return the kind of trouble that an error reports in its first 400 characters; empty if none.

    Costs one pass per kind.
    """
    head = text[:_MAX_CHARS]
    for name, parts, pattern in _TROUBLES:
        if contains_any(head, parts) and pattern.search(head):
            return "" if name == "own" else cast("Trouble", name)
    return ""
