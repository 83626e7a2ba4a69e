"""Reactions to findings: the rung that a detection takes, and which reaction becomes the verdict.

Message texts are in `messages`. The services wait for people and for the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from detection.engine.bounded import drop_oldest
from detection.engine.calls import DECISIONS, Decision, Ending, Finding, FindingDetail, Rung
from detection.engine.detectors import BY_KIND, RANK, RUN_LIMITS, detector_for
from detection.engine.fields import LADDERS
from detection.engine.memory import MAX_LOOPS, LadderProgress, RunState
from detection.engine.policy import Policy

DECISION_OF: dict[str, Decision] = {
    "observe": "allow",
    "warn": "warn",
    "delay": "block",
    "reuse": "block",
    "chance": "block",
    "block": "block",
    "finish": "block",
    "ask": "hold",
    "judge": "hold",
    "stop": "stop",
}
"""The verdict of each rung."""

ENDINGS: tuple[Ending, ...] = ("finish", "reuse", "delay")
"""The rungs that block a call with a specific request other than changing the approach."""

# A longer pause would be a stop in all but name; a judgement, not measured.
MAX_PAUSE_SECONDS = 900

STRENGTH = {decision: strength for strength, decision in enumerate(DECISIONS)}

# These let the call run and need time to work. After a blocked call, the next identical call takes the next rung.
_NEEDS_TIME = frozenset(("observe", "warn"))
# Calls by which a loop is known again: twice the longest cycle of `cycle`; a judgement for the size of the state.
_MAX_LOOP_KEYS = 12
# Each pause is twice as long as the one before: after so many, one second is more than any pause may last.
_MAX_DOUBLINGS = 16
# A loop that continues is named again at twice, four and eight times the count: never silent, and never on each call.
_SAID_AGAIN = 2
# Two findings that share half of their calls are about one loop, see docs/decisions/0021-one-loop-one-reaction.md.
_SHARED = 0.5


def rungs(policy: Policy, kind: str) -> Sequence[str]:
    """Return the escalation ladder of a detector, as rungs."""
    ladder = policy.values[BY_KIND[kind].ladder]
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


def rung_after(policy: Policy, kind: str, number: int) -> str:
    """Return the rung that the next detection takes after `number` of them."""
    ladder = rungs(policy, kind)
    return ladder[min(number, len(ladder) - 1)]


class Reaction:
    """The reaction to one finding.

    Attributes
    ----------
    finding : Finding
        The finding.
    rung : str or None
        None if the ladder does not react to this call.
    decision : str
        The verdict of the rung.
    number : int
        Number of the detection, of this loop or in the run; see `escalation_scope`.
    after : str
        The previous rung of the loop.
    pause_seconds : int
        How long the agent is to wait, of a delay.
    """

    __slots__ = ("after", "decision", "finding", "number", "pause_seconds", "rung")

    def __init__(self, finding: Finding, rung: Rung | None, number: int, after: str = "") -> None:
        self.finding = finding
        self.rung = rung
        self.decision: Decision = DECISION_OF[rung] if rung else "allow"
        self.number = number
        self.after = after
        self.pause_seconds = 0


def react(
    run: RunState,
    finding: Finding,
    policy: Policy,
    *,
    at: float,
    round_hash: int = 0,
    warned: tuple[int, str] | None = None,
    after_result: bool = False,
) -> Reaction:
    """Take the next rung for a finding, if it is time for one.

    A round is one step of a ladder: a further detection in it gets the rung of the first one, because the model reads
    the messages of all its calls together.

    Parameters
    ----------
    run : RunState
        Contains how far each loop has escalated; changed in place.
    finding : Finding
        The detection.
    policy : Policy
        Names the ladder.
    at : float
        Server time of the current call in Unix seconds; the session as a whole has no records with times.
    round_hash : int
        Hash of the round of the call, 0 without one.
    warned : tuple of int and str, optional
        The latest warning of the run before this step; without it, also one of this step counts.
    after_result : bool
        The call has already run, so it can only be warned about. Anything stricter is left to the next call of the
        loop, where the detector fires again; meanwhile it is warned about each time that its count has doubled. With
        `outcome_method = literal` the run is stopped after the result.

    Returns
    -------
    Reaction
        Costs the same whatever the length of the session.
    """
    values = policy.values
    loop = run.loops.pop(finding.calls_digest, None)
    if loop is None:
        loop = LadderProgress(finding.kind, finding.call_keys[:_MAX_LOOP_KEYS])
    run.loops[finding.calls_digest] = loop
    if len(run.loops) > MAX_LOOPS:
        drop_oldest(run.loops, MAX_LOOPS)
    ladder, warned = rungs(policy, finding.kind), warned or run.warned
    if finding.detail.get("advisory"):
        return _advise(run, loop, finding, ladder, values["rung_gap_calls"], warned)
    _decay(run, loop, finding, values)
    level, is_step = _level(run, loop, round_hash, by_session=values["escalation_scope"] == "session")
    if loop.pause_ends and at >= loop.pause_ends:
        # The agent has kept the pause. This call runs; the next detection takes the next rung.
        loop.pause_ends = 0.0
        return Reaction(finding, None, level)
    if loop.ordinal and loop.rung in _NEEDS_TIME and run.ordinal - loop.ordinal < values["rung_gap_calls"]:
        return Reaction(finding, None, level)
    rung = _rung(ladder, level, finding)
    if DECISION_OF[rung] not in ("allow", "warn"):
        only_warns = policy.traits.tool_class == "fallible" and BY_KIND[finding.kind].only_warns_fallible
        # A command that its host refuses never ran, so it is not the shell that fails.
        if only_warns and not finding.detail.get("refusal"):
            rung = "warn"
        elif after_result and values["outcome_method"] == "fingerprint":
            return _remind(run, loop, finding, policy, level, warned)
    if rung == "warn" and not _warn(run, finding, values["rung_gap_calls"], warned):
        return Reaction(finding, None, level)
    run.detections += is_step
    if not round_hash or loop.round != round_hash:
        loop.level += 1
        loop.before = loop.rung
    loop.ordinal, loop.count, loop.rung, loop.round = run.ordinal, finding.count, rung, round_hash
    reaction = Reaction(finding, rung, level + 1, loop.before)  # type: ignore[arg-type]
    if rung == "delay":
        reaction.pause_seconds = _pause(loop, at, values["delay_seconds"], is_step=is_step)
    return reaction


def _rung(ladder: Sequence[str], level: int, finding: Finding) -> str:
    rung = ladder[min(level, len(ladder) - 1)]
    return "stop" if rung == "judge" and finding.detail.get("final") else rung


def _level(run: RunState, loop: LadderProgress, round_hash: int, *, by_session: bool) -> tuple[int, bool]:
    """Return the level of the ladder that a detection is on, and whether that is a further step: one for each round."""
    level, loops = (run.detections, run.loops.values()) if by_session else (loop.level, (loop,))
    has_stepped = bool(round_hash) and any(one.round == round_hash for one in loops)
    return max(0, level - has_stepped), not has_stepped


def _pause(loop: LadderProgress, at: float, first_seconds: int, *, is_step: bool) -> int:
    """Return how long the agent is to wait: twice as long as before, or as long as the other calls of the round."""
    if is_step or not loop.pause_ends:
        seconds = min(first_seconds << min(loop.delays, _MAX_DOUBLINGS), MAX_PAUSE_SECONDS)
        loop.delays += 1
        loop.pause_ends = at + seconds
    return ceil(loop.pause_ends - at)


def end_pauses(run: RunState, key: str, kind: str) -> None:
    """Note that a call of this key, delayed by this detector, runs because its pause is over."""
    for loop in run.loops.values():
        # A limit is reached by calls of any key.
        if key in loop.keys or (loop.kind == kind and detector_for(kind).is_run_limit):
            loop.pause_ends = 0.0


def end_loops(run: RunState) -> None:
    """Let the ladders of all loops start over; those of limits go on, because what is used stays used."""
    run.loops = {name: loop for name, loop in run.loops.items() if detector_for(loop.kind).is_run_limit}


def _decay(run: RunState, loop: LadderProgress, finding: Finding, values: Mapping[str, Any]) -> None:
    """Let a ladder start over: long after the loop, or when the agent used its chance and made another call.

    A count alone does not tell that: it also falls as calls age, weigh less or have a new result. The calls since the
    latest reaction tell, those that are not of the loop.
    """
    decay = values["escalation_decay_calls"]
    calls_since = run.ordinal - loop.ordinal
    may_be_over = decay and calls_since > decay + finding.count
    may_be_used = loop.rung == "chance" and finding.count <= loop.count
    if not loop.ordinal or not (may_be_over or may_be_used):
        return
    since = [record for record in run.records if record.ordinal > loop.ordinal]
    others = sum(1 for one in since if one.key not in finding.call_keys and one.seq not in finding.seqs)
    # Calls that are no longer remembered may have been others.
    is_over = may_be_over and others >= min(decay, len(since) - finding.count)
    if is_over or (may_be_used and others):
        loop.level, loop.ordinal, loop.rung, loop.round, loop.before, loop.delays = 0, 0, "", 0, "", 0


def _remind(
    run: RunState, loop: LadderProgress, finding: Finding, policy: Policy, level: int, warned: tuple[int, str]
) -> Reaction:
    """Warn again about a loop whose count has doubled, without a step: what is due waits for a call of the loop."""
    is_due = not policy.reads_plainly and finding.count >= _SAID_AGAIN * loop.count
    if not is_due or not _warn(run, finding, policy.values["rung_gap_calls"], warned):
        return Reaction(finding, None, level)
    loop.count = finding.count
    return Reaction(finding, "warn", level)


def _advise(
    run: RunState,
    loop: LadderProgress,
    finding: Finding,
    ladder: Sequence[str],
    gap: int,
    warned: tuple[int, str],
) -> Reaction:
    """React to an advisory finding: warn once, and again when the count has doubled."""
    if loop.count and finding.count < _SAID_AGAIN * loop.count and run.ordinal - loop.ordinal < finding.count:
        return Reaction(finding, None, loop.level)
    rung: Rung = "observe" if set(ladder) == {"observe"} or finding.detail.get("notice") else "warn"
    if rung == "warn" and not _warn(run, finding, gap, warned):
        return Reaction(finding, None, loop.level)
    loop.count, loop.ordinal = finding.count, run.ordinal
    return Reaction(finding, rung, loop.level)


def _warn(run: RunState, finding: Finding, gap: int, warned: tuple[int, str]) -> bool:
    """Return whether to warn the agent: not if another detector has just warned about some of these calls."""
    ordinal, calls_digest = warned
    latest = run.loops.get(calls_digest)
    if (
        gap > 1
        and run.ordinal - ordinal < gap
        and calls_digest != finding.calls_digest
        and latest is not None
        and not set(latest.keys).isdisjoint(finding.call_keys)
    ):
        return False
    run.warned = (run.ordinal, finding.calls_digest)
    return True


def unclaimed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those about identical calls that a detector of identical calls has found as well.

    Its ladder is the setting for just these calls: where a person lets them run, nothing else stops them.
    """
    exact = [one for one in findings if BY_KIND[one.kind].is_exact and not one.detail.get("advisory")]
    if not exact:
        return [*findings]
    return [
        one
        for one in findings
        if one in exact
        or stands_alone(one.kind, one.detail)
        or not any(_lies_within(one, other) for other in exact)
    ]


