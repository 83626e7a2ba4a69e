"""The fold: takes one observation after another into a session's state and returns a verdict.

The result depends only on the state, the observation, the policy and the key. The state that is passed in is changed.
`snapshot` stores and loads it.
"""

from __future__ import annotations

from typing import Any, cast

from detection.engine import hooks, messages, silence, verdicts
from detection.engine.bounded import hash_of
from detection.engine.calls import (
    Arguments,
    CallHeartbeat,
    Message,
    ObservedCall,
    ObservedEnd,
    ObservedEvent,
    ObservedResult,
    ObservedUsage,
    Overrule,
    Step,
    StripCell,
    Usage,
    Verdict,
)
from detection.engine.directories import LISTS, place_of
from detection.engine.dispatching import inner, judged, outer
from detection.engine.fresh_marks import marks_of
from detection.engine.hooks import Faults
from detection.engine.identity import Keyer
from detection.engine.memory import BLOCKING, EMPTY, ERROR, OK, PENDING, Record, RunState, State, bounded_name
from detection.engine.open_calls import (
    are_of_two_responses,
    counted_in_round,
    find_closed,
    find_resent,
    is_assigned,
    key_and_arguments,
    round_hash_of,
    round_of,
)
from detection.engine.policy import Policy
from detection.engine.reactions import end_loops, reset_counters, rungs
from detection.engine.results import CallFacts, ResultOutcome, evaluate_result, is_cut
from detection.engine.results.echo import nested_texts
from detection.engine.shell_commands import ShellLine
from detection.engine.similarity import literal_arguments, sketch
from detection.engine.tool_verbs import acts_on_page
from detection.engine.verdicts import Templates
from detection.engine.waiting import LOOKS, is_poll, may_wait
from detection.engine.windows import window_of
from detection.engine.writes import CHANGES, counts_by_receipt, effect_of, names_nothing, plain_effect

_CELL_RESULT = {PENDING: "pending", ERROR: "error", EMPTY: "empty"}
# An identical call further back is not in a row with this one; a judgement for the time of a call.
_SLOW_LOOKBACK_CALLS = 8
# A host asks at once about the calls of one answer, in one request or in several. Later, an open call may be that of an
# agent that was killed and has started again, and that has to repeat it. A judgement, not measured.
_SAME_ANSWER_SECONDS = 2.0
# Rungs that let a call run: where the reaction to repeats has no others, nothing is to be blocked.
_ONLY_TELLS = frozenset(("observe", "warn"))
# Five slow calls are one; a judgement: most recorded runs have no times, so that they cannot tell.
_SLOW_WEIGHT = 0.2
# A command that sleeps and then looks is worth two of those where the answer speaks of no waiting: a log that stands
# still for a quarter of an hour is worth a word. A judgement, for the same reason.
_SILENT_WEIGHT = 0.4
# Arguments as text, where `similar_method` is `literal`: twenty of them fill a state of 32 KiB.
_MAX_LITERAL_BYTES = 1500
# Hexadecimal digits that are kept of the digest of a result: 64 bits tell those of a run apart.
_RESULT_CHARACTERS = 16
# The same of a call in a strip, which shows a few dozen of them.
_STRIP_CHARACTERS = 8


def new_state() -> State:
    """Return the state of a new session."""
    return State()


