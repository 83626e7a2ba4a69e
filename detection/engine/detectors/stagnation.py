"""No new results for a while.

    read → x   list → y   read → x   grep → z   list → y   grep → z   read → x …

Counts calls in a row without a result that is new in this run and without a successful change. It covers long cycles,
shuffled calls and sweeps that start over, which the detectors that compare calls cannot see. Empty results, and a bare
"ok", number or Boolean for a new call, neither count nor reset the count. Neither does a known result that appears for
the first time since a change or a message of the user: the agent may repeat a procedure for the next piece of work. A
message of the user resets the count. The results of one model response count once. An error is never progress, but a
new one counts 0.6 calls. Slow identical calls count a fifth, polls a quarter, and slow polls a twentieth. A sweep of
searches in ever new words that all find nothing ("[]", "No results for …") is advised against at the
`stagnation_max_empty`-th, of shell commands such as `find` and `grep` half as many later; calls of which most
arguments stay the same, such as one search for several days, do not count. A file that is read in parts, all of it, and
then once more in other parts, is advised against at the `stagnation_max_passes`-th pass, unless something was changed
or the context compacted in between. If the client never reports results, a call is new if it was not made before, and
the limit is doubled. Before it runs, a call is judged if it belongs to those that brought nothing or, beyond four times
the limit, if it neither writes nor says something: one for each further result. One call again and again is left to
`repeat` below `max_repeats`.

- **False alarms:** work that tries one thing in several ways before one of them succeeds.
- **Tuning:** raise `stagnation_max_calls` for agents that read the same things often. The default reaction warns twice,
  three calls apart, then blocks once before it stops.
- **Cost:** constant per call.
"""

from __future__ import annotations

from math import ceil
from typing import TypedDict

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    LIKELY,
    MAX_EVIDENCE,
    POSSIBLE,
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    fill,
    forget_all,
    is_within_repeats,
)
from detection.engine.field import ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import ERROR, OK, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome
from detection.engine.similarity import shared_fields
from detection.engine.windows import PartsRead, read_again

# Different calls that a finding names and continues on; a judgement: twice the longest cycle that `cycle` looks for.
_MAX_KEYS = 12
# Calls alone say half as much as calls with results; a judgement, not measured.
_UNKNOWN_FACTOR = 2
# 0.2 to 0.4 avoid the one false alarm of dev, but miss two of the 13 loops of dev3: failures in ever new words.
_NEW_ERROR = 0.6
# Beyond this multiple of the limit, a call need not be known to be judged before it runs.
_FAR_BEYOND = 4
# A poll is expected to return the same: 20 of them are as much as five other calls, as in `poll_max_repeats`.
_POLL = 0.25
# Arguments of which more than half stay the same are one question; a judgement, not measured.
_HALF = 0.5
# A command line searches in small steps: honest recorded runs had five empty answers in a row. With 1, the inspected
# runs of dev2 have one more false alarm; 2 changes none of the 476 of dev to dev4.
_SHELL_SEARCHES = 1.5
# Sums of fifths, quarters and 0.6 are not exact.
_ENOUGH = 1 - 1e-9


class Sweep(TypedDict):
    """Searches in a row that found nothing."""

    tool: str
    count: int
    round: int
    keys: list[str]
    seqs: list[int]
    sketch: str | None


class StagnationState(TypedDict, total=False):
    """What the detector remembers: calls in a row without a new result, by weight, and how many there were.

    `judged` is their number when a new call was judged, `weight` what the latest round counted, `new` the round of the
    latest new result. `refusal` says that all results were refusals, `loop` is the identity of a loop that was found.
    """

    count: float
    calls: int
    judged: int
    round: int
    weight: float
    keys: list[str]
    seqs: list[int]
    loop: str
    refusal: bool
    new: int
    sweep: Sweep
    files: dict[str, PartsRead]


