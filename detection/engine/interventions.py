"""What people and the judge decide about a session while it runs: their choices change its state."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from detection.engine.bounded import drop_oldest
from detection.engine.calls import FindingDetail
from detection.engine.detectors import EXTENDABLE, detector_for
from detection.engine.memory import MAX_EXEMPT, MAX_RECORDS, KeptReaction, State, bounded_name
from detection.engine.reactions import end_pauses, reset_counters, reset_loop

Choice = Literal["skip", "allow_once", "raise"]


def apply_choice(state: State, calls_digest: str, choice: Choice, by: int = 0) -> bool:
    """Apply an operator's choice about a loop.

    Parameters
    ----------
    state : State
        Changed in place.
    calls_digest : str
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
        loop = run.loops.get(calls_digest)
        if loop is None:
            continue
        if choice != "skip":
            reset_loop(run, calls_digest)
        if choice == "raise" and by > 0:
            for name in loop.keys if detector_for(loop.kind).is_exact else (loop.kind,):
                run.allowances[name] = run.allowances.get(name, 0) + by
            drop_oldest(run.allowances, MAX_RECORDS)
        reset_counters(run, calls_digest, loop.reset)
        return True
    return False


def release(state: State, calls_digest: str, since: int) -> None:
    """Let the held calls of a loop run, from the sequence number `since` on, as one decision allows all of them."""
    for run in state.runs.values():
        for record in run.records:
            held_for = record.reaction.calls_digest if record.reaction is not None else ""
            if record.seq >= since and record.decision == "hold" and held_for == calls_digest:
                record.reaction = None


def hold_again(
    state: State, seqs: Collection[int], kind: str, count: int, limit: int, calls_digest: str
) -> None:
    """Hold the calls of these numbers again, which `release` let run, for the loop of `calls_digest`."""
    for run in state.runs.values():
        for record in run.records:
            if record.seq in seqs:
                detail: FindingDetail = {}
                record.reaction = KeptReaction(
                    "hold", "ask", 1, False, kind, count, limit, None, None, "", 0, detail, calls_digest
                )


def close_hold(state: State, calls_digest: str) -> None:
    """Reset what `reset_after_detection` names, because no call of this loop waits for a decision any more."""
    for run in state.counted:
        if calls_digest in run.loops:
            reset_counters(run, calls_digest, run.loops[calls_digest].reset)


def run_after_pause(state: State, seq: int) -> bool:
    """Let a delayed call run that is sent again when its pause is over; return whether it was known and delayed."""
    for run in state.runs.values():
        for record in run.records:
            if record.seq == seq and record.reaction is not None and record.reaction.rung == "delay":
                kind, record.reaction = record.reaction.kind, None
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
    kinds = {detector.kind for detector in EXTENDABLE}
    for run in state.runs.values():
        for detector in EXTENDABLE:
            if detector.kind in run.detectors:
                detector.extend(run.detectors[detector.kind], rounds)
        run.loops = {name: loop for name, loop in run.loops.items() if loop.kind not in kinds}
