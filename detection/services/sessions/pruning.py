"""Which calls a session stops counting, for the debug log: those that expire, and those that leave its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from detection.engine.counting import count_identical
from detection.engine.memory import RunState, State, bounded_name
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


def remembered(state: State, event: EventRecord, policy: Policy) -> Remembered:
    """Return what is counted before a call. Copies the run, so it is for the debug log alone.

    What expires is compared with the time of the latest call before this one, so that it is noted once, whatever is
    called.
    """
    run = state.runs.get(bounded_name(event.run or "") if policy.values["counting_scope"] == "run" else "")
    expired = []
    if run is not None and run.records:
        last = max(one.at for one in run.records)
        for key, tool in _ageing(run, policy, last, event.at).items():
            then, now = (
                count_identical(state, key, policy, at, tool=tool, run=event.run) for at in (last, event.at)
            )
            if then > now:
                expired.append(Pruned(key[:SHOWN_SIGNATURE], then - now, "expired"))
    return Remembered(tuple(expired), _calls(state))


def _ageing(run: RunState, policy: Policy, last: float, now: float) -> dict[str, str]:
    """Return the keys of calls that became too old between two times, with their tools."""
    found = {}
    for one in run.records:
        values = policy.for_tool(one.tool).values
        for limit in (values["ttl_seconds"], values["write_period_minutes"] * 60):
            if last - one.at <= limit <= now - one.at:
                found[one.key] = one.tool
    return found


def _calls(state: State) -> Counter[str]:
    return Counter(one.key for run in state.runs.values() for one in run.records)