def observe(
    state: State,
    event: ObservedEvent,
    policy: Policy,
    keyer: Keyer,
    templates: Templates = None,
    overrule: Overrule | None = None,
) -> Step:
    """Fold one event of any type; parameters and return value are those of `observe_call`.

    The step of an event that is no call, result, message or compaction is empty.
    """
    match event.type:
        case "call":
            return observe_call(state, cast("ObservedCall", event), policy, keyer, templates, overrule)
        case "result":
            return observe_result(state, cast("ObservedResult", event), policy, keyer, templates, overrule)
        case "message" | "compaction":
            message: Message | None = cast("Any", event).message
            if message is not None:
                return observe_message(state, message, policy, keyer, templates)
        case "usage":
            observe_usage(state, cast("ObservedUsage", event), policy)
        case "end":
            observe_end(state, cast("ObservedEnd", event), policy)
        case "heartbeat":
            heartbeat = cast("CallHeartbeat", event)
            silence.observe_heartbeat(state, heartbeat.closes, heartbeat.at)
    return Step()


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
    round_hash = round_hash_of(call.round or "")
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
        hooks.note_uncounted(state, call, policy)
        return Step(call_key=key, cell=_cell(call.seq, call.tool, key, Verdict(), PENDING, None))
    run = state.run(bounded_name(call.run) if call.run and values["counting_scope"] == "run" else "")
    if round_hash:
        round_hash = round_of(run, round_hash, is_request=is_request)
    first = _first_write(run, key, call, arguments, 0 if is_request else round_hash, policy)
    if first is not None:
        state.add_uncounted(call.seq, call_hash, tool, key)
        return _second_write(first, call)
    if round_hash and values["once_per_round"]:
        counted = counted_in_round(run, key, round_hash)
        if counted is not None:
            if counted.decision not in BLOCKING:
                state.add_uncounted(call.seq, call_hash, tool, key)
            hooks.note_uncounted(state, call, policy)
            return _duplicate(state, counted, policy, templates, seq=call.seq)
    record = Record(call.seq, run.ordinal + 1, tool, key, call.at, round_hash, call_hash)
    _add_record(run, record, arguments, call.cwd, policy, keyer)
    state.whole.ordinal += 1
    _forget(run, session_policy)
    if record.effect == "poll":
        policy = policy.as_poll()
    findings, meter, faults = hooks.judge(state, run, record, policy, call, "on_call")
    verdict = Verdict(meter=meter)
    if findings:
        verdict = verdicts.decide(state, run, record, findings, meter, policy, templates, overrule)
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
    if record.reaction is not None and record.decision in BLOCKING:
        return _described(run, record, outcome, keyer)
    if may_wait(record, policy) and run.has_earlier(record) and outcome.is_pending:
        record.waits, record.effect = True, "poll"
        policy = policy.as_poll()
    # Errors are compared by their cause: the same error for another argument is not new.
    record.status, record.result = outcome.status, _compared(record, outcome, policy)[:_RESULT_CHARACTERS]
    run.note_limit(record.result, outcome.own_limit)
    # An empty result, a bare "ok" or a receipt means nothing by itself: for other arguments it is a new one.
    is_new_pair = False
    _read_phrase(run, record, outcome)
    says_something = outcome.is_evidence and not outcome.is_phrase
    if is_change or outcome.is_value or not says_something:
        # The receipt of an identical write is a known one, whatever its id.
        by_receipt = outcome.is_receipt and counts_by_receipt(record.effect, policy)
        digest = record.result if by_receipt else outcome.digest
        is_new_pair = run.is_new(keyer.digest(b"pair", digest.encode(), record.key.encode()))
    record.is_new = run.is_new(outcome.digest) if says_something else is_new_pair or outcome.is_picture
    outcome.is_value = outcome.is_value and is_new_pair
    run.results += 1
    if record.is_new and says_something and record.status == OK:
        run.new_results += 1
    faults: Faults = ()
    if is_change and is_new_pair:
        faults = hooks.note_change(state, run, record)
    findings, meter, more = hooks.judge(state, run, record, policy, outcome, "on_result")
    verdict = Verdict(meter=meter)
    if findings:
        verdict = verdicts.decide(
            state, run, record, findings, meter, policy, templates, overrule, after_result=True
        )
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


def _read_phrase(run: RunState, record: Record, outcome: ResultOutcome) -> None:
    """Note what a phrase or a small record means in this run."""
    if outcome.is_phrase and acts_on_page(inner(record.tool)) and not outcome.finds_nothing:
        # Who fills in a form gets back what went where, and nothing else.
        if run.is_new(outcome.phrase_digest):
            outcome.is_receipt, outcome.is_evidence = True, False
    elif outcome.is_record and run.has_seen(outcome.digest):
        outcome.is_phrase = True


def _compared(record: Record, outcome: ResultOutcome, policy: Policy) -> str:
    """Return the digest by which the results of identical calls are compared.

    Every order has another number, but to order the same once more is the same step again.
    """
    if outcome.is_receipt and counts_by_receipt(record.effect, policy):
        return outcome.receipt_digest
    if record.effect == "command" and outcome.status == OK and not policy.reads_plainly:
        return outcome.command_digest
    return outcome.error_digest or outcome.digest


