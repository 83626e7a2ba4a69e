"""Flags of a call, one letter each, in `Event.flags` and `Session.strip`. Only this module writes and reads them.

A call has at most one letter of its result and one of its decision; an allowed call without a new result has
none. A result can add a warning, too. A reported call runs whatever its verdict is, so it has a capital letter for
what would have stopped it. So has a call that its agent ran although it was refused, with one more letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

NEW: Final = "^"
ERROR: Final = "!"
EMPTY: Final = "e"
PENDING: Final = "?"
WARNED: Final = "w"
BLOCKED: Final = "b"
HELD: Final = "h"
STOPPED: Final = "s"
WOULD_BLOCK, WOULD_HOLD, WOULD_STOP = BLOCKED.upper(), HELD.upper(), STOPPED.upper()
REFUSED: Final = "r"
"""Beside a capital letter: the agent had asked, was refused, and ran the call."""

RESULT_FLAGS: Final = PENDING + NEW + ERROR + EMPTY
_OF_RESULT: Final = {"new": NEW, "error": ERROR, "empty": EMPTY, "pending": PENDING, "same": ""}
_OF_DECISION: Final = {"allow": "", "warn": WARNED, "block": BLOCKED, "hold": HELD, "stop": STOPPED}
_STRICTEST_FIRST: Final = STOPPED + WOULD_STOP + BLOCKED + WOULD_BLOCK + HELD + WOULD_HOLD + WARNED
NOT_RUN: Final = BLOCKED + HELD + STOPPED
RAN: Final = NOT_RUN.upper()


def of_call(result: str, decision: str, *, has_run: bool = False) -> str:
    """Return the flags of a call.

    Parameters
    ----------
    result
        Its result, as the engine names it: ``new``, ``same``, ``error``, ``empty`` or ``pending``.
    decision
        Its verdict.
    has_run
        Whether it was reported after it had run, so that no verdict could stop it.
    """
    mark = _OF_DECISION[decision]
    return _OF_RESULT[result] + (mark.upper() if has_run and mark in NOT_RUN else mark)


def of_result(result: str, decision: str) -> str:
    """Return the flags that a result adds to its call: the kind of result, and a warning."""
    return _OF_RESULT[result] + (WARNED if decision == "warn" else "")


def with_result(flags: str, added: str) -> str:
    """Return the flags of a call with the flags of its result replaced."""
    return added + "".join(flag for flag in flags if flag not in RESULT_FLAGS and flag not in added)


def with_decision(flags: str, decision: str) -> str:
    """Return the flags of a held call with the decision that it got in the end."""
    return flags.replace(HELD, _OF_DECISION[decision])


def with_run(flags: str, added: str) -> str:
    """Return the flags of a refused call that ran nevertheless, with the flags of its result."""
    decided = "".join(flag.upper() if flag in NOT_RUN else flag for flag in flags)
    return with_result(decided, added) + REFUSED


def without_decision(flags: str) -> str:
    """Return the flags of the result alone."""
    return "".join(flag for flag in flags if flag in RESULT_FLAGS)


# The calls of a page have few combinations of flags.
@lru_cache(maxsize=1024)
def outline(flags: str) -> str:
    """Return the strictest letter of a decision, or nothing; a capital where the call ran nevertheless."""
    return next((flag for flag in _STRICTEST_FIRST if flag in flags), "")


@lru_cache(maxsize=1024)
def has_not_run(flags: str) -> bool:
    """Return whether the call was blocked, held or stopped before it could run."""
    return any(flag in NOT_RUN for flag in flags)


def ran_nevertheless(flags: str) -> bool:
    """Return whether the call ran although its verdict was to block, hold or stop it."""
    return any(flag in RAN for flag in flags)


def ran_refused(flags: str) -> bool:
    """Return whether the agent had asked, was refused, and ran the call."""
    return REFUSED in flags


def has_result(flags: str) -> bool:
    """Return whether the result of the call is known."""
    return PENDING not in flags and not has_not_run(flags)


def was_refused(flags: str) -> bool:
    """Return whether the call was stopped, or held and never allowed."""
    return STOPPED in flags or HELD in flags


def is_open(strip: Sequence[Sequence[object]]) -> bool:
    """Return whether the newest call of a strip runs still, if results are reported at all."""
    if not strip:
        return False
    flags = str(strip[-1][2])
    return PENDING in flags and not has_not_run(flags) and any(PENDING not in str(cell[2]) for cell in strip)