def one_per_loop(reactions: Sequence[Reaction]) -> list[Reaction]:
    """Return the strictest reaction to each loop, the strictest of all first.

    Findings are about one loop if the calls of one lie within those of the other, or at least half are shared.
    """
    kept: list[Reaction] = []
    for one in sorted(reactions, key=_precedence, reverse=True):
        if stands_alone(one.finding.kind, one.finding.detail) or not any(
            are_one_loop(one.finding.call_keys, other.finding.call_keys)
            for other in kept
            if not stands_alone(other.finding.kind, other.finding.detail)
        ):
            kept.append(one)
    return kept


def _precedence(one: Reaction) -> tuple[int, bool, int, int]:
    """Put the strictest first; among equals one with a rung, what has reacted most often, or the first by rank."""
    return STRENGTH[one.decision], one.rung is not None, one.number, -RANK[one.finding.kind]


def stands_alone(kind: str, detail: FindingDetail) -> bool:
    """Return whether a finding is a loop of its own, whichever calls it shares with others: see `are_one_loop`."""
    return detector_for(kind).stands_alone or bool(detail.get("family"))


def strictest(reactions: Sequence[Reaction]) -> Reaction:
    """Return the decisive reaction: the strictest one; among equals one with a rung, then the first by rank."""
    return max(
        reactions, key=lambda one: (STRENGTH[one.decision], one.rung is not None, -RANK[one.finding.kind])
    )