def _described(run: RunState, record: Record, outcome: ResultOutcome, keyer: Keyer) -> Step:
    """Return the result of a call that was to be blocked, without counting it anywhere; its cell has the decision.

    It is new if no result before it was the same. Later results that count are not compared with it.
    """
    digest = outcome.digest
    if not outcome.is_evidence:
        digest = keyer.digest(b"pair", digest.encode(), record.key.encode())
    is_new = run.is_new_of_blocked(digest)
    verdict = Verdict(record.decision)
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
    call = CallFacts(inner(record.tool), record.sketch, record.nested, record.effect)
    record.nested = ""
    outcome = evaluate_result(
        content, result.is_error, policy.traits, keyer, call, plain=policy.reads_plainly
    )
    if policy.reads_plainly:
        outcome.is_cut = bool(result.tail) or is_cut(content or "")
    if record.effect == "note" and outcome.is_receipt:
        # What an answer repeats of the old list or the new one is nothing that happened.
        outcome.digest = keyer.digest(b"note")
    elif record.place and outcome.status == OK and outcome.is_evidence and not outcome.finds_nothing:
        # "All tests passed" says something else in every directory; an error and nothing found do not.
        outcome.digest = keyer.digest(b"place", record.place.to_bytes(4), outcome.digest.encode())
    if outcome.status == ERROR:
        return outcome, False
    is_done = outcome.is_receipt or outcome.status == EMPTY or record.effect == "command"
    return outcome, is_done and record.effect in CHANGES


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
    if message.kind == "assistant":
        silence.observe_rest(state)
    findings, faults = hooks.judge_text(state, message, policy, keyer)
    verdict = verdicts.decide_text(state, message, findings, policy, templates)
    if message.kind != "assistant":
        hooks.note_turn(state)
    if message.kind in ("user", "continue"):
        _reset_by_message(state, message, policy)
    return Step(verdict=verdict, faults=faults)


def _reset_by_message(state: State, message: Message, policy: Policy) -> None:
    if policy.values["message_begins_run"] and policy.values["counting_scope"] == "run":
        state.begin_run()
    is_attended = policy.values["attended"] or message.kind == "continue"
    if is_attended:
        reset_counters(state.whole, "", "all")
    elif policy.values["result_aware"]:
        hooks.note_message(state.whole)
    for run in state.runs.values():
        if is_attended:
            run.reset()
            continue
        end_loops(run)
        if policy.values["result_aware"]:
            run.user_spoke()
            hooks.note_message(run)


def observe_usage(state: State, usage: ObservedUsage, policy: Policy) -> None:
    """Add the usage of a model response that came after its calls; limits are checked with the next call."""
    if not policy.values["enabled"]:
        return
    run = state.run(bounded_name(usage.run or "") if policy.values["counting_scope"] == "run" else "")
    hooks.note_usage(state, run, usage, policy)


def observe_end(state: State, end: ObservedEnd, policy: Policy) -> None:
    """Note that a run has ended, and forget it where counting is per run."""
    if not policy.values["enabled"]:
        return
    if policy.values["counting_scope"] == "run":
        state.end_run(bounded_name(end.run or ""))
    if silence.shortest_limit(policy) is not None:
        silence.observe_end(state, end.run, policy)


def note_used(state: State, calls: int, used: Usage, policy: Policy) -> None:
    """Note the usage of a session whose state was rebuilt from its latest events only."""
    if policy.values["enabled"]:
        hooks.note_rebuilt(state, calls, used, policy)


