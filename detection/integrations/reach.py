"""The reach of a session: whether it can be stopped, only its calls can be blocked, or it can only be watched.

It is learned from how calls arrive. A session remembers the reach of its newest calls, a letter each, and the weakest
of them holds: an agent of which some calls run unasked cannot be stopped. What was seen to come of a stop counts as
well (`Session.seen_reach`): a run that continues can only be blocked, and one that makes its refused calls only
watched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from detection.integrations.hosts import HOSTS, PROXIES_OF_TOOLS, can_end_run

Reach = Literal["can_stop", "can_block", "watch_only"]
CAN_STOP: Final = "can_stop"
CAN_BLOCK: Final = "can_block"
WATCH_ONLY: Final = "watch_only"
REACHES: Final[tuple[Reach, ...]] = (CAN_STOP, CAN_BLOCK, WATCH_ONLY)
"""The strongest first."""
REACH_WORDS: Final[dict[str, str]] = {
    CAN_STOP: "Can be stopped",
    CAN_BLOCK: "Can be blocked",
    WATCH_ONLY: "Only watched",
}
NEWEST_CALLS: Final = 10
"""How many calls tell the reach: enough to show a part of a run that is not guarded, few enough to
show a repaired integration soon. A judgement."""
_LETTERS: Final[dict[Reach, str]] = {CAN_STOP: "s", CAN_BLOCK: "b", WATCH_ONLY: "w"}
_THAT_END_RUNS: Final = frozenset(("guard", "client", "gateway", "litellm"))
"""What asks before each call and ends the run at a stop. The guardrail of LiteLLM has each further request rejected
before the model is asked, so the run cannot continue."""
OF_PROGRAMS: Final = frozenset(("guard", "client"))
"""Those of them whose runs end by the program that asks: a call that runs after a stop shows that it does not."""


def reach_of(integration: str) -> Reach:
    """Return the reach of calls that arrive through an integration, named as in `Session.integration`."""
    kind, _, host = integration.partition("/")
    if kind == "hooks" and host in HOSTS:
        return CAN_STOP if can_end_run(integration) else CAN_BLOCK
    if integration in _THAT_END_RUNS:
        return CAN_STOP
    return CAN_BLOCK if integration in PROXIES_OF_TOOLS else WATCH_ONLY


def reach_words(reach: str) -> str:
    """Return a reach in words."""
    return REACH_WORDS[reach]


def with_call(letters: str, reach: Reach) -> str:
    """Return the letters of the newest calls with those of one more, the newest last."""
    return (letters + _LETTERS[reach])[-NEWEST_CALLS:]


def weakest(letters: str) -> Reach | None:
    """Return the weakest reach of the newest calls, None without any."""
    return next((one for one in reversed(REACHES) if _LETTERS[one] in letters), None)


def weakest_of(reaches: Collection[str]) -> Reach | None:
    """Return the weakest of several, None of none; empty ones are not known."""
    return next((one for one in reversed(REACHES) if one in reaches), None)
