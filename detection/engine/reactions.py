"""Which rung a detection takes, and what the verdict is.

Ladders, gaps between rungs, forgiveness and re-arming. Wording belongs to `texts`, waiting for a person or a judge to
the services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detection.engine.calls import DECISIONS, Decision, Finding, Rung, Verdict
from detection.engine.detectors import BY_KIND, RANK
from detection.engine.fields import LADDERS
from detection.engine.memory import MAX_LOOPS, Lane, Loop, bounded
from detection.engine.policy import Policy

DECISION_OF: dict[str, Decision] = {
    "observe": "allow",
    "warn": "warn",
    "chance": "block",
    "block": "block",
    "ask": "hold",
    "judge": "hold",
    "stop": "stop",
}
"""The verdict that each rung gives."""

STRENGTH = {decision: strength for strength, decision in enumerate(DECISIONS)}

# Rungs that let the call run need time to work; after a refusal the very next equal call takes the next rung.
_PATIENT = frozenset(("observe", "warn"))


def rungs(policy: Policy, kind: str) -> Sequence[str]:
    """The ladder of a kind of finding, as rungs."""
    ladder = policy.values["mode" if kind == "repeat" else f"{kind}_ladder"]
    if not isinstance(ladder, str):
        return tuple(ladder)
    if ladder == "graduated":
        own = policy.values["graduated_rungs"]
        return LADDERS["graduated"] if isinstance(own, str) else tuple(own)
    if ladder == "judge_or_ask":
        if policy.values["judge_available"]:
            return ("judge",)
        return ("ask",) if policy.values["attended"] else ("stop",)
    return LADDERS[ladder]


class Reaction:
    """What a finding comes to: the rung, or None where its ladder keeps silent for now; `after` is the loop's last rung."""

    __slots__ = ("after", "decision", "finding", "number", "rung")

    def __init__(self, finding: Finding, rung: Rung | None, number: int, after: str = "") -> None:
        self.finding = finding
        self.rung = rung
        self.decision: Decision = DECISION_OF[rung] if rung else "allow"
        self.number = number
        self.after = after


def react(lane: Lane, finding: Finding, policy: Policy, *, after_result: bool = False) -> Reaction:
    """Take the next rung for a finding, if it is time for one.

    Parameters
    ----------
    lane : Lane
        Remembers how far each loop is.
    finding : Finding
        The detection.
    policy : Policy
        Names the ladder.
    after_result : bool
        The call has run already, so only a warning can be given now (the literal preset alone ends a run here, as its
        original does); anything stronger is carried to the next call
        that continues the loop, where the detector finds it again.

    Returns
    -------
    Reaction
        Costs nothing that grows with the session.
    """
    values = policy.values
    loop = lane.loops.pop(finding.loop_id, None)
    if loop is None:
        loop = Loop(finding.kind, finding.call_keys[:12])
    lane.loops[finding.loop_id] = loop
    if len(lane.loops) > MAX_LOOPS:
        bounded(lane.loops, MAX_LOOPS)
    ladder = rungs(policy, finding.kind)
    if finding.detail.get("advisory"):
        return _advise(lane, loop, finding, ladder)
    _forgive(lane, loop, finding, values)
    by_session = values["escalation_scope"] == "session"
    level = lane.detections if by_session else loop.level
    if loop.ordinal and loop.rung in _PATIENT and lane.ordinal - loop.ordinal < values["rung_gap_calls"]:
        return Reaction(finding, None, level)
    rung = ladder[min(level, len(ladder) - 1)]
    if rung == "judge" and finding.detail.get("final"):
        rung = "stop"
    if DECISION_OF[rung] not in ("allow", "warn"):
        if _only_nudge(finding, policy):
            rung = "warn"
        elif after_result and values["outcome_method"] == "fingerprint":
            return Reaction(finding, None, level)
    if rung == "warn" and _just_warned(lane, finding, values["rung_gap_calls"]):
        return Reaction(finding, None, level)
    lane.detections += 1
    loop.level += 1
    before = loop.rung
    loop.ordinal, loop.count, loop.rung = lane.ordinal, finding.count, rung
    if rung == "warn":
        lane.warned = (lane.ordinal, finding.call_keys[-1] if finding.call_keys else "")
    return Reaction(finding, rung, lane.detections if by_session else loop.level, before)  # type: ignore[arg-type]