def _add_record(
    run: RunState, record: Record, arguments: Arguments, cwd: str, policy: Policy, keyer: Keyer
) -> None:
    values, traits, reads_plainly = policy.values, policy.traits, policy.reads_plainly
    run.ordinal += 1
    if values["result_aware"]:
        line, where = ShellLine(arguments) if traits.is_shell else None, ""
        effect = effect_of(traits, arguments, line)
        record.effect = plain_effect(effect) if reads_plainly else effect
        record.marks = marks_of(record.tool, arguments, traits)
        if line is not None and not reads_plainly:
            where = place_of(arguments, traits.directory_arguments, cwd)
            # To list one directory after another is a search; the arguments say where, as in any other.
            is_search = effect == "search" or (effect == "look" and line.program in LISTS)
            place = cwd if is_search else where
            record.place = hash_of(place) if place else 0
        if effect in LOOKS and values["stagnation_enabled"] and not reads_plainly:
            window = window_of(arguments, is_shell=traits.is_shell, place=where)
            record.window = [*window] if window is not None else None
    if values["similar_enabled"] and values["similar_method"] == "literal":
        record.sketch = literal_arguments(arguments, _MAX_LITERAL_BYTES)
    elif values["similar_enabled"] or values["outcome_enabled"] or values["stagnation_enabled"]:
        record.sketch = sketch(arguments, keyer)
        if not reads_plainly:
            record.nested = nested_texts(arguments, keyer)
    run.records.append(record)
    earlier = run.recent(record.key, _SLOW_LOOKBACK_CALLS)
    if earlier is None:
        return
    gap = values["slow_gap_seconds"]
    if counts_by_receipt(record.effect, policy):
        gap = max(gap, values["write_period_minutes"] * 60)
    if record.at - earlier.at >= gap:
        record.weight = _SLOW_WEIGHT
    if values["result_aware"] and not reads_plainly and is_poll(record, earlier, traits):
        record.effect = "poll"
    elif record.weight < 1 and record.effect == "poll" and traits.is_shell and not earlier.waits:
        record.weight = _SILENT_WEIGHT


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


def _duplicate(
    state: State, record: Record, policy: Policy, templates: Templates, seq: int | None = None
) -> Step:
    """Return the step of a call that has already been counted: resent, or repeated within its round."""
    verdict = verdicts.recall(state, record, policy, templates)
    return Step(
        verdict=verdict,
        call_key=record.key,
        duplicate=True,
        cell=_cell(
            record.seq if seq is None else seq, record.tool, record.key, verdict, record.status, record.is_new
        ),
    )


def _first_write(
    run: RunState, key: str, call: ObservedCall, arguments: object, round_hash: int, policy: Policy
) -> Record | None:
    """Return the identical write of the same answer that runs, if a call repeats one.

    They are of one answer in the round that the client names, or if they come at once and their rounds name no two
    responses: two calls of one request have one time. Of several requests without a named round, those come at once
    while the first call is open.
    """
    if not policy.values["writes_once"]:
        return None
    first = next((one for one in run.records[: -1 - _SLOW_LOOKBACK_CALLS : -1] if one.key == key), None)
    if first is None or first.decision in BLOCKING or not counts_by_receipt(first.effect, policy):
        return None
    if first.status == ERROR or names_nothing(arguments):
        return None  # It changed nothing, as far as is known, or cannot.
    if _ONLY_TELLS.issuperset(rungs(policy, "repeat")):
        return None
    if are_of_two_responses(first.round, round_hash):
        return None
    if first.marks != marks_of(call.tool, arguments, policy.traits):
        return None  # Whoever gives each its own mark wants both.
    gap = abs(call.at - first.at)
    is_at_once = gap == 0 or (not round_hash and run.results > 0 and gap <= _SAME_ANSWER_SECONDS)
    is_of_round = bool(round_hash) and first.round == round_hash
    return first if is_of_round or (first.status == PENDING and is_at_once) else None


def _second_write(first: Record, call: ObservedCall) -> Step:
    """Return the step of a call that repeats a write of its own answer: it does not run, and does not count."""
    text = messages.ONCE.substitute(tool=messages.shown(first.tool))
    verdict = Verdict("block", message=text)
    cell = _cell(call.seq, first.tool, first.key, verdict, PENDING, None)
    return Step(verdict=verdict, call_key=first.key, cell=cell)


def _cell(seq: int, tool: str, key: str, verdict: Verdict, status: str, is_new: bool | None) -> StripCell:
    kind = verdict.finding.kind if verdict.finding is not None and verdict.rung is not None else None
    result = ("new" if is_new else "same") if status == OK else _CELL_RESULT[status]
    return StripCell(seq, tool, key[:_STRIP_CHARACTERS], verdict.decision, kind, result)  # type: ignore[arg-type]
