"""What a replay of the history found, in words: what would be lost, what would be gained, and how much was replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from detection.console.formatting import money, number
from detection.services.what_if.comparison import Findings
from detection.services.what_if.quick import DAYS, QuickReplay


@dataclass(frozen=True, slots=True)
class ReplayWords:
    """The sentences of a replay; `losses` are what a change would cost.

    Attributes
    ----------
    is_known
        Whether a session was replayed, so that without losses and gains nothing would have changed.
    """

    losses: tuple[str, ...]
    gains: tuple[str, ...]
    coverage: str = ""
    is_known: bool = True

    @property
    def is_without_effect(self) -> bool:
        """Whether nothing would have changed."""
        return self.is_known and not self.losses and not self.gains


def words_of(found: Mapping[str, Any]) -> ReplayWords:
    """Return the sentences of findings as `Findings.dump` gives them."""
    stops, changed = found["stops"], found["changed"]["by_difference"]
    lost, gained = stops["lost"], stops["gained"]
    losses = [
        *_stops("You would no longer block or stop {}", lost),
        *_count("{} would be blocked or stopped that a person called fine", "run", gained["false_stops"]),
        *_count("{} would be acted on later", "loop", changed.get("later", 0)),
    ]
    gains = [
        *_stops("You would also block or stop {}", gained),
        *_count("{} would be gone", "false stop", lost["false_stops"]),
        *_count("{} would be acted on earlier", "loop", changed.get("earlier", 0)),
    ]
    if not lost["count"]:
        losses += _count("{} would no longer be found", "loop", found["lost"]["count"])
        losses += _count("{} would get a weaker reaction", "loop", changed.get("weaker", 0))
    if not gained["count"]:
        gains += _count("{} more would be found", "loop", found["gained"]["count"])
        gains += _count("{} would get a stricter reaction", "loop", changed.get("stricter", 0))
    return ReplayWords(tuple(losses), tuple(gains), is_known=found["replayed"].get("sessions", 0) > 0)


def words_of_quick(replay: QuickReplay) -> ReplayWords:
    """Return the sentences of a replay within a request."""
    words = words_of(replay.findings.dump())
    return replace(words, coverage=_coverage(replay))


def _coverage(replay: QuickReplay) -> str:
    missing = _missing_calls(replay.findings)
    rest = f"; {number(missing)} calls cannot be replayed" if missing else ""
    if not replay.sessions:
        return f"No session had a call in the last {DAYS} days."
    if not replay.done_sessions:
        return "A second was too short to replay a session. Details replays all of them."
    if replay.is_whole:
        sessions = "the only session" if replay.sessions == 1 else f"all {number(replay.sessions)} sessions"
        return f"Replayed {sessions} of the last {DAYS} days{rest}."
    return (
        f"Replayed the newest {number(replay.done_sessions)} of {number(replay.sessions)} sessions "
        f"of the last {DAYS} days in a second{rest}."
    )


def _missing_calls(findings: Findings) -> int:
    return sum(counts["calls"] for counts in findings.missing.values())


def _stops(sentence: str, stops: Mapping[str, Any]) -> list[str]:
    count = stops["count"] - stops["false_stops"]
    cost = f" that cost {money(stops['cost_usd'])}" if stops["cost_usd"] else ""
    return _count(sentence, "loop", count, cost)


def _count(sentence: str, noun: str, count: int, rest: str = "") -> list[str]:
    if count <= 0:
        return []
    things = f"{number(count)} {noun}{'' if count == 1 else 's'}"
    return [f"{sentence.format(things)}{rest}."]
