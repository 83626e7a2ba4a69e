"""The fold: takes one observation after another into a session's state and returns a verdict.

The result depends only on the state, the observation, the policy and the key. The state that is passed in is changed.
`snapshot` stores and loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal, cast

from detection.engine import messages
from detection.engine.calls import (
    Arguments,
    Call,
    Decision,
    End,
    Finding,
    Message,
    Meter,
    ObservedCall,
    ObservedResult,
    Overrule,
    Rung,
    Step,
    StripCell,
    Usage,
    Verdict,
)
from detection.engine.detectors import (
    BY_KIND,
    ON_CALL,
    ON_CHANGE,
    ON_MESSAGE,
    ON_REBUILT,
    ON_RESULT,
    ON_TEXT,
    ON_TURN,
    ON_UNCOUNTED,
    ON_USAGE,
    QUIET,
    RUN_LIMITS,
    SESSION_WIDE,
    Reading,
    detector_for,
)
from detection.engine.detectors.base import NAMES_ONLY
from detection.engine.directories import place_of
from detection.engine.dispatching import inner, judged, outer
from detection.engine.identity import Keyer
from detection.engine.memory import (
    BLOCKING,
    EMPTY,
    ERROR,
    MAX_EXEMPT,
    MAX_RECORDS,
    OK,
    PENDING,
    Record,
    RunState,
    State,
    bounded_name,
    drop_oldest,
    hash_of,
)
from detection.engine.open_calls import (
    counted_in_round,
    find_closed,
    find_resent,
    is_assigned,
    key_and_arguments,
    round_of,
)
from detection.engine.policy import Policy
from detection.engine.reactions import (
    DECISION_OF,
    ENDINGS,
    distinct,
    end_pauses,
    react,
    reset_after,
    reset_counters,
    reset_loop,
    rung_after,
    strictest,
)
from detection.engine.results import CallFacts, ResultOutcome, evaluate_result, found_nothing, is_cut
from detection.engine.results.echo import nested_texts
from detection.engine.similarity import literal_arguments, sketch
from detection.engine.windows import window_of
from detection.engine.writes import effect_of

Choice = Literal["skip", "allow_once", "raise"]
Faults = tuple[tuple[str, str], ...]
Templates = Mapping[str, str] | None

_CELL_RESULT = {PENDING: "pending", ERROR: "error", EMPTY: "empty"}
_SLOW_LOOKBACK_CALLS = 8
_SLOW_WEIGHT = 0.2
_MAX_LITERAL_BYTES = 1500
# What the message of a resent call needs of its finding.
_KEPT_OF_FINDING = attrgetter("kind", "count", "limit", "window_seconds", "window_calls", "results", "period")


def new_state() -> State:
    """Return the state of a new session."""
    return State()


def observe_call(
    state: State,
    call: ObservedCall,
    policy: Policy,
    keyer: Keyer,
    templates: Templates = None,
    overrule: Overrule | None = None,
) -> Step:
    """Judge a call before it runs.

    Parameters
    ----------
    state : State
        Changed in place, unless detection is disabled.
    call : ObservedCall
        The call.
    policy : Policy
        The session's policy; tool rules are applied here.
    keyer : Keyer
        The project's digests.
    templates : mapping, optional
        The project's own message templates by rung.
    overrule : callable, optional
        Called with the verdict of each detection that the ladder reacts to; see `Overrule`.

    Returns
    -------
    Step
        The verdict and what a service stores. Costs tens of microseconds, whatever the length of the session.
    """
    call, arguments = judged(call, interprets=not policy.reads_plainly)
    session_policy, policy = policy, policy.for_tool(call.tool)
    values = policy.values
    if not values["enabled"]:
        return Step()
    traits = policy.traits
    key, arguments = key_and_arguments(call, arguments, policy, keyer)
    call_hash = hash_of(call.call_id) if call.call_id else 0
    round_hash = hash_of(call.round) if call.round else 0
    is_request = call.round is not None and is_assigned(call.round)
    if call_hash:
        is_resent, known = find_resent(state, call, key, call_hash, 0 if is_request else round_hash)
        if is_resent:
            return (
                _duplicate(state, known, policy, templates) if known else Step(call_key=key, duplicate=True)
            )
    tool = bounded_name(call.tool)
    if traits.neutral or (state.exempt and _is_exempt(state, call.tool)):
        state.add_uncounted(call.seq, call_hash, tool, key)
        _note_uncounted(state, call, policy)
        return Step(call_key=key, cell=_cell(call.seq, call.tool, key, Verdict(), PENDING, None))
    run = state.run(bounded_name(call.run or "") if values["counting_scope"] == "run" else "")
    if round_hash:
        round_hash = round_of(run, round_hash, is_request=is_request)
    if round_hash and values["once_per_round"]:
        counted = counted_in_round(run, key, round_hash)
        if counted is not None:
            if counted.decision not in BLOCKING:
                state.add_uncounted(call.seq, call_hash, tool, key)
            _note_uncounted(state, call, policy)
            return _duplicate(state, counted, policy, templates, seq=call.seq)
    record = Record(call.seq, run.ordinal + 1, tool, key, call.at, round_hash, call_hash)
    _add_record(run, record, arguments, call.cwd, policy, keyer)
    state.whole.ordinal += 1
    _forget(run, session_policy)
    if record.effect == "poll":
        policy = policy.as_poll()
    findings, meter, faults = _run_detectors(
        state, run, record, policy, call, policy.plans.get("on_call") or _hooks(policy, "on_call")
    )
    verdict = _decide(state, run, record, findings, meter, policy, templates, overrule)
    return Step(
        verdict=verdict,
        call_key=key,
        cell=_cell(call.seq, call.tool, key, verdict, PENDING, None),
        faults=faults,
    )


def call_key(call: ObservedCall, policy: Policy, keyer: Keyer) -> str:
    """Return the key by which a call is compared under the policy of the session."""
    call, arguments = judged(call, interprets=not policy.reads_plainly)
    return key_and_arguments(call, arguments, policy.for_tool(call.tool), keyer)[0]


def _is_exempt(state: State, tool: str) -> bool:
    """Return whether a person exempted a tool in this session, or the one that dispatches it."""
    return any(bounded_name(name) in state.exempt for name in (tool, outer(tool), inner(tool)))


def count_identical(
    state: State, key: str, policy: Policy, at: float, *, tool: str = "", run: str | None = None
) -> int:
    """Return how many calls of a key count for `max_repeats` at a time, without a further one; nothing is changed.

    Parameters
    ----------
    tool : str
        The tool of the calls; without it, that of the latest remembered call of this key.
    run : str, optional
        The run, where counting is per run.
    """
    name = bounded_name(run or "") if policy.values["counting_scope"] == "run" else ""
    counted = deepcopy(state.runs.get(name))
    if counted is None:
        return 0
    latest = next((one for one in reversed(counted.records) if one.key == key), None)
    tool = tool or (latest.tool if latest is not None else "")
    policy = policy.for_tool(tool)
    if not policy.values["repeat_enabled"]:
        return 0
    # What one more call would count, less itself.
    counted.ordinal += 1
    record = Record(counted.ordinal, counted.ordinal, bounded_name(tool), key, at, 0, 0)
    counted.records.append(record)
    detector = BY_KIND["repeat"]
    own = counted.detectors.setdefault(detector.kind, {})
    return detector.on_call(own, counted, record, Call(record.seq, tool, None, at), policy).reached - 1


def observe_result(
    state: State,
    result: ObservedResult,
    policy: Policy,
    keyer: Keyer,
    templates: Templates = None,
    overrule: Overrule | None = None,
) -> Step:
    """Judge a call by its result.

    A finding made here can only warn; anything stricter waits for the next call. Results of unknown calls and second
    results of a call are ignored. A call that was to be blocked has a result only if it was reported after it had run:
    its result is described and not judged. Parameters and return value are those of `observe_call`.
    """
    closed = find_closed(state, result, policy, keyer) if policy.values["enabled"] else None
    if closed is None:
        return Step()
    run, record = closed.run, closed.record
    if run is None or record is None:
        return Step(closes=closed.seq)
    policy = policy.for_tool(record.tool)
    if record.effect == "poll":
        policy = policy.as_poll()
    if record.status != PENDING:
        return Step(call_key=record.key, duplicate=True)
    if not policy.values["enabled"]:
        return Step(call_key=record.key, closes=record.seq)
    outcome, is_change = _outcome_of(record, result, policy, keyer)
    if record.decision in BLOCKING:
        return _described(run, record, outcome, keyer)
    # Errors are compared by their cause: the same error for another argument is not new.
    record.status, record.result = outcome.status, (outcome.error_digest or outcome.digest)[:16]
    # An empty result, a bare "ok" or a receipt means nothing by itself: for other arguments it is a new one.
    is_new_pair = False
    if is_change or outcome.is_value or not outcome.is_evidence:
        is_new_pair = run.is_new(keyer.digest(b"pair", outcome.digest.encode(), record.key.encode()))
    record.is_new = run.is_new(outcome.digest) if outcome.is_evidence else is_new_pair or outcome.is_picture
    outcome.is_value = outcome.is_value and is_new_pair
    run.results += 1
    if record.is_new and outcome.is_evidence and record.status == OK:
        run.new_results += 1
    faults: Faults = ()
    if is_change and is_new_pair:
        faults = _discard_outdated(state, run, record)
    findings, meter, more = _run_detectors(
        state, run, record, policy, outcome, policy.plans.get("on_result") or _hooks(policy, "on_result")
    )
    verdict = _decide(state, run, record, findings, meter, policy, templates, overrule, after_result=True)
    return Step(
        verdict=verdict,
        call_key=record.key,
        result_digest=outcome.digest,
        error_digest=outcome.error_digest,
        result_is_new=record.is_new,
        cell=_cell(record.seq, record.tool, record.key, verdict, record.status, record.is_new),
        closes=record.seq,
        faults=faults + more,
    )


def _described(run: RunState, record: Record, outcome: ResultOutcome, keyer: Keyer) -> Step:
    """Return the result of a call that was to be blocked, without counting it anywhere; its cell has the decision.

    It is new if no result before it was the same. Later results that count are not compared with it.
    """
    digest = outcome.digest
    if not outcome.is_evidence:
        digest = keyer.digest(b"pair", digest.encode(), record.key.encode())
    is_new = run.is_new_of_blocked(digest)
    verdict = Verdict(cast("Decision", record.decision))
    return Step(
        call_key=record.key,
        result_digest=outcome.digest,
        error_digest=outcome.error_digest,
        result_is_new=is_new,
        cell=_cell(record.seq, record.tool, record.key, verdict, outcome.status, is_new),
        closes=record.seq,
    )


def _outcome_of(
    record: Record, result: ObservedResult, policy: Policy, keyer: Keyer
) -> tuple[ResultOutcome, bool]:
    """Return what a result says, and whether its call has changed something."""
    content = result.content
    if content is not None and result.tail:
        content += "\n" + result.tail
    call = CallFacts(record.tool, record.sketch, record.nested, record.effect)
    record.nested = ""
    outcome = evaluate_result(
        content, result.is_error, policy.traits, keyer, call, plain=policy.reads_plainly
    )
    outcome.is_cut = bool(result.tail) or is_cut(content or "")
    if record.effect == "note" and outcome.is_receipt:
        # What an answer repeats of the old list or the new one is nothing that happened.
        outcome.digest = keyer.digest(b"note")
    elif record.place and outcome.status == OK and outcome.is_evidence and not found_nothing(outcome):
        # "All tests passed" says something else in every directory; an error and nothing found do not.
        outcome.digest = keyer.digest(b"place", record.place.to_bytes(4), outcome.digest.encode())
    if outcome.status == ERROR:
        return outcome, False
    has_changed = record.effect == "write" and (outcome.is_receipt or outcome.status == EMPTY)
    return outcome, has_changed or record.effect == "command"


def observe_message(
    state: State, message: Message, policy: Policy, keyer: Keyer, templates: Templates = None
) -> Step:
    """Judge a text of the assistant or a compaction, and reset counters when a person speaks.

    With `message_begins_run`, a person's message begins a run where the client names none. In an attended session, and
    on an explicit "continue", all counters of the other runs are reset. Otherwise their ladders start over, except
    those of limits, and with `result_aware` what succeeded before may be asked for again. What a run has used stays
    used, and nothing resets the limits of a session. A condensed context begins a turn and resets nothing: a loop does
    not end because the model has forgotten it. What a program wrote in a person's place is no `Message`.

    Returns
    -------
    Step
        Its verdict is `allow` or `warn`: what has been said cannot be blocked. There is no cell.
    """
    if not policy.values["enabled"]:
        return Step()
    step = _judge_text(state, message, policy, keyer, templates)
    if message.kind != "assistant":
        for owner in state.counted:
            for detector in ON_TURN:
                if detector.kind in owner.detectors:
                    detector.on_turn(owner.detectors[detector.kind])
    if message.kind in ("user", "continue"):
        _reset_by_message(state, message, policy)
    return step


def _judge_text(state: State, message: Message, policy: Policy, keyer: Keyer, templates: Templates) -> Step:
    findings: list[Finding] = []
    faults: Faults = ()
    for detector in ON_TEXT:
        if not policy.values[detector.switch]:
            continue
        own = state.whole.detectors.setdefault(detector.kind, {})
        try:
            finding = detector.on_text(own, message, policy, keyer).finding
        except Exception as error:  # noqa: BLE001 - see _run_detectors
            faults += ((detector.kind, type(error).__name__),)
            continue
        findings += [finding] if finding is not None else []
    if not findings:
        return Step(faults=faults)
    reactions = [react(state.whole, one, policy, at=message.at, after_result=True) for one in findings]
    decisive = strictest(reactions)
    text = _message(decisive.rung, decisive.finding, policy, templates, decisive.number, after_guidance=False)
    verdict = Verdict(
        decisive.decision, decisive.rung, decisive.finding, tuple(findings), text, decisive.number
    )
    return Step(verdict=verdict, faults=faults)


def _reset_by_message(state: State, message: Message, policy: Policy) -> None:
    if policy.values["message_begins_run"] and policy.values["counting_scope"] == "run":
        state.begin_run()
    is_attended = policy.values["attended"] or message.kind == "continue"
    if is_attended:
        reset_counters(state.whole, "", "all")
    elif policy.values["result_aware"]:
        _tell_detectors(state.whole)
    for run in state.runs.values():
        if is_attended:
            run.reset()
            continue
        run.loops = {name: loop for name, loop in run.loops.items() if loop.kind in RUN_LIMITS}
        if policy.values["result_aware"]:
            run.user_spoke()
            _tell_detectors(run)


def _tell_detectors(run: RunState) -> None:
    for detector in ON_MESSAGE:
        if detector.kind in run.detectors:
            detector.on_message(run.detectors[detector.kind])


def observe_usage(state: State, usage: Usage, policy: Policy) -> None:
    """Add the usage of a model response that came after its calls; limits are checked with the next call."""
    if not policy.values["enabled"]:
        return
    run = state.run(bounded_name(usage.run or "") if policy.values["counting_scope"] == "run" else "")
    for detector in ON_USAGE:
        if policy.values[detector.switch]:
            owner = state.whole if detector.spans_session else run
            detector.on_usage(owner.detectors.setdefault(detector.kind, {}), usage)


def observe_end(state: State, end: End, policy: Policy) -> None:
    """Forget a run that has ended, where counting is per run."""
    if policy.values["enabled"] and policy.values["counting_scope"] == "run":
        state.end_run(bounded_name(end.run or ""))


def apply_choice(state: State, loop_id: str, choice: Choice, by: int = 0) -> bool:
    """Apply an operator's choice about a loop.

    Parameters
    ----------
    state : State
        Changed in place.
    loop_id : str
        The loop.
    choice : {"skip", "allow_once", "raise"}
        `skip` keeps the counters that `reset_after_detection` keeps, so that the same call needs an approval again.
        `allow_once` and `raise` reset them, and `raise` also grants `by` further calls, each time.
    by : int
        Calls that `raise` grants.

    Returns
    -------
    bool
        Whether the loop was known.
    """
    for run in state.counted:
        loop = run.loops.get(loop_id)
        if loop is None:
            continue
        if choice != "skip":
            reset_loop(run, loop_id)
        if choice == "raise" and by > 0:
            for name in loop.keys if detector_for(loop.kind).is_exact else (loop.kind,):
                run.allowances[name] = run.allowance(name) + by
            drop_oldest(run.allowances, MAX_RECORDS)
        reset_counters(run, loop_id, loop.reset)
        return True
    return False


def release(state: State, loop_id: str, since: int) -> None:
    """Let the held calls of a loop run, from the sequence number `since` on, as one decision allows all of them."""
    for run in state.runs.values():
        for record in run.records:
            if record.seq >= since and record.reaction is not None and _loop_of(record.reaction) == loop_id:
                record.reaction = None


def _loop_of(reaction: tuple[Any, ...]) -> str:
    """Return the identity of the loop that a call is held for, empty if it is not held."""
    return str(reaction[-1]) if reaction[0] == "hold" else ""


def close_hold(state: State, loop_id: str) -> None:
    """Reset what `reset_after_detection` names, because no call of this loop waits for a decision any more."""
    for run in state.counted:
        if loop_id in run.loops:
            reset_counters(run, loop_id, run.loops[loop_id].reset)


def run_after_pause(state: State, seq: int) -> bool:
    """Let a delayed call run that is sent again when its pause is over; return whether it was known and delayed."""
    for run in state.runs.values():
        for record in run.records:
            if record.seq == seq and record.reaction is not None and record.reaction[1] == "delay":
                kind, record.reaction = record.reaction[4], None
                end_pauses(run, record.key, kind)
                end_pauses(state.whole, record.key, kind)
                return True
    return False


def reset_all(state: State) -> None:
    """Reset every counter of a session that a person resumed, except what it has used; no tool stays exempt."""
    for run in state.runs.values():
        run.reset()
    reset_counters(state.whole, "", "all")
    state.exempt = []


def exempt(state: State, tool: str) -> None:
    """Exempt a tool from detection in this session."""
    tool = bounded_name(tool)
    if tool not in state.exempt:
        state.exempt = [*state.exempt, tool][-MAX_EXEMPT:]


def revoke_exemption(state: State, tool: str) -> bool:
    """Count a tool again starting with its next call; return whether it was exempt."""
    tool = bounded_name(tool)
    was_exempt = tool in state.exempt
    state.exempt = [name for name in state.exempt if name != tool]
    return was_exempt


def grant_rounds(state: State, rounds: int) -> None:
    """Extend the run after an accepted justification; the current round is the first of `rounds` further ones."""
    for run in state.runs.values():
        for kind in RUN_LIMITS:
            if kind in run.detectors:
                BY_KIND[kind].extend(run.detectors[kind], rounds)
        for loop_id in [name for name, loop in run.loops.items() if loop.kind in RUN_LIMITS]:
            del run.loops[loop_id]


def note_used(state: State, calls: int, used: Usage, policy: Policy) -> None:
    """Note the usage of a session whose state was rebuilt from its latest events only."""
    if not policy.values["enabled"]:
        return
    for detector in ON_REBUILT:
        own = state.whole.detectors.get(detector.kind, {})
        if policy.values[detector.switch]:
            detector.on_rebuilt(own, calls, used)
            if own:
                state.whole.detectors[detector.kind] = own


def _note_uncounted(state: State, call: ObservedCall, policy: Policy) -> None:
    for detector in ON_UNCOUNTED:
        if policy.values[detector.switch]:
            detector.on_uncounted(state.whole.detectors.setdefault(detector.kind, {}), call)


def _add_record(
    run: RunState, record: Record, arguments: Arguments, cwd: str, policy: Policy, keyer: Keyer
) -> None:
    values = policy.values
    run.ordinal += 1
    where = ""
    if values["result_aware"]:
        record.effect = effect_of(policy.traits, arguments)
        if record.effect == "note" and policy.reads_plainly:
            record.effect = ""
        if policy.traits.is_shell and not policy.reads_plainly:
            where = place_of(arguments, policy.traits.directory_arguments, cwd)
            # To look into one directory after another is a search; the arguments say where, as in any other.
            place = cwd if record.effect in ("look", "search") else where
            record.place = hash_of(place) if place else 0
        if (
            record.effect in ("", "look", "search")
            and values["stagnation_enabled"]
            and not policy.reads_plainly
        ):
            window = window_of(arguments, is_shell=policy.traits.is_shell, place=where)
            record.window = [*window] if window is not None else None
    if values["similar_enabled"] and values["similar_method"] == "literal":
        record.sketch = literal_arguments(arguments, _MAX_LITERAL_BYTES)
    elif values["similar_enabled"] or values["outcome_enabled"] or values["stagnation_enabled"]:
        record.sketch = sketch(arguments, keyer)
        if not policy.reads_plainly:
            record.nested = nested_texts(arguments, keyer)
    records = run.records
    records.append(record)
    gap = values["slow_gap_seconds"]
    # If all calls looked at are recent, none of them can be that long ago.
    if record.at - records[max(0, len(records) - 1 - _SLOW_LOOKBACK_CALLS)].at >= gap:
        earlier = run.recent(record.key, _SLOW_LOOKBACK_CALLS)
        if earlier is not None and record.at - earlier.at >= gap:
            record.weight = _SLOW_WEIGHT


def _forget(run: RunState, policy: Policy) -> None:
    """Forget what no detector needs any more, under the settings of every remembered tool."""
    records = run.records
    memory, compared = policy.memory_calls, policy.values["similar_window_calls"]
    if policy.has_tool_settings:
        by_tool = [policy.for_tool(tool) for tool in {record.tool for record in records}]
        memory = max(one.memory_calls for one in by_tool)
        compared = max(one.values["similar_window_calls"] for one in by_tool)
    if len(records) > memory:
        del records[: len(records) - memory]
    if len(records) > compared + 1:
        # No detector compares arguments further back.
        records[-2 - compared].sketch = ""


def _hooks(policy: Policy, name: Literal["on_call", "on_result"]) -> tuple[tuple[str, Any, bool], ...]:
    """Return kind, hook and span of the detectors that this policy turns on, and keep them in its plans."""
    detectors = ON_CALL if name == "on_call" else ON_RESULT
    hooks = tuple(
        (one.kind, getattr(one, name), one.spans_session) for one in detectors if policy.values[one.switch]
    )
    policy.plans[name] = hooks
    return hooks


def _run_detectors(
    state: State,
    run: RunState,
    record: Record,
    policy: Policy,
    observed: ObservedCall | ResultOutcome,
    hooks: tuple[tuple[str, Callable[..., Reading], bool], ...],
) -> tuple[list[Finding], Meter | None, Faults]:
    """Run the hooks, and return their findings and the reading that is closest to its limit.

    A detector that raises is skipped for this step and named.
    """
    findings: list[Finding] = []
    closest: tuple[str, int, int] | None = None
    faults: Faults = ()
    of_run, of_session = run.detectors, state.whole.detectors
    run.family = state.family
    for kind, hook, spans_session in hooks:
        detectors = of_session if spans_session else of_run
        own = detectors.get(kind)
        if own is None:
            own = detectors[kind] = {}
        try:
            reading = hook(own, run, record, observed, policy)
        except Exception as error:  # noqa: BLE001 - a defect of LoopGuard must never block a call
            faults += ((kind, type(error).__name__),)
            continue
        if reading is QUIET:
            continue
        reached, limit, finding = reading
        if finding is not None:
            if policy.values["identity"] == "tool" and BY_KIND[kind].is_of_calls:
                finding = replace(finding, detail={**finding.detail, NAMES_ONLY: True})
            findings.append(finding)
        elif not reached:
            continue
        if closest is None or reached * closest[2] > closest[1] * limit:
            closest = kind, reached, limit
    return findings, Meter(*closest) if closest is not None else None, faults


def _discard_outdated(state: State, run: RunState, record: Record) -> Faults:
    """Stop counting what was called before a successful change, for every detector that is on or off."""
    run.epoch, run.family = record.ordinal, state.family
    for other in run.records:
        if other.key != record.key:
            other.is_obsolete = True
    faults: Faults = ()
    for detector in ON_CHANGE:
        own = (state.whole if detector.spans_session else run).detectors.get(detector.kind)
        if own is None:
            continue
        try:
            detector.on_change(own, run, record)
        except Exception as error:  # noqa: BLE001 - see _run_detectors
            faults += ((detector.kind, type(error).__name__),)
    return faults


def _decide(
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
    """Return the verdict: the strictest reaction to the findings, or `allow` without any."""
    if not findings:
        return Verdict(meter=meter)
    reactions = [
        react(
            _owner(state, run, finding),
            finding,
            policy,
            at=run.records[-1].at,
            round_hash=record.round,
            after_result=after_result,
        )
        for finding in distinct(findings)
    ]
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
        record.reaction = (
            decisive.decision,
            decisive.rung,
            decisive.number,
            guided,
            *_KEPT_OF_FINDING(finding),
            {name: value for name, value in finding.detail.items() if name != "tool"},
            *((verdict.pause_seconds, reuses) if verdict.ending else ()),
            *((finding.loop_id,) if decisive.decision == "hold" else ()),
        )
        reset_after(run, _owner(state, run, finding), decisive, policy)
    return verdict


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
        one.seq > record.seq and one.effect in ("command", "write") and one.decision not in BLOCKING
        for run in state.runs.values()
        for one in run.records
    )


def _owner(state: State, run: RunState, finding: Finding) -> RunState:
    """Return what a finding counts over: the session, or the run of the call in hand."""
    return state.whole if finding.kind in SESSION_WIDE else run


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


def _lap_of(state: State, record: Record, period: int) -> tuple[str, ...]:
    """Return the tools of the lap that ends with this call."""
    for run in state.runs.values():
        for place, other in enumerate(run.records):
            if other is record:
                return tuple(inner(one.tool) for one in run.records[max(0, place - period + 1) : place + 1])
    return ()


def _duplicate(
    state: State, record: Record, policy: Policy, templates: Templates, seq: int | None = None
) -> Step:
    """Return the step of a call that has already been counted: resent, or repeated within its round."""
    if record.effect == "poll":
        policy = policy.as_poll()
    verdict = Verdict()
    if record.reaction is not None:
        decision, rung, number, guided, *kept = record.reaction
        loop_id = _loop_of(record.reaction)
        if loop_id:
            kept.pop()
        kind, count, limit, window_seconds, window_calls, results, period, details, *pause = kept
        pause_seconds, reuses = pause or (0, None)
        finding = Finding(
            kind,
            count,
            limit,
            window_seconds,
            window_calls,
            loop_id=loop_id,
            results=results,
            period=period,
            call_keys=(record.key,),
            first_seq=record.seq,
            detail={"tool": record.tool, **details},
            pattern=_lap_of(state, record, period) if kind == "cycle" else (),
            laps=count if kind == "cycle" else 0,
        )
        said = rung if decision == DECISION_OF.get(rung) else _RUNG_OF_DECISION.get(decision)
        ending = next((one for one in ENDINGS if one == rung), None) if pause else None
        if rung == "reuse" and not pause:
            said = "block"
        message = _message(
            said, finding, policy, templates, number, after_guidance=guided, pause_seconds=pause_seconds
        )
        verdict = Verdict(
            decision, rung, finding, (finding,), message, number, None, ending, pause_seconds, reuses
        )
    return Step(
        verdict=verdict,
        call_key=record.key,
        duplicate=True,
        cell=_cell(
            record.seq if seq is None else seq, record.tool, record.key, verdict, record.status, record.is_new
        ),
    )


def _cell(seq: int, tool: str, key: str, verdict: Verdict, status: str, is_new: bool | None) -> StripCell:
    kind = verdict.finding.kind if verdict.finding is not None and verdict.rung is not None else None
    result = ("new" if is_new else "same") if status == OK else _CELL_RESULT[status]
    return StripCell(seq, tool, key[:8], verdict.decision, kind, result)  # type: ignore[arg-type]