def _forgive(lane: Lane, loop: Loop, finding: Finding, values: Any) -> None:
    """Let a loop start its ladder over: after long clean work, or when it took its chance and did something else."""
    decay = values["escalation_decay_calls"]
    clean = lane.ordinal - loop.ordinal
    took_chance = loop.rung == "chance" and finding.count <= loop.count
    if loop.ordinal and ((decay and clean > decay + finding.count) or took_chance):
        loop.level, loop.ordinal, loop.rung = 0, 0, ""


def _advise(lane: Lane, loop: Loop, finding: Finding, ladder: Sequence[str]) -> Reaction:
    """A finding that never goes past a warning: said once, and again when the count has doubled."""
    if loop.count and finding.count < 2 * loop.count and lane.ordinal - loop.ordinal < finding.count:
        return Reaction(finding, None, loop.level)
    rung: Rung = "observe" if set(ladder) == {"observe"} or finding.detail.get("notice") else "warn"
    loop.count, loop.ordinal = finding.count, lane.ordinal
    if rung == "warn":
        lane.warned = (lane.ordinal, finding.call_keys[-1] if finding.call_keys else "")
    return Reaction(finding, rung, loop.level)


def _only_nudge(finding: Finding, policy: Policy) -> bool:
    """A series of failing look-ups is normal for a tool such as a shell: its sameness is worth a word, not a refusal."""
    return policy.traits.tool_class == "fallible" and finding.kind in ("similar", "outcome", "stagnation")


def _just_warned(lane: Lane, finding: Finding, gap: int) -> bool:
    """Whether another detector has warned about these calls a moment ago."""
    ordinal, key = lane.warned
    return gap > 1 and lane.ordinal - ordinal < gap and (key in finding.call_keys or not key)


def strictest(reactions: Sequence[Reaction]) -> Reaction:
    """The reaction that decides: the strongest, and among equals the one that speaks, then the detector's rank."""
    return max(
        reactions,
        key=lambda one: (STRENGTH[one.decision], one.rung is not None, -RANK.get(one.finding.kind, 99)),
    )


def settle(lane: Lane, reaction: Reaction, policy: Policy) -> None:
    """Forget what the policy says is forgotten after a detection."""
    if reaction.rung is None:
        return
    values = policy.values
    if reaction.decision == "stop" and values["clear_on_stop"]:
        lane.clear()
        return
    reset = values["reset_after_detection"]
    if reset == "all":
        lane.clear()
    elif reset == "loop":
        rearm(lane, reaction.finding.loop_id)


def rearm(lane: Lane, loop_id: str) -> Loop | None:
    """Start counting a loop anew and let its ladder begin at the bottom."""
    loop = lane.loops.pop(loop_id, None)
    if loop is None:
        return None
    lane.spend(loop.keys)
    for kind, detector in BY_KIND.items():
        if kind in lane.own:
            detector.rearm(lane.own[kind], lane, loop.keys)
    return loop


def same_loop(one: Finding, other: Finding) -> bool:
    """Whether two findings of one step speak of the same calls."""
    keys, others = set(one.call_keys), set(other.call_keys)
    return keys <= others or others <= keys


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per loop: the one ranked first speaks for it. A budget speaks for itself."""
    kept: list[Finding] = []
    for finding in findings:
        budget = finding.kind == "budget"
        if budget or not any(other.kind != "budget" and same_loop(finding, other) for other in kept):
            kept.append(finding)
    return kept


def verdict(reactions: Sequence[Reaction], message: str) -> Verdict:
    """The answer for the step from all its reactions; at least one."""
    decider = strictest(reactions)
    others = tuple(one.finding for one in reactions if one is not decider)
    return Verdict(
        decision=decider.decision,
        rung=decider.rung,
        finding=decider.finding,
        findings=(decider.finding, *others),
        message=message,
        detection_number=decider.number,
    )
