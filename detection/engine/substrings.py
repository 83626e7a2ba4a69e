"""A fast check before a slow pattern."""

from __future__ import annotations


def lower(text: str) -> str:
    """Return a text in lower case, with a letter of ASCII for whatever a pattern without case takes for one."""
    lowered = text.lower()
    if not lowered.isascii():
        # The long s, the dotless i, and the dotted capital I, of which `lower` makes two characters.
        lowered = lowered.replace("ſ", "s").replace("ı", "i").replace("i\N{COMBINING DOT ABOVE}", "i")
    return lowered


def has_part(lowered: str, parts: tuple[str, ...]) -> bool:
    """Return whether a text of `lower` contains one of these lower-case parts."""
    for part in parts:  # noqa: SIM110 - a loop costs half of what a generator costs
        if part in lowered:
            return True
    return False


def contains_any(text: str, parts: tuple[str, ...]) -> bool:
    """Return whether a text contains one of these lower-case parts, without regard to case."""
    return has_part(lower(text), parts)
