"""Which call an id or a result belongs to, and which calls are one round.

Model servers reuse call ids. An id stands for a call within the round that the client named, and without one until a
result comes. After that, the same id is a new call, and so is another call with the same id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from detection.engine import task_lists
from detection.engine.arguments import essential
from detection.engine.bounded import hash_of
from detection.engine.calls import Arguments, Call, ObservedCall, ObservedResult
from detection.engine.dispatching import judged, outer
from detection.engine.fresh_marks import without_marks
from detection.engine.identity import Keyer
from detection.engine.memory import BLOCKING, MAX_CALL_IDS, PENDING, Record, RunState, State, bounded_name
from detection.engine.policy import Policy

ASSIGNED = "seq-"
"""Ids of calls and rounds that LoopGuard assigns have this form, followed by a sequence number."""
_OF_COPY = re.compile(r"evt_[0-9a-f]{32}")
"""The round that LoopGuard's clients give a call while an identical one is open: the call's own id, of no response."""
MAX_JOINING_REQUESTS = 8
"""Number of further requests that can join a round.

Where only some tools report results, a loop of the others is still counted.
"""


@dataclass(slots=True)
class ClosedCall:
    """The call that a result belongs to; without `run` and `record` if the call does not count."""

    seq: int
    run: RunState | None = None
    record: Record | None = None


def is_assigned(name: str) -> bool:
    """Return whether an id has the form of those that LoopGuard assigns."""
    return name.startswith(ASSIGNED) and name[len(ASSIGNED) :].isdigit()


def round_hash_of(name: str) -> int:
    """Return the hash of a round's name; odd for one that names a model response, 0 without a name."""
    if not name:
        return 0
    is_of_response = not is_assigned(name) and _OF_COPY.fullmatch(name) is None
    return hash_of(name) & ~1 | is_of_response or 2


def are_of_two_responses(first: int, second: int) -> bool:
    """Return whether two hashes of rounds name model responses that differ."""
    return bool(first & second & 1) and first != second


def key_and_arguments(
    call: ObservedCall, arguments: Arguments, policy: Policy, keyer: Keyer
) -> tuple[str, Arguments]:
    """Return the key of a call, and its arguments as detectors read them, under the policy of its tool.

    Parameters
    ----------
    call, arguments
        As `dispatching.judged` returns them.
    """
    values, name = policy.values, call.tool
    if values["result_aware"]:
        name, arguments = essential(name, arguments, policy.traits, "" if policy.reads_plainly else call.cwd)
        if policy.traits.keeps_list and not policy.reads_plainly:
            arguments = task_lists.compared(arguments)
    compared = call.arguments if values["identity"] == "raw" else arguments
    if values["result_aware"] and not policy.reads_plainly:
        compared = without_marks(name, compared, policy.traits)
    ignored = policy.traits.ignore_arguments
    return keyer.call_key(name, compared, identity=values["identity"], ignore=ignored), arguments


def find_resent(
    state: State, call: ObservedCall, key: str, call_hash: int, round_hash: int
) -> tuple[bool, Record | None]:
    """Tell whether a call was sent before, with its record if it has one, and remember its id.

    `round_hash` is that of the round that the client named, 0 without one.
    """
    if round_hash:
        known, name = state.round_calls, hash_of(f"{round_hash} {call.call_id}")
    else:
        known, name = state.open_calls, call_hash
    if known.add_new(name.to_bytes(4), MAX_CALL_IDS):
        return False, None
    namesake = False
    for run in reversed(state.runs.values()):
        for record in reversed(run.records):
            if record.call == call_hash and (not round_hash or record.round == round_hash):
                if record.key == key:
                    return True, record
                if not round_hash:
                    return False, None
                namesake = True
    if round_hash:
        # Records may be gone by a reset; within its round, the id is still that of the same call.
        return not namesake, None
    return any(one[1] == call_hash and one[3] == key for one in state.uncounted), None


def round_of(run: RunState, name: int, *, is_request: bool) -> int:
    """Return the hash of the round that a call belongs to, whose own round or request has the hash `name`.

    The calls of one request are a round. A further request joins it while its calls are open and the session reports
    results: a model does not go on before it has them.
    """
    current, joined, latest = run.round
    if name == latest:
        return current
    if is_request and joined < MAX_JOINING_REQUESTS and _can_be_joined(run, current):
        run.round = (current, joined + 1, name)
        return current
    run.round = (name, 0, name)
    return name


