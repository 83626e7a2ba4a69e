"""Recognises waiting: a look at something that others bring about, again and again.

A look is a poll if the look before said that nothing is there yet, if the name of its tool says so, or if it is a look
of a shell after a pause. What is asked for may not exist: an error is no waiting.
"""

from __future__ import annotations

from detection.engine.memory import PENDING, Record
from detection.engine.results import ResultOutcome
from detection.engine.tool_classes import ToolTraits
from detection.engine.tool_verbs import opens_file

_LOOKS = frozenset(("", "look", "search"))


def is_poll(record: Record, earlier: Record, traits: ToolTraits) -> bool:
    """Return whether a call waits that is identical to an earlier one."""
    if record.effect not in _LOOKS or traits.steps:
        return False
    if traits.checks or (record.weight < 1 and record.effect):
        return True
    return earlier.waits or (earlier.status == PENDING and earlier.effect == "poll")


def answers_wait(record: Record, outcome: ResultOutcome, tool: str) -> bool:
    """Return whether a result says that what was looked at is not there yet, so that to look again is to wait.

    A file may speak of something pending; reading it again does not bring that about.
    """
    if record.effect not in _LOOKS and record.effect != "poll":
        return False
    return outcome.is_pending and not opens_file(tool)
