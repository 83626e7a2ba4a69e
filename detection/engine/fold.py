"""The fold: one observation after another into a session's state, one verdict out.

The outcome depends on the state, the observation, the policy and the key, and on nothing else. The state that is
passed in is changed. Loading and storing it belongs to `snapshot` and the services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from detection.engine import messages
from detection.engine.calls import (
    Arguments,
    Cell,
    Decision,
    End,
    Finding,
    Message,
    Meter,
    ObservedCall,
    ObservedResult,
    Step,
    Verdict,
)
from detection.engine.detectors import ON_CALL, ON_CHANGE, ON_RESULT, QUIET
from detection.engine.identity import Keyer, canonical, structured
from detection.engine.memory import (
    EMPTY,
    ERROR,
    MAX_EXEMPT,
    MAX_RECORDS,
    OK,
    PENDING,
    REFUSED,
    Lane,
    Record,
    State,
    bounded,
    kept_name,
    short,
)
from detection.engine.policy import Policy
from detection.engine.reactions import Reaction, distinct, react, settle, verdict
from detection.engine.reactions import rearm as rearm_loop
from detection.engine.results import Outcome, outcome
from detection.engine.shell_commands import changes_something
from detection.engine.similarity import sketch

Rearm = Literal["skip", "allow_once", "raise"]

_CELL_RESULT = {PENDING: "pending", ERROR: "error", EMPTY: "empty"}
_SLOW_LOOKBACK_CALLS = 8
_SLOW_WEIGHT = 0.2
_MAX_LITERAL_BYTES = 1500


def new_state() -> State:
    """The state of a session that has not begun."""
    return State()


def observe_call(
    state: State, call: ObservedCall, policy: Policy, keyer: Keyer, texts: Mapping[str, str] | None = None
) -> Step:
    """Judge a call before it runs.

    Parameters
    ----------
    state : State
        Changed in place, unless detection is disabled.
    call : ObservedCall
        The call in hand.
    policy : Policy
        The session's policy; tool rules are applied here.
    keyer : Keyer
        The project's digests.
    texts : mapping, optional
        Own message templates by rung.

    Returns
    -------
    Step
        With the verdict. Costs tens of microseconds, whatever the length of the session.
    """
    policy = policy.for_tool(call.tool)
    values = policy.values
    if not values["enabled"]:
        return Step()
    traits = policy.traits
    arguments = structured(call.arguments)
    key = keyer.call_key(
        call.tool,
        call.arguments if values["identity"] == "raw" else arguments,
        identity=values["identity"],
        ignore=traits.ignore_arguments,
    )
    mark = short(call.call_id) if call.call_id else 0
    if mark and not state.first_time(mark):
        found = state.find(mark)
        return _repeated(found[1], policy, texts) if found else Step(call_key=key, duplicate=True)
    if traits.neutral or (state.exempt and kept_name(call.tool) in state.exempt):
        return Step(call_key=key, cell=_cell(call.seq, call.tool, key, "allow", None, PENDING, None))
    lane = state.lane(kept_name(call.run or "") if values["counting_scope"] == "run" else "")
    round_mark = short(call.round) if call.round else 0
    if round_mark and values["once_per_round"]:
        sibling = _sibling(lane, key, round_mark)
        if sibling is not None:
            return _repeated(sibling, policy, texts, seq=call.seq)
    record = _record(lane, call, arguments, key, (round_mark, mark), policy, keyer)
    if values["budget_enabled"]:
        _spend_budget(lane, record, call)
    readings, faults = _ask(lane, record, policy)
    findings = [reading.finding for _, reading in readings if reading.finding is not None]
    if findings:
        reactions = [react(lane, finding, policy) for finding in distinct(findings)]
        answer = _answer(lane, record, reactions, policy, texts)
    else:
        answer = Verdict()
    answer.meter = _meter(readings)
    return Step(
        verdict=answer,
        call_key=key,
        cell=_cell(call.seq, call.tool, key, answer.decision, _kind(answer), PENDING, None),
        faults=faults,
    )


def observe_result(
    state: State, result: ObservedResult, policy: Policy, keyer: Keyer, texts: Mapping[str, str] | None = None
) -> Step:
    """Take in what a tool answered; a finding made here warns at once, anything stronger waits for the next call.

    Results of refused calls, of unknown calls and second results of a call are no evidence.
    """
    found = state.find(short(result.call_id)) if result.call_id and policy.values["enabled"] else None
    if found is None:
        return Step()
    lane, record = found
    policy = policy.for_tool(record.tool)
    if not policy.values["enabled"]:
        return Step()
    if record.status != PENDING:
        return Step(call_key=record.key, duplicate=True)
    if record.decision in REFUSED:
        return Step(call_key=record.key)
    content = result.content
    if content is not None and result.tail:
        content += "\n" + result.tail
    told = outcome(content, result.is_error, policy.traits, keyer, record.sketch)
    # Errors are compared by their cause: the same refusal for another argument is nothing new.
    identity = told.error_digest or told.digest
    record.status, record.result = told.status, identity[:16]
    # An empty answer or a bare "ok" says nothing by itself: with other arguments it is another piece of work.
    record.new = lane.see(
        told.digest if told.evidence else keyer.digest(b"pair", told.digest.encode(), record.key.encode())
    )
    lane.results += 1
    if record.new and told.evidence and record.status == OK:
        lane.news += 1
    faults: tuple[tuple[str, str], ...] = ()
    if record.change and record.status != ERROR and record.new:
        faults += _tell_change(lane, record)
    else:
        record.change = False
    readings, more = _ask(lane, record, policy, told)
    findings = [reading.finding for _, reading in readings if reading.finding is not None]
    if findings:
        reactions = [react(lane, finding, policy, after_result=True) for finding in distinct(findings)]
        answer = _answer(lane, record, reactions, policy, texts)
    else:
        answer = Verdict()
    answer.meter = _meter(readings)
    return Step(
        verdict=answer,
        call_key=record.key,
        result_digest=told.digest,
        error_digest=told.error_digest,
        result_is_new=record.new,
        cell=_cell(
            record.seq, record.tool, record.key, answer.decision, _kind(answer), record.status, record.new
        ),
        faults=faults + more,
    )


def observe_message(state: State, message: Message, policy: Policy) -> None:
    """A user who attends the run starts all counting anew; unattended, a message only lets ladders begin again.

    A trimmed context changes nothing: a loop does not become honest because the model has forgotten it.
    """
    if not policy.values["enabled"] or message.kind == "condense":
        return
    for lane in state.lanes.values():
        if policy.values["attended"] or message.kind == "continue":
            lane.clear()
        else:
            lane.loops.clear()
            lane.own.pop("budget", None)


def observe_end(state: State, end: End, policy: Policy) -> None:
    """The run is over: where counting is per run, its lane goes."""
    if policy.values["enabled"] and policy.values["counting_scope"] == "run":
        state.lanes.pop(kept_name(end.run or ""), None)


def rearm(state: State, loop_id: str, how: Rearm, by: int = 0) -> bool:
    """A person answered an approval about a loop.

    Parameters
    ----------
    state : State
        Changed in place.
    loop_id : str
        The loop that was asked about.
    how : {"skip", "allow_once", "raise"}
        `skip` leaves the counters: the same call again is asked about again. `allow_once` and `raise` start them anew,
        and `raise` lets the loop go `by` calls further each time.
    by : int
        Extra calls of `raise`.

    Returns
    -------
    bool
        Whether the loop was known.
    """
    for lane in state.lanes.values():
        if loop_id in lane.loops:
            if how == "skip":
                return True
            for record in reversed(lane.records):
                if record.decision == "hold":
                    record.answer = None
                    break
            loop = rearm_loop(lane, loop_id)
            if how == "raise" and by > 0 and loop is not None:
                for name in loop.keys if loop.kind in ("repeat", "cycle") else (loop.kind,):
                    lane.allowances[name] = lane.allowance(name) + by
                bounded(lane.allowances, MAX_RECORDS)
            return True
    return False


def rearm_all(state: State) -> None:
    """A person resumed the session: every counter starts anew, budgets too."""
    for lane in state.lanes.values():
        lane.clear()


def exempt(state: State, tool: str) -> None:
    """Judge this tool no more in this session."""
    tool = kept_name(tool)
    if tool not in state.exempt:
        state.exempt = [*state.exempt, tool][-MAX_EXEMPT:]


def grant_rounds(state: State, rounds: int) -> None:
    """A justification was accepted: the round in hand becomes the first of `rounds` further ones."""
    for lane in state.lanes.values():
        spent = lane.own.get("budget")
        if spent is not None:
            spent["granted"] = max(1, rounds)
            spent["extensions"] = spent.get("extensions", 0) + 1
            spent["rounds"] = 1
            spent["noticed"] = 0
        for loop_id in [name for name, loop in lane.loops.items() if loop.kind == "budget"]:
            del lane.loops[loop_id]


def _sibling(lane: Lane, key: str, round_mark: int) -> Record | None:
    for record in reversed(lane.records):
        if record.round != round_mark:
            return None
        if record.key == key:
            return record
    return None


def _record(
    lane: Lane,
    call: ObservedCall,
    arguments: Arguments,
    key: str,
    marks: tuple[int, int],
    policy: Policy,
    keyer: Keyer,
) -> Record:
    values = policy.values
    lane.ordinal += 1
    record = Record(call.seq, lane.ordinal, kept_name(call.tool), key, call.at, *marks)
    if values["result_aware"]:
        record.change = changes_something(policy.traits.tool_class, call.arguments)
    if values["similar_enabled"] and values["similar_method"] == "literal":
        record.sketch = canonical(arguments)[:_MAX_LITERAL_BYTES].decode("utf-8", "ignore")
    elif values["similar_enabled"] or values["outcome_enabled"]:
        record.sketch = sketch(arguments, keyer)
    records = lane.records
    records.append(record)
    if len(records) > policy.memory_calls:
        del records[: len(records) - policy.memory_calls]
    if len(records) > values["similar_window_calls"] + 1:
        # Nobody compares arguments that far back.
        records[-2 - values["similar_window_calls"]].sketch = ""
    gap = values["slow_gap_seconds"]
    # Where all that could be found is recent, there is no need to look.
    if call.at - records[max(0, len(records) - 1 - _SLOW_LOOKBACK_CALLS)].at >= gap:
        earlier = lane.recent(key, _SLOW_LOOKBACK_CALLS)
        if earlier is not None and call.at - earlier.at >= gap:
            record.weight = _SLOW_WEIGHT
    return record


def _spend_budget(lane: Lane, record: Record, call: ObservedCall) -> None:
    spent = lane.own.get("budget")
    if spent is None:
        spent = lane.own["budget"] = {
            "calls": 0,
            "rounds": 0,
            "tokens": 0,
            "cost": 0.0,
            "since": call.at,
            "round": -1,
        }
    spent["calls"] += 1
    if not record.round or record.round != spent["round"]:
        spent["rounds"] += 1
        spent["round"] = record.round
    spent["tokens"] += call.tokens
    spent["cost"] += call.cost_usd


def _ask(
    lane: Lane, record: Record, policy: Policy, told: Outcome | None = None
) -> tuple[list[tuple[str, Any]], tuple[tuple[str, str], ...]]:
    """Ask every detector that is on. One that raises is left out for this step and named."""
    readings: list[tuple[str, Any]] = []
    faults: tuple[tuple[str, str], ...] = ()
    asked = _plan(policy, "on_call" if told is None else "on_result")
    observed = (policy,) if told is None else (told, policy)
    owned = lane.own
    for kind, ask in asked:
        own = owned.get(kind)
        if own is None:
            own = owned[kind] = {}
        try:
            reading = ask(own, lane, record, *observed)
        except Exception as error:  # noqa: BLE001 - a fault of ours must never stand in the way of a call
            faults += ((kind, type(error).__name__),)
            continue
        if reading is not QUIET and (reading.reached or reading.finding is not None):
            readings.append((kind, reading))
    return readings, faults


def _plan(policy: Policy, moment: Literal["on_call", "on_result"]) -> tuple[tuple[str, Any], ...]:
    """Whom to ask under this policy, and how: worked out once."""
    plan: tuple[tuple[str, Any], ...] | None = policy.plans.get(moment)
    if plan is None:
        chosen = ON_CALL if moment == "on_call" else ON_RESULT
        plan = tuple((one.kind, getattr(one, moment)) for one in chosen if policy.values[one.switch])
        policy.plans[moment] = plan
    return plan


def _tell_change(lane: Lane, record: Record) -> tuple[tuple[str, str], ...]:
    """Calls made before a change are no evidence any more, whichever detectors are on."""
    lane.spend({other.key for other in lane.records if other.key != record.key})
    faults: tuple[tuple[str, str], ...] = ()
    for detector in ON_CHANGE:
        own = lane.own.get(detector.kind)
        if own is None:
            continue
        try:
            detector.on_change(own, lane, record)
        except Exception as error:  # noqa: BLE001 - see _ask
            faults += ((detector.kind, type(error).__name__),)
    return faults


def _answer(
    lane: Lane, record: Record, reactions: list[Reaction], policy: Policy, texts: Mapping[str, str] | None
) -> Verdict:
    answer = verdict(reactions, "")
    finding = answer.finding
    if finding is None:
        return answer
    decider = next(one for one in reactions if one.finding is finding)
    guided = decider.rung == "stop" and decider.after == "chance"
    answer = Verdict(
        answer.decision,
        answer.rung,
        finding,
        answer.findings,
        messages.message(answer.rung, finding, policy, texts, after_guidance=guided),
        answer.detection_number,
    )
    if answer.rung is not None:
        record.answer = (
            answer.decision,
            answer.rung,
            finding.kind,
            finding.count,
            finding.limit,
            answer.detection_number,
        )
        settle(lane, decider, policy)
    return answer


def _repeated(
    record: Record, policy: Policy, texts: Mapping[str, str] | None, seq: int | None = None
) -> Step:
    """The verdict of a call that is counted already, for its copy."""
    answer = Verdict()
    if record.answer is not None:
        decision, rung, kind, count, limit, number = record.answer
        window = policy.values["ttl_seconds"] if policy.values["ttl_from"] != "never" else None
        finding = Finding(
            kind,
            count,
            limit,
            window,
            call_keys=(record.key,),
            first_seq=record.seq,
            detail={"tool": record.tool},
        )
        answer = Verdict(
            decision, rung, finding, (finding,), messages.message(rung, finding, policy, texts), number
        )
    return Step(
        verdict=answer,
        call_key=record.key,
        duplicate=True,
        cell=_cell(
            record.seq if seq is None else seq,
            record.tool,
            record.key,
            answer.decision,
            _kind(answer),
            record.status,
            record.new,
        ),
    )


def _meter(readings: list[tuple[str, Any]]) -> Meter | None:
    if not readings:
        return None
    best, (reached, limit, _) = readings[0]
    for kind, (count, of, _) in readings:
        if count * limit > reached * of:
            best, reached, limit = kind, count, of
    return Meter(best, reached, limit)


def _kind(answer: Verdict) -> str | None:
    return answer.finding.kind if answer.finding is not None and answer.rung is not None else None


def _cell(
    seq: int, tool: str, key: str, decision: Decision, kind: str | None, status: str, new: bool | None
) -> Cell:
    result = ("new" if new else "same") if status == OK else _CELL_RESULT[status]
    return Cell(seq, tool, key[:8], decision, kind, result)  # type: ignore[arg-type]