def _can_be_joined(run: RunState, current: int) -> bool:
    """Whether calls of the latest round wait for their results, and none of an earlier round does."""
    if not run.results:
        return False
    is_open = False
    for record in reversed(run.records):
        if record.decision in BLOCKING:
            continue
        if record.round != current:
            return is_open and record.status != PENDING
        if record.status != PENDING:
            return False
        is_open = True
    return is_open


def counted_in_round(run: RunState, key: str, round_hash: int) -> Record | None:
    """Return the identical call of the same round, if there is one."""
    for record in reversed(run.records):
        if record.round != round_hash:
            return None
        if record.key == key:
            return record
    return None


def find_closed(state: State, result: ObservedResult, policy: Policy, keyer: Keyer) -> ClosedCall | None:
    """Return the call that a result belongs to; the ids that it closes no longer refer to a call.

    A result names a call id, a tool with or without arguments, or nothing. It belongs to the oldest open call that
    matches; of several calls with the same id, to one of the latest round.
    """
    if result.call_id:
        call_hash = hash_of(result.call_id)
        if state.open_calls.packed:
            state.open_calls.remove(call_hash.to_bytes(4))
        return _by_id(state, call_hash) if result.closes is None else _by_seq(state, result.closes)
    if result.closes is not None:
        return _by_seq(state, result.closes)
    state.open_calls.packed = b""
    return _oldest_that_fits(state, result, policy, keyer)


def _oldest_that_fits(
    state: State, result: ObservedResult, policy: Policy, keyer: Keyer
) -> ClosedCall | None:
    key = ""
    if result.tool and result.arguments is not None:
        named = Call(0, result.tool, result.arguments, 0.0, cwd=result.cwd)
        call, arguments = judged(named, interprets=not policy.reads_plainly)
        key = key_and_arguments(call, arguments, policy.for_tool(call.tool), keyer)[0]
    tool = bounded_name(result.tool)
    runs = state.runs
    if result.run and policy.values["counting_scope"] == "run":
        name = bounded_name(result.run)
        runs = {name: runs[name]} if name in runs else {}
    closed: ClosedCall | None = None
    for run in runs.values():
        for record in run.records:
            is_open = record.status == PENDING and record.decision not in BLOCKING
            if is_open and (
                record.key == key if key else not tool or tool in (record.tool, outer(record.tool))
            ):
                if closed is None or record.seq < closed.seq:
                    closed = ClosedCall(record.seq, run, record)
                break
    for place, (seq, _, its_tool, its_key) in enumerate(state.uncounted):
        if its_key == key if key else not tool or tool in (its_tool, outer(its_tool)):
            if closed is None or seq < closed.seq:
                closed = _close_uncounted(state, place)
            break
    return closed


def _close_uncounted(state: State, place: int) -> ClosedCall:
    """Close a call that does not count.

    Its result ends the round of the identical call that does. That one never gets a result if its agent was killed.
    """
    seq, _, _, key = state.uncounted.pop(place)
    for run in state.runs.values():
        current, _, latest = run.round
        if current and counted_in_round(run, key, current):
            run.round = (current, MAX_JOINING_REQUESTS, latest)
    return ClosedCall(seq)


def _by_seq(state: State, seq: int) -> ClosedCall | None:
    for place, known in enumerate(state.uncounted):
        if known[0] == seq:
            return _close_uncounted(state, place)
    for run in reversed(state.runs.values()):
        for record in reversed(run.records):
            if record.seq == seq:
                return ClosedCall(seq, run, record)
            if record.seq < seq:
                break
    return None


def _by_id(state: State, call_hash: int) -> ClosedCall | None:
    for place, (_, known, _, _) in enumerate(state.uncounted):
        if known == call_hash:
            return _close_uncounted(state, place)
    found = [
        (run, record) for run in state.runs.values() for record in run.records if record.call == call_hash
    ]
    if not found:
        return None
    run, record = found[-1]
    if len(found) > 1:
        waiting = [one for one in found if one[1].status == PENDING and one[1].decision not in BLOCKING]
        for one in reversed(waiting):
            if one[1].round != waiting[-1][1].round:
                break
            run, record = one
    return ClosedCall(record.seq, run, record)
