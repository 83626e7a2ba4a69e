"""Flags of a call, one letter each, in `Event.flags` and `Session.strip`. Only this module writes and reads them.

A call has at most one letter of its result and one of its decision; an allowed call without a new result has
none. A result can add a warning, too.
"""

from __future__ import annotations

from typing import Final

NEW: Final = "^"
ERROR: Final = "!"
EMPTY: Final = "e"
PENDING: Final = "?"
WARNED: Final = "w"
BLOCKED: Final = "b"
HELD: Final = "h"
STOPPED: Final = "s"

RESULT_FLAGS: Final = PENDING + NEW + ERROR + EMPTY
WORDS: Final = {
    NEW: "new result",
    ERROR: "error",
    EMPTY: "empty result",
    PENDING: "no result yet",
    WARNED: "warned",
    BLOCKED: "blocked",
    HELD: "held",
    STOPPED: "stopped",
}
_OF_RESULT: Final = {"new": NEW, "error": ERROR, "empty": EMPTY, "pending": PENDING, "same": ""}
_OF_DECISION: Final = {"allow": "", "warn": WARNED, "block": BLOCKED, "hold": HELD, "stop": STOPPED}
_STRICTEST_FIRST: Final = STOPPED + BLOCKED + HELD + WARNED
_NOT_RUN: Final = frozenset((BLOCKED, HELD, STOPPED))


def of_call(result: str, decision: str) -> str:
    """Return the flags of a call.

    Parameters
    ----------
    result
        Its result, as the engine names it: ``new``, ``same``, ``error``, ``empty`` or ``pending``.
    decision
        Its verdict.
    """
    return _OF_RESULT[result] + _OF_DECISION[decision]


def of_result(result: str, decision: str) -> str:
    """Return the flags that a result adds to its call: the kind of result, and a warning."""
    return _OF_RESULT[result] + (WARNED if decision == "warn" else "")


def with_result(flags: str, added: str) -> str:
    """Return the flags of a call with the flags of its result replaced."""
    return added + "".join(flag for flag in flags if flag not in RESULT_FLAGS and flag not in added)


def with_decision(flags: str, decision: str) -> str:
    """Return the flags of a held call with the decision that it got in the end."""
    return flags.replace(HELD, _OF_DECISION[decision])


def without_decision(flags: str) -> str:
    """Return the flags of the result alone."""
    return "".join(flag for flag in flags if flag in RESULT_FLAGS)


def outline(flags: str) -> str:
    """Return the strictest letter of a decision, or nothing."""
    return next((flag for flag in _STRICTEST_FIRST if flag in flags), "")


def has_not_run(flags: str) -> bool:
    """Return whether the call was blocked, held or stopped."""
    return not _NOT_RUN.isdisjoint(flags)


def has_result(flags: str) -> bool:
    """Return whether the result of the call is known."""
    return PENDING not in flags and not has_not_run(flags)


def in_words(flags: str) -> list[str]:
    """Return each letter in words; a call that was not run has no result to wait for."""
    shown = flags.replace(PENDING, "") if has_not_run(flags) else flags
    return [WORDS[flag] for flag in shown if flag in WORDS]
