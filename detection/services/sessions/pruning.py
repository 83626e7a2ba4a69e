"""Which calls a session stops counting, for the debug log: those that expire, and those that leave its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from detection.engine import fold
from detection.engine.counting import count_identical
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.services.events.event_records import EventRecord

SHOWN_SIGNATURE = 12


@dataclass(frozen=True, slots=True)
class Pruned:
    """Calls of one signature that no longer count, because they have ``expired`` or ``left_window``."""

    signature: str
    calls: int
    reason: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is counted before a call; see `remembered`."""

    expired: tuple[Pruned, ...]
    calls: Counter[str]

    def pruned(self, state: State) -> Iterator[Pruned]:
        """Return what no longer counts after the call."""
        yield from self.expired
        for key, calls in (self.calls - _calls(state)).items():
            yield Pruned(key[:SHOWN_SIGNATURE], calls, "left_window")


def remembered(state: State, event: EventRecord, policy: Policy, keyer: Keyer) -> Remembered:
    """Return what is counted before a call. Copies the run, so it is for the debug log alone."""
    key = fold.call_key(event, policy, keyer)
    last = max((one.at for run in state.runs.values() for one in run.records if one.key == key), default=None)
    expired: tuple[Pruned, ...] = ()
    if last is not None:
        then, now = (
            count_identical(state, key, policy, at, tool=event.tool, run=event.run) for at in (last, event.at)
        )
        if then > now:
            expired = (Pruned(key[:SHOWN_SIGNATURE], then - now, "expired"),)
    return Remembered(expired, _calls(state))


def _calls(state: State) -> Counter[str]:
    return Counter(one.key for run in state.runs.values() for one in run.records)
