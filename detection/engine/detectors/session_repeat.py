"""The same call with the same result, turn after turn.

    a b   message   a c   message   a d   message   a …

Counts the turns of a session in which a call returned the result that it had before. A turn begins with a run, a
message of the user, or a compaction of the context, after which agents read again what they have forgotten. Calls in
between, and how often the call is made within a turn, do not matter. Advises at the `session_repeat_max_turns`-th turn,
and again each time the number has tripled, except about a look that succeeds: a file that every turn begins with is
mentioned once. Nothing is ever blocked, whatever the ladder.

A successful change anywhere in the session restarts all counts except those of errors, because reading again makes
sense after a change. So does a pause of more than `session_repeat_ttl_minutes` since the last such turn. Polls, bare
acknowledgements, receipts of writes and provider trouble do not count. In an attended session, a message of the user
resets the counts.

- **False alarms:** procedures that begin every turn with the same check, in sessions that change nothing.
- **Misses:** a call with more than 28 others between two turns.
- **Tuning:** raise `session_repeat_max_turns`, or turn it off for tools that are meant to be called in every turn.
- **Cost:** constant per result.
"""

from __future__ import annotations

from typing import TypedDict

from detection.engine.bounded import drop_oldest, hash_of
from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    FAILS_AGAIN,
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
)
from detection.engine.field import ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import EMPTY, ERROR, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome
from detection.engine.writes import CHANGES

# 28 results of 32 bits each keep the state below 16 KiB, half of its limit.
_MAX_PAIRS = 28
# Runs with turns of their own; a judgement: more than are ever interleaved in a session.
_MAX_RUNS = 8
# Calls that a finding names, one for each turn; a judgement for the size of the state.
_MAX_SEQS = 12
# Hexadecimal digits kept of the digests of a call and of its result: 32 bits for both tell 28 apart.
_DIGEST_CHARACTERS = 4
_WRITES = CHANGES | {"message"}
_OF_ERROR = "!"
# When a further piece of advice is due, in limits: at most one in ten turns.
_TRIPLED = frozenset(3**times for times in range(12))
# What is kept of a call and result: the latest turn, its time in minutes since the first call, the number of turns, and
# sequence numbers.
_TURN, _AT, _COUNT, _FIRST_SEQ = range(4)


class SessionRepeatState(TypedDict, total=False):
    """What the detector remembers: the hash of the latest run, its turn and those of others, and the number of turns.

    Times count from `since`, in Unix seconds. `pairs` are calls with their results, as `_TURN` to `_FIRST_SEQ` say.
    """

    run: int
    now: int
    turn: int
    runs: dict[str, int]
    since: float
    pairs: dict[str, list[int]]


