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


_ROWS = tables.table("provider")
# In the order of the table: a gateway time-out is an outage of a gateway.
_REPORTS = tuple(
    (
        "" if row["trouble"] == "own" else cast("Trouble", row["trouble"]),
        row.get("limit", ""),
        tuple(row["parts"]),
        tables.pattern([row]),
    )
    for row in _ROWS
)
ADVICE = {row["limit"]: row["advice"] for row in _ROWS if "advice" in row}
"""Advice to agents about a limit of the call itself, by its name."""


def limit_and_trouble(text: str) -> tuple[str, Trouble]:
    """Return what an error reports in its first 400 characters, at most one of both.

    The first row of the table that matches decides. Costs one pass for each row that may match.

    Returns
    -------
    tuple of str
        The name of a limit of the call itself, a key of `ADVICE`, and the kind of trouble of a provider.
    """
    head = text[:_MAX_CHARS]
    lowered = lower(head)
    for trouble, limit, parts, pattern in _REPORTS:
        if has_part(lowered, parts) and pattern.search(head):
            return limit, trouble
    return "", ""
