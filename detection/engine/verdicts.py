"""From findings to a verdict, and the same verdict once more for a call that is sent again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from detection.engine import messages
from detection.engine.calls import Decision, Finding, Message, Meter, Overrule, Rung, Verdict
from detection.engine.detectors import BY_KIND, detector_for
from detection.engine.memory import BLOCKING, EMPTY, ERROR, OK, KeptReaction, Record, RunState, State
from detection.engine.policy import Policy
from detection.engine.reactions import (
    DECISION_OF,
    ENDINGS,
    distinct,
    one_per_loop,
    react,
    reset_after,
    rung_after,
    strictest,
    unclaimed,
)
from detection.engine.writes import CHANGES

Templates = Mapping[str, str] | None


def decide(
    state: State,
    run: RunState,
    record: Record,
    findings: list[Finding],
    meter: Meter | None,
    policy: Policy,
    templates: Templates,
    overrule: Overrule | None,
    *,
    after_result: bool = False,
) -> Verdict:
    """Return the verdict: the strictest reaction to the findings."""
    if run.limits:
        findings = [_with_limit(run, one) for one in findings]
    # Where all detections share one ladder, a loop takes one step of it.
    has_own_ladders = not policy.reads_plainly and policy.values["escalation_scope"] == "loop"
    warned = run.warned if has_own_ladders else None
    reactions = [
        react(
            _owner(state, run, finding),
            finding,
            policy,
            at=run.records[-1].at,
            round_hash=record.round,
            warned=warned,
            after_result=after_result,
        )
        for finding in (unclaimed(findings) if has_own_ladders else distinct(findings))
    ]
    if has_own_ladders and len(reactions) > 1:
        reactions = one_per_loop(reactions)
    decisive = strictest(reactions)
    finding, ending = decisive.finding, next((one for one in ENDINGS if one == decisive.rung), None)
    reuses = _reusable(state, run, record, policy) if ending == "reuse" and not after_result else None
    guided = decisive.rung == "stop" and DECISION_OF.get(decisive.after) == "block"
    verdict = Verdict(
        decisive.decision,
        decisive.rung,
        finding,
        (finding, *(one.finding for one in reactions if one is not decisive)),
        _message(
            "block" if ending == "reuse" and reuses is None else decisive.rung,
            finding,
            policy,
            templates,
            decisive.number,
            after_guidance=guided,
            pause_seconds=decisive.pause_seconds,
        ),
        decisive.number,
        meter,
        ending if ending != "reuse" or reuses is not None else None,
        decisive.pause_seconds,
        reuses,
    )
    if overrule is not None and decisive.rung is not None and not finding.detail.get("notice"):
        own = overrule(verdict)
        if own is not None and own != verdict.decision:
            _overrule(verdict, own, policy, templates)
            decisive.decision = own
    if decisive.rung is not None:
        record.reaction = _kept(verdict, decisive.rung, finding, is_guided=guided)
        reset_after(run, _owner(state, run, finding), decisive, policy)
    return verdict


def _with_limit(run: RunState, finding: Finding) -> Finding:
    """Return a finding about errors with the limit of the call itself that the latest one reports, if it does."""
    if finding.results != "errors":
        return finding
    errors = (one for one in reversed(run.records) if one.status == ERROR and one.key in finding.call_keys)
    limit = next((run.limits.get(one.result) for one in errors), None)
    return replace(finding, detail={**finding.detail, "own_limit": limit}) if limit else finding


def decide_text(
    state: State, message: Message, findings: list[Finding], policy: Policy, templates: Templates
) -> Verdict:
    """Return the verdict on a text: a warning at most, because what has been said cannot be blocked."""
    if not findings:
        return Verdict()
    reactions = [react(state.whole, one, policy, at=message.at, after_result=True) for one in findings]
    decisive = strictest(reactions)
    text = _message(decisive.rung, decisive.finding, policy, templates, decisive.number, after_guidance=False)
    return Verdict(decisive.decision, decisive.rung, decisive.finding, tuple(findings), text, decisive.number)


def recall(state: State, record: Record, policy: Policy, templates: Templates) -> Verdict:
    """Return the verdict on a call that was judged before: it was sent again, or repeated within its round."""
    kept = record.reaction
    if kept is None:
        return Verdict()
    if record.effect == "poll":
        policy = policy.as_poll()
    finding = Finding(
        kept.kind,
        kept.count,
        kept.limit,
        kept.window_seconds,
        kept.window_calls,
        calls_digest=kept.calls_digest,
        results=kept.results,
        period=kept.period,
        call_keys=(record.key,),
        first_seq=record.seq,
        detail={"tool": record.tool, **kept.detail},
    )
    finding = detector_for(kept.kind).recalled(finding, _calls_up_to(state, record))
    said = kept.rung if kept.decision == DECISION_OF.get(kept.rung) else _RUNG_OF_DECISION.get(kept.decision)
    if kept.rung == "reuse" and kept.ending is None:
        said = "block"
    message = _message(
        said,
        finding,
        policy,
        templates,
        kept.number,
        after_guidance=kept.is_guided,
        pause_seconds=kept.pause_seconds,
    )
    return Verdict(
        kept.decision,
        kept.rung,
        finding,
        (finding,),
        message,
        kept.number,
        None,
        kept.ending,
        kept.pause_seconds,
        kept.reuses,
    )


def _kept(verdict: Verdict, rung: Rung, finding: Finding, *, is_guided: bool) -> KeptReaction:
    detail = finding.detail.copy()
    detail.pop("tool", None)
    return KeptReaction(
        verdict.decision,
        rung,
        verdict.detection_number,
        is_guided,
        finding.kind,
        finding.count,
        finding.limit,
        finding.window_seconds,
        finding.window_calls,
        finding.results,
        finding.period,
        detail,
        finding.calls_digest if verdict.decision == "hold" else "",
        verdict.ending,
        verdict.pause_seconds if verdict.ending else 0,
        verdict.reuses if verdict.ending else None,
    )


def _calls_up_to(state: State, record: Record) -> list[Record]:
    """Return the remembered calls of the run of this call, up to it."""
    for run in state.runs.values():
        for place, other in enumerate(run.records, 1):
            if other is record:
                return run.records[:place]
    return []


def _reusable(state: State, run: RunState, record: Record, policy: Policy) -> int | None:
    """Return the sequence number of the call whose result this one would reuse, or None.

    It is the latest identical call that ran, of a tool that reads, if it succeeded and no call of the session that may
    change something ran since, whatever its result. Without `result_aware`, nobody knows which calls do.
    """
    if policy.traits.tool_class != "read" or not policy.values["result_aware"]:
        return None
    if policy.values["identity"] == "tool":
        return None  # the earlier call may have asked for something else
    for other in reversed(run.records):
        if other.key == record.key and other is not record and other.decision not in BLOCKING:
            is_current = (
                other.status in (OK, EMPTY) and not other.is_obsolete and not _may_be_changed(state, other)
            )
            return other.seq if is_current else None
    return None


def _may_be_changed(state: State, record: Record) -> bool:
    """Return whether a call that may change something ran after this one, in any run of the session."""
    return any(
        one.seq > record.seq and one.effect in CHANGES and one.decision not in BLOCKING
        for run in state.runs.values()
        for one in run.records
    )


def _owner(state: State, run: RunState, finding: Finding) -> RunState:
    """Return what a finding counts over: the session, or the run of the call in hand."""
    return state.whole if BY_KIND[finding.kind].spans_session else run


def _message(
    rung: str | None,
    finding: Finding,
    policy: Policy,
    templates: Templates,
    number: int,
    *,
    after_guidance: bool,
    pause_seconds: int = 0,
) -> str:
    following = rung_after(policy, finding.kind, number)
    return messages.message(
        rung,
        finding,
        policy,
        templates,
        after_guidance=after_guidance,
        next_rung=following,
        pause_seconds=pause_seconds,
    )


_RUNG_OF_DECISION: Mapping[Decision, Rung | None] = {
    "allow": None,
    "warn": "warn",
    "block": "block",
    "stop": "stop",
}
"""The rung whose message explains a decision that overruled the ladder."""


def _overrule(verdict: Verdict, decision: Decision, policy: Policy, templates: Templates) -> None:
    """Replace the decision and its message; the rung stays that of the ladder."""
    if decision not in _RUNG_OF_DECISION:
        raise ValueError(
            f"a reaction is overruled by one of {', '.join(_RUNG_OF_DECISION)}, not {decision!r}"
        )
    verdict.decision = decision
    verdict.ending, verdict.pause_seconds, verdict.reuses = None, 0, None
    if verdict.finding is not None:
        verdict.message = _message(
            _RUNG_OF_DECISION[decision],
            verdict.finding,
            policy,
            templates,
            verdict.detection_number,
            after_guidance=False,
        )
