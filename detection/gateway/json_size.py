"""How many values a JSON document has, before it is parsed: a parser stops the whole process while it makes them.

Every piece of work here is short, so that other threads run meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_VALUES: Final = 250_000
"""Keys count as well. A parser takes up to 0.25 microseconds for each, so at most 60 ms. It is a judgement: 10,000
messages with a call or a result in each have 100,000 to 200,000, and a long text or picture is one."""
_WINDOW: Final = 64 * 1024
_SEPARATORS: Final = (b",", b":", b"[", b"{")
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def has_too_many_values(body: bytes) -> bool:
    """Return whether a document has more than `MAX_VALUES` values and keys, or would have if it were valid."""
    whole = ((at, at + _WINDOW) for at in range(0, len(body), _WINDOW))
    return _count(body, whole) > MAX_VALUES and _count(body, _outside_strings(body)) > MAX_VALUES


def _count(body: bytes, spans: Iterator[tuple[int, int]]) -> int:
    """Return the number of separators in parts of a document; more than `MAX_VALUES` need not be exact."""
    count = 0
    for start, end in spans:
        count += sum(body.count(one, start, end) for one in _SEPARATORS)
        if count > MAX_VALUES:
            break
    return count


def _outside_strings(body: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(body):
        quote = body.find(b'"', at, at + _WINDOW)
        end = quote if quote >= 0 else min(at + _WINDOW, len(body))
        yield at, end
        at = _end_of_string(body, quote + 1) if quote >= 0 else end


def _end_of_string(body: bytes, at: int) -> int:
    """Return where the text after a string begins."""
    while at < len(body):
        found = _INSIDE.match(body, at, at + _WINDOW)
        at = found.end() if found else at
        if body[at : at + 1] == b'"':
            return at + 1
        if at + 1 == len(body):  # a backslash, or the last byte of a document that ends early
            break
    return len(body)
