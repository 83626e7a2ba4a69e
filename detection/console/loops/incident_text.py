"""An incident in words: its title, one sentence to paste into a chat, and its evidence line by line.

Everything derives from the stored row, so the text stays the same after the calls are deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from math import ceil
from string import Template
from typing import Any, Protocol

from detection.console import formatting
from detection.console.sessions import differences
from detection.engine import durations
from detection.engine.detectors import detector_for
from detection.engine.detectors.base import NAMES_ONLY, identical, placeholders
from detection.engine.fields import FIELDS, LADDERS
from detection.engine.memory import BLOCKING
from detection.engine.policy import ExplainedSetting
from detection.models import Approval, EventType, Incident, IncidentActivity, call_flags
from detection.models.evidence import EvidenceCall
from detection.models.incidents import LabelReason
from detection.selectors.incident_rows import IncidentRow
from detection.services.exceptions.exceptions import uncounted_calls
from detection.services.tracking.tracker import QUIET_CALLS

DID = {
    "allow": "recorded only",
    "warn": "warned",
    "block": "blocked",
    "hold": "held",
    "stop": "stopped",
}
DECISION_CHIPS = {
    "allow": "plain",
    "warn": "warn",
    "block": "stop",
    "hold": "held",
    "stop": "stop",
}
OUTCOME_CHIPS = {"allow": "ok", "block": "idle", "stop": "stop"}
"""Decision of an approval to the class of its chip."""
STATUS_CHIPS = {"open": "idle", "ended": "done", "done": "ok"}


ACTIVITY = {
    "opened": "Found",
    "reacted": "Reaction",
    "reacted_also": "Reaction",
    "agent_went_on": "The agent continued",
    "agent_changed": "The agent changed course",
    "agent_asked": "The agent left it to a person",
    "agent_ended": "The session ended or its calls were blocked",
    "ended": "Loop ended",
    "reopened": "Reopened",
    "labelled": "Label changed",
    "excepted": "Exception saved",
    "exception_undone": "Exception undone",
    "commented": "Commented",
    "undone": "Undone",
    "assigned": "Assigned",
    "came_back": "Came back",
    "later": "Later",
    "done": "Done",
    **{f"fine:{reason.value}" if reason else "fine": "This is fine" for reason in LabelReason},
    **{f"fine_run:{reason}" if reason else "fine_run": "This run is fine" for reason in LabelReason},
    "confirmed": "Confirmed: a loop",
    "confirmed_run": "Confirmed: this run was a loop",
    "label_removed": "Label removed",
}
"""Action of the activity of an incident or loop for people."""


class HasKind(Protocol):
    """An incident or a row of a list of incidents."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def tool(self) -> str: ...  # noqa: D102