def reset_after(run: RunState, owner: RunState, reaction: Reaction, policy: Policy) -> None:
    """Reset what `reset_after_detection` names; for a held call, once it is decided.

    `owner` is what the finding counts over: the run, or the session as a whole.
    """
    if reaction.finding.detail.get("notice"):
        # A near limit is only announced to operators; nothing was detected yet.
        return
    values = policy.values
    reset, calls_digest = values["reset_after_detection"], reaction.finding.calls_digest
    if reaction.decision == "hold" and calls_digest in owner.loops:
        owner.loops[calls_digest].reset = reset
    elif reaction.decision == "stop" and values["clear_on_stop"]:
        reset_counters(run, calls_digest, "all")
    else:
        reset_counters(owner, calls_digest, reset)


def reset_counters(run: RunState, calls_digest: str, reset: str) -> None:
    """Reset the counters of a loop (`loop`), those of all loops (`all`), or none."""
    if reset == "all":
        # What the run has used stays used: limits of the run are no loops.
        limits = {kind: own for kind, own in run.detectors.items() if kind in RUN_LIMITS}
        run.reset()
        run.detectors.update(limits)
    elif reset == "loop":
        reset_loop(run, calls_digest)


def reset_loop(run: RunState, calls_digest: str) -> LadderProgress | None:
    """Count a loop from zero again and let its ladder start over; return it, or None if it is unknown."""
    loop = run.loops.pop(calls_digest, None)
    if loop is None:
        return None
    run.discard(loop.keys)
    for kind, own in run.detectors.items():
        if kind in BY_KIND:
            BY_KIND[kind].reset(own, run, loop.keys)
    return loop


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per loop, by rank, where the detectors of a loop share one ladder.

    A spent run limit is not a loop and is always kept, and calls of other sessions of a family are not this session's
    loop.
    """
    kept: list[Finding] = []
    loops: list[Finding] = []
    for finding in findings:
        if BY_KIND[finding.kind].is_run_limit or finding.detail.get("family"):
            kept.append(finding)
        elif not any(_lies_within(finding, other) for other in loops):
            kept.append(finding)
            loops.append(finding)
    return kept


def are_one_loop(one_keys: Iterable[str], other_keys: Iterable[str]) -> bool:
    """Return whether two findings are about one loop: the calls of one lie within the other's, or half are shared.

    Findings that stand alone are not to be compared, see `stands_alone`. The relation is not transitive.
    """
    keys, others = set(one_keys), set(other_keys)
    shared = keys & others
    return len(shared) in (len(keys), len(others)) or len(shared) >= _SHARED * max(len(keys), len(others))


def _lies_within(one: Finding, other: Finding) -> bool:
    keys, others = set(one.call_keys), set(other.call_keys)
    return keys <= others or others <= keys