class SessionRepeat(BaseDetector):
    """Counts the turns in which a call returns the same result."""

    kind = "session_repeat"
    label = "Repeats across turns"
    headline = "Repeated in every turn"
    unit = "turns"
    sentence = "*$tool* was called in *$count turns* with $identical arguments and returned the same $result"
    recurrence = "*$tool* is called turn after turn with the same result"
    message = (
        "'$tool' was called with $identical arguments in $count turns of this session"
        " and returned the same $result"
    )
    error_advice = FAILS_AGAIN
    advice = "Use what it returned, or do something that can change the result."
    again = "The same call in another turn"
    again_by_name = "A call of this tool in another turn"
    presets = ("standard",)
    key_settings = ("session_repeat_ladder", "session_repeat_max_turns")
    limit_setting = "session_repeat_max_turns"
    is_exact = True
    spans_session = True
    describes_results = False
    settings = (
        switch(
            "session_repeat_enabled", False, "Detect repeats across turns",
            "Detect a call that returns the same result turn after turn in a session.", weakens="off",
        ),
        # A judgement, not measured: a loop of eight turns passed unseen before.
        number(
            "session_repeat_max_turns", 7, 2, 1000, "Limit for repeats across turns",
            "Warns in the n-th turn in which a call returned the same result.", unit="turns",
        ),
        # A judgement, not measured: after an hour, asking again is normal.
        number(
            "session_repeat_ttl_minutes", 60, 1, 525_600, "Pause between turns",
            "Turns further apart than this do not count together.", unit="minutes", weakens="down",
        ),
        ladder("session_repeat_ladder", "warn", "Reaction to repeats across turns"),
    )  # fmt: skip
    examples = {
        "session_repeat": Example(
            "the same call and result in the seventh turn",
            tuple(
                call
                for n in range(1, 8)
                for call in (
                    ExampleCall("A", "search", {"q": "reset password"}, "0 hits", run=f"run-{n}"),
                    ExampleCall(
                        f"{n}",
                        "lookup",
                        {"name": f"user {n} {n * n}"},
                        f"{n * 31} is the number",
                        run=f"run-{n}",
                    ),
                )
            ),
        ),
    }

    def on_call(
        self,
        own: SessionRepeatState,
        run: RunState,
        record: Record,
        call: ObservedCall,
        policy: PolicySettings,
    ) -> Reading:
        """Note the turn of the call."""
        number = hash_of(call.run) if call.run else 0
        if own.get("run") == number:
            return QUIET
        own["run"] = number
        runs, name = own.setdefault("runs", {}), f"{number:x}"
        if name not in runs:
            own["turn"] = runs[name] = own.get("turn", 0) + 1
            own.setdefault("since", float(record.at))
            drop_oldest(runs, _MAX_RUNS)
        own["now"] = runs[name]
        return QUIET

    def on_result(
        self,
        own: SessionRepeatState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Count the turn, unless it is counted for this call and result already."""
        turn = own.get("now", 0)
        if not turn or not _is_counted(record, outcome, policy):
            return QUIET
        pairs = own.get("pairs")
        if pairs is None:
            pairs = own["pairs"] = {}
        name, at = _name(record), int(record.at - own["since"]) // 60
        pair = pairs.pop(name, None)
        if pair is None or at - pair[_AT] > policy.values["session_repeat_ttl_minutes"]:
            # The first turn fires at no limit.
            pairs[name] = [turn, at, 1, record.seq]
            if len(pairs) > _MAX_PAIRS:
                del pairs[next(iter(pairs))]
            return QUIET
        pairs[name] = pair
        pair[_AT] = at
        if turn <= pair[_TURN]:
            return QUIET
        pair[_TURN] = turn
        pair[_COUNT] += 1
        pair.append(record.seq)
        # The first call stays, and the latest ones.
        del pair[_FIRST_SEQ + 1 : -_MAX_SEQS]
        count, limit = pair[_COUNT], policy.values["session_repeat_max_turns"]
        if count % limit or count // limit not in _TRIPLED:
            return QUIET
        looks = policy.traits.reads or record.effect in ("look", "search")
        if record.status != ERROR and (_is_alone(run, record) or (looks and count > limit)):
            # A file that every turn begins with is what the user asks for.
            return QUIET
        seqs = sorted(pair[_FIRST_SEQ:])
        finding = Finding(
            kind=self.kind,
            count=count,
            limit=limit,
            confidence=SURE,
            calls_digest=digest_of_calls(self.kind, (record.key,)),
            call_keys=(record.key,),
            seqs=tuple(seqs),
            first_seq=seqs[0],
            results="errors" if record.status == ERROR else "empty" if record.status == EMPTY else "equal",
            detail=detail(record.tool, advisory=True, scope="session"),
        )
        return Reading(count, limit, finding)

    def on_change(self, own: SessionRepeatState, run: RunState, record: Record) -> None:
        """Forget the results of other calls, except errors: after a change it makes sense to read again."""
        own["pairs"] = {
            name: pair
            for name, pair in own.get("pairs", {}).items()
            if name.endswith(_OF_ERROR) or name.startswith(record.key[:_DIGEST_CHARACTERS])
        }

    def on_turn(self, own: SessionRepeatState) -> None:
        """Begin a new turn."""
        own.pop("runs", None)
        own.pop("run", None)

    def reset(self, own: SessionRepeatState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting these calls again from zero."""
        prefixes = tuple(key[:_DIGEST_CHARACTERS] for key in keys)
        own["pairs"] = {
            name: pair for name, pair in own.get("pairs", {}).items() if not name.startswith(prefixes)
        }


def _is_alone(run: RunState, record: Record) -> bool:
    """Return whether the call before this one was the same, so that `repeat` has given its advice."""
    return any(one.key == record.key for one in run.records if one.ordinal == record.ordinal - 1)


def _name(record: Record) -> str:
    """Return the 32-bit name under which a call and its result are kept; it begins with bits of the call."""
    return (
        record.key[:_DIGEST_CHARACTERS]
        + record.result[:_DIGEST_CHARACTERS]
        + (_OF_ERROR if record.status == ERROR else "")
    )


def _is_counted(record: Record, outcome: ResultOutcome, policy: PolicySettings) -> bool:
    """Return whether an identical result of this call in another turn would mean anything."""
    if outcome.trouble:
        return False
    if record.status != ERROR and (policy.traits.tool_class == "poll" or record.effect == "poll"):
        # To ask for a state is to wait, unless the question itself fails.
        return False
    if record.status == EMPTY:
        return record.effect not in _WRITES
    return outcome.is_evidence