class Stagnation(BaseDetector):
    """Counts calls in a row without a new result."""

    kind = "stagnation"
    spared_classes = ("poll",)
    label = "Stagnation"
    headline = "No new results"
    unit = "calls without a new result"
    sentence = "The last *$calls calls$span* brought no new result"
    recurrence = "Calls of *$tool* bring no new result"
    message = "the last $calls calls, up to '$tool', brought no new result"
    advice = "Step back: say what you know, what is missing, and choose a way you have not tried."
    presets = ("standard",)
    key_settings = (
        "stagnation_ladder",
        "stagnation_max_calls",
        "stagnation_max_empty",
        "stagnation_max_passes",
    )
    limit_setting = "stagnation_max_calls"
    further_limits = ("stagnation_max_empty", "stagnation_max_passes")
    only_warns_fallible = True
    describes_results = False
    counts_results = True
    settings = (
        switch(
            "stagnation_enabled", False, "Detect stagnation", "Detect series of calls without a new result.",
            weakens="off",
        ),
        # On the 140 inspected runs, 4 has one more false alarm and 6 one less, both with all loops; 5 was set in
        # advance.
        number(
            "stagnation_max_calls", 5, 2, 1000, "Limit for calls without a new result",
            "Fires on the n-th call in a row without a new result or a successful change.",
        ),
        # Turned off, 3 of the 71 loops of dev are missed; smaller and larger values were not measured.
        number(
            "stagnation_max_empty", 4, 0, 1000, "Limit for searches that find nothing",
            "Warns on the n-th search in a row, each for something else, that finds nothing. 0 turns this off.",
        ),
        # By definition: the second pass over a file that nothing has changed brings nothing new.
        number(
            "stagnation_max_passes", 2, 0, 1000, "Limit for passes over a file",
            "Warns when a file that nothing has changed was read in parts for the n-th time. 0 turns this off.",
        ),
        ladder("stagnation_ladder", "graduated", "Reaction to stagnation"),
    )  # fmt: skip
    examples = {
        "stagnation": Example(
            "a shuffle of calls that were all made before",
            tuple(
                ExampleCall(letter, f"tool_{letter.lower()}", {"of": letter}, f"state of {letter}")
                for letter in "ABCDCADBACDB"
            ),
        ),
    }

    def on_call(
        self,
        own: StagnationState,
        run: RunState,
        record: Record,
        call: ObservedCall,
        policy: PolicySettings,
    ) -> Reading:
        """Continue a stagnation on a call that belongs to it; any other call may bring a new result."""
        if not run.results:
            if run.is_new(record.key):
                forget_all(own)
                return QUIET
            _count(own, record)
            return _judge(own, run, record, policy, policy.values["stagnation_max_calls"] * _UNKNOWN_FACTOR)
        limit = policy.values["stagnation_max_calls"]
        if "count" not in own:
            return QUIET
        if record.key not in own["keys"] and not _is_far_beyond(own, run, record, policy, limit):
            return QUIET
        return _judge(own, run, record, policy, limit)

    def on_result(
        self,
        own: StagnationState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call by its result."""
        sweep, files = own.pop("sweep", None), own.pop("files", None)
        reading = self._idle(own, run, record, outcome, policy)
        found = QUIET
        if sweep is not None or policy.traits.reads or record.effect == "search":
            found = _sweep(own, sweep, run, record, outcome, policy)
        if files is not None or record.window is not None:
            again = _pass(own, files or {}, run, record, policy)
            found = again if found.finding is None else found
        return found if found.finding is not None and reading.finding is None else reading

    def _idle(
        self,
        own: StagnationState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Count a result that is not new, and begin again at one that is."""
        if run.results == 1:
            # The first result of this client: discard what was counted by calls alone.
            forget_all(own)
        if outcome.trouble and policy.values["outage_enabled"]:
            return QUIET
        if record.status != ERROR or (outcome.is_doubtful and record.is_new):
            if record.is_new:
                if outcome.is_evidence and not outcome.is_phrase:
                    forget_all(own)
                    own["new"] = record.round
                return QUIET
            if outcome.is_value or run.is_first_in_epoch(record, same_call=not outcome.is_evidence):
                return QUIET
        if policy.values["once_per_round"] and record.round and record.round == own.get("new"):
            return QUIET
        own["refusal"] = own.get("refusal", True) and outcome.is_refused
        poll = policy.traits.tool_class == "poll"
        _count(own, record, poll=poll, once=policy.values["once_per_round"], plain=policy.reads_plainly)
        return _judge(own, run, record, policy, policy.values["stagnation_max_calls"])

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without arguments."""
        if finding.detail.get("scope") == "pass":
            return fill(
                "'$tool' has read one file $count times in parts, with no known change in between", finding
            )
        return super().describe(finding, in_seconds=in_seconds)

    def on_message(self, own: StagnationState) -> None:
        """Reset the count: a message of the user is something new."""
        forget_all(own)

    def on_turn(self, own: StagnationState) -> None:
        """Forget what was read of files: after a compaction, agents read again what they have forgotten."""
        own.pop("files", None)

    def on_change(self, own: StagnationState, run: RunState, record: Record) -> None:
        """Reset the count: a successful change is progress."""
        forget_all(own)

    def reset(self, own: StagnationState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting again from zero."""
        forget_all(own)


def _is_far_beyond(
    own: StagnationState, run: RunState, record: Record, policy: PolicySettings, limit: int
) -> bool:
    """Return whether even a new call belongs to a stagnation, because those before it brought nothing for so long.

    One call for each further result: the call after a blocked one may show that the agent has found another way. What
    writes or says something may end the stagnation.
    """
    is_far = own.get("count", 0.0) >= (limit + run.allowances.get("stagnation", 0)) * _FAR_BEYOND * _ENOUGH
    if not is_far or policy.reads_plainly or record.effect in ("write", "step", "message", "note"):
        return False
    if own.get("judged") == own["calls"]:
        return False
    own["judged"] = own["calls"]
    return True


def _count(
    own: StagnationState, record: Record, *, poll: bool = False, once: bool = False, plain: bool = False
) -> None:
    weight = record.weight if record.status != ERROR else _NEW_ERROR if record.is_new else 1.0
    if poll and record.status != ERROR:
        weight = min(weight, _POLL) if plain else weight * _POLL
    own["calls"] = own.get("calls", 0) + 1
    # A round counts as much as its weightiest call.
    in_round = once and record.round and record.round == own.get("round")
    counted = own["weight"] if in_round else 0.0
    own["count"] = own.get("count", 0.0) + max(0.0, weight - counted)
    own["round"], own["weight"] = record.round, max(weight, counted)
    keys = own.setdefault("keys", [])
    if record.key not in keys:
        keys.append(record.key)
        del keys[:-_MAX_KEYS]
    seqs = own.setdefault("seqs", [])
    seqs.append(record.seq)
    del seqs[:-MAX_EVIDENCE]


def _sweep(
    own: StagnationState,
    sweep: Sweep | None,
    run: RunState,
    record: Record,
    outcome: ResultOutcome,
    policy: PolicySettings,
) -> Reading:
    """Count searches in a row that found nothing; anything that is found ends a sweep, and an error does not."""
    values, limit = policy.values, policy.values["stagnation_max_empty"]
    searches = policy.traits.reads or (record.effect == "search" and not outcome.is_plain)
    if not limit or not searches or record.status == ERROR or not outcome.finds_nothing:
        if sweep is not None and record.status == ERROR:
            own["sweep"] = sweep
        return QUIET
    if sweep is None or sweep["tool"] != record.tool:
        sweep = {"tool": record.tool, "count": 0, "round": 0, "keys": [], "seqs": [], "sketch": None}
    own["sweep"] = sweep
    is_asked = record.key in sweep["keys"]
    is_parallel = values["once_per_round"] and record.round and record.round == sweep["round"]
    is_variant = sweep["sketch"] is not None and shared_fields(record.sketch, sweep["sketch"]) > _HALF
    if is_asked or is_parallel or is_variant:
        return QUIET
    sweep["count"] += 1
    sweep["round"], sweep["sketch"] = record.round, record.sketch
    sweep["keys"] = [*sweep["keys"], record.key][-_MAX_KEYS:]
    sweep["seqs"] = sorted([*sweep["seqs"], record.seq])[-MAX_EVIDENCE:]
    if record.effect == "search":
        limit = ceil(limit * _SHELL_SEARCHES)
    limit += run.allowances.get("stagnation", 0)
    count = sweep["count"]
    if count < limit:
        return Reading(count, limit)
    finding = Finding(
        kind="stagnation",
        count=count,
        limit=limit,
        confidence=POSSIBLE,
        calls_digest=digest_of_calls("sweep", (record.tool,)),
        call_keys=tuple(sweep["keys"]),
        seqs=tuple(sweep["seqs"]),
        first_seq=sweep["seqs"][0],
        results="empty",
        period=len(sweep["keys"]),
        detail=detail(record.tool, advisory=True),
    )
    return Reading(count, limit, finding)


def _pass(
    own: StagnationState, files: dict[str, PartsRead], run: RunState, record: Record, policy: PolicySettings
) -> Reading:
    """Count passes over a file that is read in parts; what may have changed the file makes them new."""
    window, record.window = record.window, None
    limit = policy.values["stagnation_max_passes"]
    if not limit or (window is None and policy.traits.is_shell and record.effect == ""):
        return QUIET
    own["files"] = files
    if window is None or record.status != OK:
        return QUIET
    found = read_again(files, window, record.seq, record.key)
    limit += run.allowances.get("stagnation", 0)
    if found is None or found.number < limit:
        return QUIET
    finding = Finding(
        kind="stagnation",
        count=found.number,
        limit=limit,
        confidence=POSSIBLE,
        calls_digest=digest_of_calls("pass", (record.tool, f"{window[0]:x}")),
        call_keys=found.keys,
        seqs=found.seqs,
        first_seq=found.seqs[0],
        results="unknown",
        period=len(found.keys),
        detail=detail(record.tool, advisory=True, scope="pass", calls=found.parts, unit="passes over a file"),
    )
    return Reading(found.number, limit, finding)


def _judge(
    own: StagnationState, run: RunState, record: Record, policy: PolicySettings, limit: int
) -> Reading:
    limit += run.allowances.get("stagnation", 0)
    count, known = own.get("count", 0.0), own.get("keys", ())
    if count < limit * _ENOUGH:
        return Reading(int(count), limit)
    if len(known) == 1 and is_within_repeats(count, known[0], run, policy, "stagnation_max_calls"):
        return Reading(int(count), limit)
    keys, rounded = tuple(own["keys"]), int(count + 0.5)
    # The identity stays the same when further calls join the loop.
    calls_digest = own.setdefault("loop", digest_of_calls("stagnation", sorted(keys)))
    # Results may arrive in another order than their calls.
    seqs = tuple(sorted(own["seqs"]))
    finding = Finding(
        kind="stagnation",
        count=rounded,
        limit=limit,
        confidence=LIKELY if run.results else POSSIBLE,
        calls_digest=calls_digest,
        call_keys=keys,
        seqs=seqs,
        first_seq=seqs[0],
        results="unknown" if not run.results else "errors" if record.status == ERROR else "equal",
        period=len(keys),
        detail=detail(
            record.tool,
            calls=own["calls"] if own["calls"] != rounded else 0,
            refusal=own.get("refusal", False),
        ),
    )
    return Reading(int(count), limit, finding)