def title(incident: HasKind, program: str = "") -> str:
    """Return the title of an incident; the program of a shell command tells those of one tool apart."""
    detector = detector_for(incident.kind)
    # A limit of the run is not reached by the tool of its last call.
    return (
        f"{detector.headline}: {incident.tool}{f' ({program})' if program else ''}"
        if incident.tool and not detector.is_run_limit
        else detector.headline
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the sentence; `strong` parts are emphasized."""

    text: str
    strong: bool = False


def sentence(incident: Incident, approval: Approval | None = None) -> tuple[Part, ...]:
    """Return the sentence that summarizes the incident and the reaction; see `did` for the parameters."""
    evidence = incident.evidence
    calls = evidence.get("calls", [])
    values = placeholders(
        incident.tool or "the session",
        incident.count,
        incident.limit,
        evidence.get("period", 1),
        evidence.get("results", ""),
        evidence.get("detail", {}),
    ) | {"span": _span(incident), "arguments": _arguments(incident)}
    pieces = detector_for(incident.kind).sentence.split("*")
    # Split before filling in: names may contain asterisks.
    first = tuple(
        Part(Template(piece).safe_substitute(values), strong=bool(place % 2))
        for place, piece in enumerate(pieces)
        if piece
    )
    return (*first, Part(_results(incident)), *_reaction(incident, calls, approval), Part("."))


def _arguments(incident: Incident) -> str:
    """Return whether the counted calls had the same arguments; the last call may be one that tried others."""
    if incident.evidence.get("detail", {}).get(NAMES_ONLY):
        return identical(names_only=True)
    calls = incident.evidence.get("calls", [])
    most = max(Counter(call.get("call_key") for call in calls).values(), default=0)
    return "identical" if most >= max(1, min(incident.count, len(calls))) else "different"


def _results(incident: Incident) -> str:
    # A refused call has the message that its agent got.
    calls = (call for call in incident.evidence.get("calls", []) if "result" in call)
    known = sum(not call_flags.has_not_run(call["flags"]) for call in calls)
    results = incident.evidence.get("results")
    if not detector_for(incident.kind).describes_results:
        return ". "
    if "progress" in incident.evidence:
        what = {"errors": "errors", "empty": "empty"}.get(results or "", "the same")
        return f", and the results were {what} until a new one came. "
    if results == "equal" and known > 1:
        each = "each call always had the same result" if detector_for(incident.kind).spans_tools else ""
        return f", and {each or f'all {known} known results were the same'}. "
    if results == "errors":
        return ", and the results were errors. "
    if results == "alike":
        return ", and the results were nearly the same. "
    if results == "changing":
        return ", although the results changed. "
    if results == "empty":
        return ", and the results were empty. "
    return ". "


HELD = {"allow": "held, then allowed", "block": "held, then skipped", "stop": "held, then stopped"}
"""Decision of the approval of a held call for people."""


def did(incident: Incident | IncidentRow, approval: Approval | None = None) -> str:
    """Return the reaction; for reported calls, the reaction that the guard would have had.

    Parameters
    ----------
    approval
        The newest approval of the incident, whose decision is the outcome of a hold.
    """
    if detector_for(incident.kind).is_silence:
        return "reported"
    word = _did(incident)
    if incident.decision == "hold" and approval is not None and approval.decision:
        word = HELD[approval.decision]
    return word if incident.decision == "allow" or incident.was_guarded else f"would be {word}"


def _did(incident: Incident | IncidentRow) -> str:
    """Return the strictest reaction in words: an agent that is known to have gone on was not stopped."""
    has_gone_on = bool(incident.recovered) or not incident.calls_blocked
    if isinstance(incident, Incident):
        calls = incident.evidence.get("calls", ())
        has_gone_on |= any(call_flags.ran_nevertheless(call["flags"]) for call in calls)
    is_known = incident.was_guarded and incident.decision == "stop" and has_gone_on
    return "asked to stop" if is_known else DID[incident.decision]


def did_chip(incident: Incident | IncidentRow, approval: Approval | None = None) -> str:
    """Return the class of the chip around `did`."""
    is_decided = incident.decision == "hold" and approval is not None and approval.decision
    return OUTCOME_CHIPS[approval.decision] if is_decided and approval else DECISION_CHIPS[incident.decision]


def progress(
    incident: Incident | IncidentRow, approval: Approval | None = None, *, is_blocked: bool = False
) -> str:
    """Return how far a loop is: active, blocked, allowed until it is found again, recovered or ended.

    Parameters
    ----------
    approval
        The newest approval of a row, which does not say whether its loop was allowed.
    is_blocked
        Whether the calls of its session are refused since a stop: no call of the loop runs, but the loop has not ended.
    """
    if not incident.is_active:
        return "recovered" if incident.recovered else "ended"
    if is_blocked:
        return "blocked"
    if isinstance(incident, Incident):
        return "allowed" if incident.is_released else "active"
    is_allowed = approval is not None and approval.decision == "allow"
    is_quiet = approval is not None and (approval.decided_at or incident.opened_at) >= incident.last_seen_at
    return "allowed" if is_allowed and is_quiet else "active"


_LIMIT_ENDS = f"This ends after {QUIET_CALLS} calls within the limit, or with its session."
_PROGRESS_OF_LIMITS = {
    "active": f"The limit is reached. {_LIMIT_ENDS}",
    "blocked": f"The calls of its session are refused. {_LIMIT_ENDS}",
    "allowed": f"Its held call was allowed, and the limit was not reached again. {_LIMIT_ENDS}",
    "recovered": "Further calls kept within the limit.",
    "ended": "The session ended at the limit, or this was labelled.",
}


def progress_words(word: str, kind: str) -> str:
    """Return the explanation of a word of `progress` for incidents of a detector."""
    detector = detector_for(kind)
    if detector.is_run_limit:
        return _PROGRESS_OF_LIMITS[word]
    end = f"It ends after {QUIET_CALLS} calls without the loop, or with its session."
    if detector.is_silence:
        end = "It ends with the next sign of life, or with its session."
    return {
        "active": f"The loop has not ended. {end}",
        "blocked": f"The calls of its session are refused. {end}",
        "allowed": f"Its held call was allowed, and the loop was not detected again. {end}",
        "recovered": "The agent left the loop.",
        "ended": "The loop has ended without a recovery, or was labelled.",
    }[word]


def _reaction(incident: Incident, calls: list[EvidenceCall], approval: Approval | None) -> tuple[Part, ...]:
    if detector_for(incident.kind).is_silence:
        return (Part("It was reported to operators, and the agent got no message"),)
    if incident.decision == "allow":
        return (Part(f"It was recorded only, {_why_no_reaction(incident, calls)}"),)
    if not incident.was_guarded and detector_for(incident.kind).judges_texts:
        return (Part("The agent got no message, because its texts were only reported"),)
    if not incident.was_guarded:
        is_imported = incident.session is not None and incident.session.is_imported
        how = "Its run was imported" if is_imported else "The agent only reports its calls"
        return (
            Part(f"{how}. With the guard, it "),
            Part(f"would have been {DID[incident.decision]}", True),
        )
    if incident.decision == "warn":
        return (Part("The agent was "), Part("warned", True))
    strict = _first(incident, incident.decision)
    earlier = [
        f"{DID[decision]} {preposition} the {formatting.ordinal(at)} call"
        for decision, preposition in (("warn", "at"), ("block", "from"))
        if decision != incident.decision and 0 < (at := _first(incident, decision)) < strict
    ]
    subject = "The agent was " if incident.decision == "stop" or earlier else "The call was "
    lead = f"{', '.join(earlier)} and " if earlier else ""
    again = incident.decision != "stop" and [_decision(call) for call in calls].count(incident.decision) > 1
    where = f" {'from' if again else 'at'} the {formatting.ordinal(strict)} call" if strict else ""
    outcome = ""
    if incident.decision == "hold" and approval is not None and approval.decision:
        outcome = HELD[approval.decision].removeprefix("held")
    return (Part(subject + lead), Part(f"{_did(incident)}{where}{outcome}", True))


def _why_no_reaction(incident: Incident, calls: list[EvidenceCall]) -> str:
    rungs = ladder(incident)
    if incident.rung == "observe" or (rungs.endswith("observe") and "," not in rungs):
        return "as the policy requires no reaction"
    if any(_decision(call) != "allow" for call in calls):
        reacts = "reacted" if incident.was_guarded else "would have reacted"
        return f"because another detector {reacts} to these calls"
    if incident.is_active:
        return "because no reaction has been due so far"
    return "because the loop ended before a reaction was due"


def _first(incident: Incident, decision: str) -> int:
    """Return which call of the loop was the first with a decision, from 1; 0 where that is not known."""
    calls, before = incident.evidence.get("calls", []), _calls_before_evidence(incident)
    place = next((place for place, call in enumerate(calls) if _decision(call) == decision), -1)
    return 0 if place < 0 or (before and not place) else before + place + 1


def _calls_before_evidence(incident: Incident) -> int:
    """Return how many calls of the loop are not in the evidence, which is bounded, because they came before it."""
    return max(0, incident.calls_in_loop - len(incident.evidence.get("calls", [])))


def verdicts(incident: Incident) -> str:
    """Return the reactions to the calls in the evidence in order, equal ones together: “3rd warn, 4th chance”.

    Reactions of other detectors have their names: “5th block by Repeats”.
    """
    runs: list[tuple[str, int, int]] = []
    for place, call in enumerate(incident.evidence.get("calls", []), _calls_before_evidence(incident) + 1):
        reaction = _rung(call)
        if call.get("decided_by", incident.kind) != incident.kind:
            reaction += f" by {detector_for(call['decided_by']).label}"
        elif incident.decision == "allow" != reaction:
            reaction += " by another detector"
        first = runs.pop()[1] if runs and runs[-1][0] == reaction else place
        runs.append((reaction, first, place))
    return ", ".join(
        f"{formatting.ordinal(first)}{f'–{formatting.ordinal(last)}' if last > first else ''} {reaction}"
        for reaction, first, last in runs
    )


def blocked_by(incident: Incident) -> str:
    """Return the rungs that blocked calls with their numbers, as in `ladder`; empty for one rung, or if not known."""
    counts = Counter(
        _rung(call) for call in incident.evidence.get("calls", []) if _decision(call) in BLOCKING
    )
    if len(counts) < 2 or counts.total() != incident.calls_blocked:
        return ""
    return ", ".join(f"{count} × {rung}" for rung, count in counts.items())


def ladder(incident: Incident) -> str:
    """Return the reactions of the ladder at that time in order, equal ones counted; empty where that is not known."""
    value = incident.policy.get(detector_for(incident.kind).ladder, {}).get("value")
    if value == "graduated":
        own = incident.policy.get("graduated_rungs", {}).get("value")
        value = value if isinstance(own, str) else own
    rungs = LADDERS.get(value, ()) if isinstance(value, str) else value or ()
    runs = [(rung, len([*same])) for rung, same in groupby(rungs)]
    return ", ".join(f"{count} × {rung}" if count > 1 else str(rung) for rung, count in runs)


def _decision(call: EvidenceCall) -> str:
    """Return the verdict of a call of the evidence, or the warning that its result added."""
    decision = str(call.get("decision", "allow"))
    is_warned = decision == "allow" and call_flags.WARNED in call.get("flags", "")
    return "warn" if is_warned else decision


def _rung(call: EvidenceCall) -> str:
    """Return the rung that blocked a call of the evidence; its verdict if it ran or the rung is not known."""
    decision = _decision(call)
    return str(call.get("rung", decision)) if decision in BLOCKING else decision


def times(incident: Incident, entry: IncidentActivity) -> int:
    """Return how often the agent did what an entry says; the activity has the first time after each rung only."""
    counts = incident.evidence.get("reactions", {}).get(entry.note.removeprefix("after "), {})
    return int(counts.get(entry.action.removeprefix("agent_"), 1))


def _span(incident: Incident) -> str:
    """Return how long the loop took, rounded up as in messages to agents; empty if unknown."""
    calls = incident.evidence.get("calls", [])
    # The evidence is bounded: of a longer loop it spans only the last calls.
    if not 1 < incident.calls_in_loop <= len(calls):
        return ""
    seconds = ceil(_seconds(calls))
    if seconds <= 1:
        return " within 1 s"
    return f" in {durations.span(seconds)}"


def unit(incident: Incident) -> str:
    """Return what the incident counted; for a spent budget, the unit of the limit."""
    return unit_of(incident.kind, incident.evidence.get("detail", {}).get("unit"))


def unit_of(kind: str, stated: str | None) -> str:
    """Return what a detector counts: what the evidence states, else the same for all its incidents."""
    return stated or detector_for(kind).unit


def uncounted(incident: Incident) -> str:
    """Return why the loop has more calls than its count of results; empty if it has not."""
    if not uncounted_calls(incident):
        return ""
    why = "blocked calls have no result"
    if not incident.was_guarded:
        why = "results of calls that would have been blocked do not count"
    return f"The loop has {incident.calls_in_loop:,} calls: {why}."


def slow_calls(incident: Incident) -> str:
    """Return how many calls counted as a fifth, because they came late after the one before; empty for none."""
    gap = incident.policy.get("slow_gap_seconds", {}).get("value")
    if not gap or incident.evidence.get("detail", {}).get("scope") != "consecutive":
        return ""
    # A slow call after an error is no poll.
    slow = sum(
        not before.get("is_error") and _seconds([before, call]) >= gap
        for before, call in pairwise(incident.evidence.get("calls", []))
    )
    if not slow:
        return ""
    reached = min((at for decision in BLOCKING if (at := _first(incident, decision))), default=0)
    verb = "was" if incident.was_guarded else "would have been"
    so = f", so the {formatting.ordinal(reached)} call {verb} the first one blocked" if reached else ""
    late = f"{slow} of these calls came {durations.exact(gap)} or more after the one before."
    return f"{late} A late call counts as one fifth of a call{so}."


def window_seconds(incident: Incident) -> float | None:
    """Return the length of the counting window, unless the sentence says how long the loop took."""
    is_said = "$span" in detector_for(incident.kind).sentence and _span(incident)
    return None if is_said else incident.window_seconds


def _seconds(calls: list[EvidenceCall]) -> float:
    moments = [datetime.fromisoformat(call["at"]) for call in calls if call.get("at")]
    return (max(moments) - min(moments)).total_seconds() if moments else 0.0


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A call of the evidence, compared with the previous call of its tool."""

    seq: int
    session: str
    at: datetime
    offset: str
    tool: str
    arguments: str
    changes: tuple[differences.Difference, ...]
    is_equal: bool
    result: str | None
    result_is_equal: bool
    is_error: bool
    has_not_run: bool
    ran_refused: bool
    was_allowed: bool
    decision: str
    chip: str
    rung: str

    @property
    def verdict(self) -> str:
        """The decision in words."""
        return DID.get(self.decision, self.decision) + (", but ran" if self.ran_refused else "")


def evidence(incident: Incident, allowed: Container[int] = ()) -> list[EvidenceLine]:
    """Return the evidence; each line has the changes since the previous call of the same tool.

    Parameters
    ----------
    allowed
        Sequence numbers of held calls that were allowed in the end.
    """
    calls = incident.evidence.get("calls", [])
    start: datetime | None = None
    lines: list[EvidenceLine] = []
    last: dict[str, EvidenceCall] = {}
    for call in calls:
        at = datetime.fromisoformat(call["at"])
        start = start or at
        tool = call.get("tool") or incident.tool
        before = last.get(tool)
        same_arguments = before is not None and _is_same(before, call, "arguments")
        is_cut = before is not None and any("arguments_digest" in one for one in (before, call))
        same_key = (
            before is not None
            and bool(call.get("call_key"))
            and before.get("call_key") == call.get("call_key")
        )
        changes: tuple[differences.Difference, ...] = ()
        if before is not None and not same_arguments:
            changes = differences.between(before.get("arguments"), call.get("arguments"))
        same_result = before is not None and "result" in call and _is_same(before, call, "result")
        decision = _decision(call)
        lines.append(
            EvidenceLine(
                seq=call["seq"],
                session=call.get("session", incident.session_name),
                at=at,
                offset=formatting.since(at - start),
                tool=tool,
                arguments=call.get("arguments", ""),
                changes=changes,
                is_equal=same_arguments or (same_key and not changes and not is_cut),
                result=call.get("result"),
                result_is_equal=same_result,
                is_error=bool(call.get("is_error")),
                has_not_run=call_flags.has_not_run(call.get("flags", "")),
                ran_refused=call_flags.ran_refused(call.get("flags", "")),
                was_allowed=call["seq"] in allowed,
                decision=decision,
                chip=DECISION_CHIPS.get(decision, "plain"),
                rung="" if (rung := _rung(call)) == decision else rung,
            )
        )
        last[tool] = call
    return lines


def _is_same(before: Mapping[str, Any], call: Mapping[str, Any], name: str) -> bool:
    """Return whether two calls have the same text, all of it: of one that was cut, the digest tells."""
    return all(before.get(one) == call.get(one) for one in (name, f"{name}_digest"))


@dataclass(frozen=True, slots=True)
class EvidenceText:
    """A text of the assistant or a compaction in the evidence."""

    seq: int
    at: datetime
    offset: str
    what: str
    text: str
    is_equal: bool


def texts(incident: Incident) -> list[EvidenceText]:
    """Return the texts and compactions of the evidence, each compared with the one before."""
    rows = incident.evidence.get("messages", [])
    moments = [datetime.fromisoformat(row["at"]) for row in rows]
    before = [None, *(row["text"] for row in rows)]
    return [
        EvidenceText(
            seq=row["seq"],
            at=at,
            offset=formatting.since(at - moments[0]),
            what="Compaction" if row["type"] == EventType.COMPACTION else "Assistant",
            text=row["text"],
            is_equal=bool(row["text"]) and row["text"] == earlier,
        )
        for row, at, earlier in zip(rows, moments, before, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its source."""

    name: str
    label: str
    value: str
    unit: str
    source: str
    is_key: bool


def settings_then(stored: Mapping[str, ExplainedSetting], kind: str) -> list[Setting]:
    """Return stored settings, `{field: {"value", "source"}}`, in the order of the engine's list."""
    rows, detector = [], detector_for(kind)
    is_graduated = stored.get(detector.ladder, {}).get("value") == "graduated"
    shown = {*detector.key_settings, *(["graduated_rungs"] if is_graduated else ())}
    for name, field in FIELDS.items():
        if name not in stored or (name == "graduated_rungs" and not is_graduated):
            continue
        source = str(stored[name].get("source", ""))
        rows.append(
            Setting(
                name,
                field.label,
                formatting.setting_value(stored[name].get("value"), name),
                "" if field.unit in ("seconds", "minutes") else field.unit,
                source,
                name in shown or not source.startswith("preset:"),
            )
        )
    return rows
