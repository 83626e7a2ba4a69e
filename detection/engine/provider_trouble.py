"""Recognises errors that the service behind a tool causes, not the call: rate limits, time-outs and outages.

It takes evidence of a provider. Limits and time-outs of the call itself, and services on this machine, are no such
trouble: another call, or a mended one, is what helps there. The words are in the table `provider`.
"""

from __future__ import annotations

from typing import Literal, cast

from detection.engine import tables
from detection.engine.substrings import has_part, lower

Trouble = Literal["", "rate limit", "time-out", "outage"]

# Providers say what is wrong first; a judgement: further on, such words are the content of a page.
_MAX_CHARS = 400


# In the order of the table: a gateway time-out is an outage of a gateway.
_TROUBLES = tuple(
    (row["trouble"], tuple(row["parts"]), tables.pattern([row])) for row in tables.table("provider")
)
_OWN = tables.rows("provider", trouble="own")
_OWN_LIMITS = tuple((row["limit"], tuple(row["parts"]), tables.pattern([row])) for row in _OWN)
ADVICE = {row["limit"]: row["advice"] for row in _OWN if "advice" in row}
"""Advice to agents about a limit of the call itself, by its name."""


def trouble_of(text: str) -> Trouble:
    """Return the kind of trouble that an error reports in its first 400 characters; empty if none.

    The first row of the table that matches decides. Costs one pass for each row that may match.
    """
    head = text[:_MAX_CHARS]
    lowered = lower(head)
    for name, parts, pattern in _TROUBLES:
        if has_part(lowered, parts) and pattern.search(head):
            return "" if name == "own" else cast("Trouble", name)
    return ""


def own_limit(text: str) -> str:
    """Return the name of the limit of the call itself that an error reports; a key of `ADVICE`, or empty."""
    head = text[:_MAX_CHARS]
    lowered = lower(head)
    for name, parts, pattern in _OWN_LIMITS:
        if has_part(lowered, parts) and pattern.search(head):
            return str(name)
    return ""
