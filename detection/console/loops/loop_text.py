"""A loop in words: what it is in one sentence, and what its incidents share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Final

from detection.console import formatting
from detection.console.loops.incident_text import Part
from detection.engine.detectors import detector_for
from detection.engine.detectors.base import identical
from detection.engine.loop_identity import ANY_ARGUMENTS
from detection.models import Loop
from detection.selectors.loops import LoopRow, SharedFact

STATUS_CHIPS: Final = {"open": "idle", "later": "idle", "fine": "ok", "done": "done"}
_FORMS: Final = {"returned": "Returned", "held": "Held", "new": "New", "went_silent": "Went silent"}
_RESULTS = {"errors": ", and the results are errors", "empty": ", and the results are empty"}
_NAMES = {
    "tool": "Tool",
    "agent": "Agent",
    "model": "Model",
    "backend": "Backend",
    "calls_digest": "Arguments",
    "session_name": "Session",
}
_MANY = 2
_SHOWN_VALUES = 5
_SHOWN_LOOPS = 3
"""Each needs the evidence of an incident, which takes long to read."""
_MOSTLY = 0.8


def subject(row: LoopRow | Loop) -> str:
    """Return the tool of a loop, with the program of a shell command."""
    return f"{row.tool or 'several tools'}{f' ({row.program})' if row.program else ''}"


def sentence(row: LoopRow | Loop) -> tuple[Part, ...]:
    """Return a description of a loop, in one sentence without the full stop."""
    detector = detector_for(row.kind)
    values = {
        "tool": subject(row),
        "detail": row.detail,
        "identical": identical(names_only=row.detail == ANY_ARGUMENTS),
    }
    parts = tuple(
        Part(Template(piece).safe_substitute(values), strong=bool(place % 2))
        for place, piece in enumerate(detector.recurrence.split("*"))
        if piece
    )
    return (*parts, Part(_RESULTS[row.results])) if _says_results(row) else parts


def _says_results(row: LoopRow | Loop) -> bool:
    return row.results in _RESULTS and detector_for(row.kind).describes_results


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value of a field: as the filter has it and as it is shown, the number of incidents, and the share of all."""

    name: str
    shown: str
    number: int
    share: float


@dataclass(frozen=True, slots=True)
class SharedLine:
    """One field of the table of what incidents share.

    Attributes
    ----------
    words
        ``all 14``, ``12 of 14`` for the most frequent value, or the number of different values.
    """

    name: str
    label: str
    is_shared: bool
    words: str
    values: tuple[SharedValue, ...]


def shown_loops(kind: str, facts: Mapping[str, SharedFact]) -> list[str]:
    """Return the most frequent loops of a loop whose arguments can be shown; a cycle has those of several calls."""
    detector, loops = detector_for(kind), facts["calls_digest"].values[:_SHOWN_LOOPS]
    return [name for name, _ in loops] if detector.is_exact and not detector.spans_tools else []


def shared_lines(
    kind: str, facts: Mapping[str, SharedFact], arguments: Mapping[str, str]
) -> list[SharedLine]:
    """Return what the incidents share, with one line per field that any incident has.

    A loop is identified by its arguments only if its detector compares them. Incidents know them by their digest, so
    `arguments` has the texts of those that are shown.
    """
    left_out = () if detector_for(kind).is_exact else ("calls_digest",)
    return [_line(fact, arguments) for fact in facts.values() if fact.distinct and fact.name not in left_out]


def _line(fact: SharedFact, arguments: Mapping[str, str]) -> SharedLine:
    number = fact.values[0][1]
    if fact.is_shared:
        words = f"all {fact.total:,}" if fact.total > 1 else "the only one"
    else:
        words = f"{number:,} of {fact.total:,}" if fact.distinct == 1 else f"{fact.distinct:,} different"
    is_digest = fact.name == "calls_digest"
    values = tuple(
        SharedValue(name, arguments[name] if is_digest else name, count, count / fact.total)
        for name, count in fact.values[:_SHOWN_VALUES]
        if not is_digest or name in arguments
    )
    if is_digest and not values and not fact.is_shared and number > 1:
        words += f", {number:,} of {fact.total:,} with the same"
    return SharedLine(
        fact.name,
        _NAMES[fact.name],
        fact.is_shared,
        words,
        values,
    )


def conclusion(facts: Mapping[str, SharedFact]) -> str:
    """Return one or two sentences on what the incidents have in common and what to check first."""
    total = facts["session_name"].total
    if facts["session_name"].distinct < _MANY:
        return "All runs are from one session. Runs in more sessions will show what they share."
    shared = [
        f"{_NAMES[name].lower()} {_name(fact)}" for name, fact in _suspects(facts).items() if fact.is_shared
    ]
    mostly = [
        f"{fact.values[0][1]:,} of {total:,} {_NAMES[name].lower()} {_name(fact)}"
        for name, fact in _suspects(facts).items()
        if not fact.is_shared and fact.values and fact.values[0][1] >= _MOSTLY * total
    ]
    said = (
        f"All {total:,} share {' and '.join(shared)}"
        if shared
        else f"The {total:,} runs share no tool, agent or model"
    )
    said += f"; {', '.join(mostly)}." if mostly else "."
    return f"{said} {_advice(facts)}".strip()


def judgement(row: LoopRow, facts: Mapping[str, SharedFact]) -> tuple[str, str]:
    """Return what is broken and why it seems so, if the runs say it: the same errors whoever calls the tool."""
    tool, agent, model = (facts[name] for name in ("tool", "agent", "model"))
    if not (row.results == "errors" and tool.is_shared and max(agent.distinct, model.distinct) >= _MANY):
        return "", ""
    what = "agents" if agent.distinct >= _MANY else "models"
    number = agent.distinct if agent.distinct >= _MANY else model.distinct
    return "The tool is broken, not the agents:", f"{number:,} {what} fail alike."


def _suspects(facts: Mapping[str, SharedFact]) -> dict[str, SharedFact]:
    return {name: facts[name] for name in ("tool", "agent", "model")}


def _name(fact: SharedFact) -> str:
    return formatting.visible(fact.values[0][0])


def _advice(facts: Mapping[str, SharedFact]) -> str:
    tool, agent, model = (facts[name] for name in ("tool", "agent", "model"))
    if tool.is_shared and agent.distinct >= _MANY and not model.is_shared:
        return "Check the tool first: agents and models differ."
    if agent.is_shared and model.distinct >= _MANY:
        return "Check the agent and its prompt first: models differ."
    if model.is_shared and agent.distinct >= _MANY:
        return "Check the tool and the model first: agents differ."
    return ""


def state(row: LoopRow) -> tuple[str, str]:
    """Return the state of a loop in words, and the chip that shows it: red only while it runs."""
    if row.form == "looping_now":
        return f"{row.looping_now:,} looping now", "loop"
    if row.status == "open":
        return _FORMS.get(row.form, "Open"), "held" if row.form in ("held", "went_silent") else "idle"
    if row.is_later_but_firing and row.later is not None:
        return f"Later, {row.later.incidents:,} since", "idle"
    if row.form == "ended_by_itself":
        return "Ended by itself", "done"
    return row.status.capitalize(), STATUS_CHIPS[row.status]
