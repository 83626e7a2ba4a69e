"""Recognises waiting: a look at something that others bring about, again and again.

A look is a poll if the look before said that nothing is there yet, if the name of its tool says so, or if it is a look
of a shell after a pause. What is asked for may not exist: an error is no waiting.
"""

from __future__ import annotations

from detection.engine.memory import PENDING, Record
from detection.engine.policy import Policy
from detection.engine.tool_classes import ToolTraits

LOOKS = frozenset(("", "look", "search"))
"""Effects of calls that change and say nothing."""

_MAY_WAIT = LOOKS | {"poll"}


def is_poll(record: Record, earlier: Record, traits: ToolTraits) -> bool:
    """Return whether a call waits that is identical to an earlier one."""
    if record.effect not in LOOKS or traits.steps:
        return False
    if traits.checks or (record.weight < 1 and record.effect):
        return True
    return earlier.waits or (earlier.status == PENDING and earlier.effect == "poll")


def may_wait(record: Record, policy: Policy) -> bool:
    """Return whether a call that is made again waits if its result says that what it looks at is not there yet.

    A file may speak of something pending; reading it again does not bring that about.
    """
    return record.effect in _MAY_WAIT and not policy.traits.opens_file and not policy.reads_plainly
