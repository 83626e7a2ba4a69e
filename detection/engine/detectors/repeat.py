"""The same call again and again.

    a a a a        consecutive: the fourth in a row
    a b a c a      window: the third among the last calls
    a … a … a      run: the n-th in the whole run
    a=1 b a=1 c …  scattered: the same call with the same result, other calls in between

Counts identical calls: the same tool with the same canonical arguments. It is the oldest and most reliable signal,
because consecutive identical calls are almost never intended unless their result keeps changing. `repeat_scope` selects
whether calls count in a row, within a window, or over the whole run.

With `result_aware` on, a changed result restarts the count (a poll that makes progress, a cursor kept by the server).
An error never does. An identical call at least `slow_gap_seconds` after the previous one counts as a fifth of a call,
so a slow poll is not mistaken for a tight loop. After an error this applies only if the error reports provider trouble,
which calls for a pause. A call that succeeded before a message of the user may be what the user asks for again: until
it was made `max_repeats` times since then, it is only warned about. Even if its results change, a call is warned about
once it was made `max_repeats_changing` times, except for tools that read or poll, and for results in which a figure
only rises or only falls, such as 10 %, 20 %, 30 %.

Nearly identical results of identical calls in a row, such as a page that is transcribed again, are warned about at the
count `repeat_warn_at`, and for tools that read, one call later. Results are nearly identical if at least the share
`repeat_near_ratio` of their words is the same and they differ in more than numbers and a word or two, which would be a
changing state. Calls that scroll or page do not count.

Scattered repeats are warned about and never blocked: the same call with the same result `scattered_repeats` times among
the last `scattered_window_calls` calls with no change and no message of the user in between, or `scattered_run_repeats`
times since the user spoke, an error one time earlier. The latter does not apply to results of tools and shell commands
that only look, such as `git status`, which may well stay the same.

- **False alarms:** tools that poll without being declared as `poll`, where results are never reported.
- **Tuning:** declare polls as `poll`, list arguments that change with every call in `ignore_arguments`, and raise
  `max_repeats` for tools that are legitimately called again. Calls further apart than `ttl_seconds` are not counted.
- **Cost:** constant per call; proportional to the window where `repeat_scope` is `window`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    FAILS_AGAIN,
    QUIET,
    SAME_RESULTS,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
    fill,
)
from detection.engine.field import choice, number, ratio, switch
from detection.engine.identity import loop_identity, structured
from detection.engine.memory import EMPTY, ERROR, MAX_TOTALS, OK, Record, RunState, drop_oldest
from detection.engine.results import ResultOutcome
from detection.engine.similarity import changed_words, word_set
from detection.engine.tool_verbs import moves_on

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_MAX_PAIRS = 64
_SECOND = 2
_MIN_CHANGED_WORDS = 4
_MAX_TIMES_BEYOND_LIMIT = 64
_FIGURE = re.compile(r"\d(?<![\w.]\d)\d{0,6}(?!\w)")
_MAX_FIGURES = 4
_MAX_FIGURES_CHARS = 400
_BOTH_WAYS = 2
# Sums of fifths are not exact.
_ENOUGH = 1 - 1e-9
_ROUNDING = 1e-9


class Repeat(BaseDetector):
    """Counts identical calls."""

    kind = "repeat"
    label = "Repeats"
    headline = "Repeated call"
    unit = "repeated calls"
    sentence = "*$tool* was called *$calls times$span* with $identical arguments"
    recurrence = "*$tool* is called again with $identical arguments"
    message = "'$tool' was called with $identical arguments $calls times$span"
    error_advice = FAILS_AGAIN
    advice = (
        "Consider a different approach, use the available information "
        "to provide a final answer, or ask the user for help."
    )
    again = "The same call again"
    again_by_name = "Another call of this tool"
    ladder = "mode"
    spared_classes = ("poll",)
    presets = (
        "standard", "proxy", "balanced", "conservative", "aggressive", "similarity", "advisory", "interactive",
    )  # fmt: skip
    key_settings = ("mode", "max_repeats", "repeat_warn_at", "repeat_scope", "ttl_seconds", "ttl_from")
    limit_setting = "max_repeats"
    same_calls_limits = ("scattered_repeats", "scattered_run_repeats")
    is_exact = True
    settings = (
        switch("repeat_enabled", True, "Detect repeats", "Detect identical calls.", weakens="off"),
        number(
            "max_repeats", 4, 2, 1000, "Limit for identical calls", "Fires on the n-th identical call.",
            aliases=("tool_loop_detection_max_repeats",),
        ),
        number(
            "repeat_warn_at", 0, 0, 1000, "First warning for identical calls",
            "Warns on the n-th identical call if all earlier results are known and identical. 0 turns this off.",
        ),
        choice(
            "repeat_scope", "consecutive", ("consecutive", "window", "run"), "Which calls count",
            "Consecutive calls, calls within a window, or all calls of the run.",
            strictest_first=("run", "window", "consecutive"),
        ),
        number(
            "window_calls", 10, 2, 60, "Window", "Number of earlier calls in the window.",
            weakens="down",
        ),
        number(
            "ttl_seconds", 120, 1, 31_536_000, "Maximum age of calls",
            "Earlier calls older than this do not count. A call exactly this old still counts.",
            unit="seconds", weakens="down", aliases=("tool_loop_detection_ttl_seconds",),
        ),
        choice(
            "ttl_from", "previous", ("previous", "entry", "never"), "Age is measured from",
            "The previous identical call (`previous`), each call itself (`entry`), or calls never expire (`never`).",
            strictest_first=("never", "previous", "entry"),
        ),
        switch(
            "result_aware", False, "Consider results", "Identical calls whose results change count as progress.",
            weakens="on",
        ),
        number(
            "max_repeats_changing", 10, 2, 10_000, "Limit while results change",
            "Warns on the n-th identical call although its results change.",
        ),
        ratio(
            "repeat_near_ratio", 0.7, "Similarity of nearly identical results",
            "Warns about identical calls in a row whose results have at least this share of their words in common. "
            "1 turns this off.",
        ),
        number(
            "scattered_repeats", 4, 0, 100, "Limit for scattered repeats",
            "Warns on the n-th identical call with the same result among the last calls if nothing was changed in "
            "between. 0 turns this off.",
        ),
        number(
            "scattered_window_calls", 20, 2, 60, "Window for scattered repeats",
            "Number of calls among which scattered repeats count.", weakens="down",
        ),
        number(
            "scattered_run_repeats", 5, 0, 100, "Limit for scattered repeats per run",
            "Warns on the n-th identical call with the same result in the "
            "whole run, one time earlier if it is an error. 0 turns this off.",
        ),
        number(
            "slow_gap_seconds", 20, 1, 86_400, "Slow call",
            "An identical call this long after the previous one counts as a fifth of a call.",
            unit="seconds", weakens="down",
        ),
        number(
            "poll_warn_at", 10, 2, 10_000, "First warning for polls",
            "For tools of the class poll whose result stays the same.",
        ),
        number(
            "poll_max_repeats", 20, 2, 10_000, "Limit for polls",
            "For tools of the class poll whose result stays the same.",
        ),
    )  # fmt: skip
    examples = {
        "repeat": Example(
            "the same call with the same result",
            (ExampleCall("A", "search", {"q": "reset password"}, "0 hits"),) * 5,
        ),
        "repeat-progress": Example(
            "the same call, but its result changes: not a loop",
            tuple(ExampleCall("A", "next_page", {}, f"rows {10 * n} to {10 * n + 9}") for n in range(1, 8)),
            fires=False,
        ),
        "repeat-scattered": Example(
            "the same call and result with other work in between",
            tuple(
                call
                for n in range(5)
                for call in (
                    ExampleCall("A", "search", {"q": "reset password"}, "0 hits"),
                    ExampleCall(
                        f"{n}", "lookup", {"name": f"user {n} {n * n}"}, f"{n * 31} is the number of this one"
                    ),
                )
            ),
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        scope = values["repeat_scope"]
        if scope == "consecutive":
            return _consecutive(own, run, record, call, policy)
        if scope == "window":
            count = _in_window(run, record, policy)
        else:
            count = _count(own, "totals", record.key, MAX_TOTALS)
        limit = values["max_repeats"] + run.allowance(record.key)
        if count < limit:
            return Reading(count, limit)
        window: dict[str, Any] = {}
        if scope == "window":
            ttl = values["ttl_seconds"] if values["ttl_from"] != "never" else None
            window = {"window_calls": values["window_calls"], "window_seconds": ttl}
        results, details = _known_results(run, record), detail(record.tool, scope=scope)
        return Reading(count, limit, _finding(run, record, policy, count, limit, results, details, **window))

    def on_result(
        self, own: dict[str, Any], run: RunState, record: Record, outcome: ResultOutcome, policy: Policy
    ) -> Reading:
        """Note whether the result changed, and look for scattered repeats."""
        streak = own.get("streak")
        if streak and streak["key"] == record.key and record.ordinal > streak["after"]:
            # The first result is not compared: most calls are made once, and each of them would pay for it.
            is_compared = policy.values["result_aware"] and streak["calls"] >= _SECOND
            if is_compared:
                _note_likeness(streak, record, outcome, policy)
            _note_result(streak, run, record)
            if record.status == ERROR:
                streak["trouble"] = bool(outcome.trouble)
            if is_compared:
                _note_direction(streak, outcome.text)
                nearly = _nearly_repeated(streak, run, record, policy)
                if nearly is not QUIET:
                    return nearly
        return _scattered(own, run, record, outcome, policy) if policy.values["result_aware"] else QUIET

    def on_change(self, own: dict[str, Any], run: RunState, record: Record) -> None:
        """Reset other calls: after a change it makes sense to repeat them."""
        if "totals" in own:
            own["totals"] = {key: n for key, n in own["totals"].items() if key == record.key}
        if own.get("streak") and own["streak"]["key"] != record.key:
            own["streak"] = _new_streak(own["streak"]["key"], run.ordinal)

    def on_message(self, own: dict[str, Any]) -> None:
        """Restart the counts of results over the run, and note that the user may have asked for the same again."""
        own.pop("pairs", None)
        streak = own.get("streak")
        if streak and streak.get("status", ERROR) != ERROR:
            streak["asked"] = 0

    def reset(self, own: dict[str, Any], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting these calls again from zero."""
        if own.get("streak") and own["streak"]["key"] in keys:
            own["streak"] = _new_streak("", run.ordinal)
        own.pop("pairs", None)
        for key in keys:
            own.get("totals", {}).pop(key, None)

    def is_refuted(self, results: str, detail: Mapping[str, Any]) -> bool:
        """Return whether the count starts over with a new result: only that of calls in a row does."""
        return results in SAME_RESULTS and detail.get("scope") == "consecutive"

    def memory_calls(self, values: Mapping[str, Any]) -> int:
        """Return how many calls a session must remember for these settings."""
        return max(
            values["window_calls"] + 1 if values["repeat_scope"] == "window" else 0,
            values["scattered_window_calls"] if values["result_aware"] else 0,
        )

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without arguments."""
        scope = finding.detail.get("scope")
        if scope == "run":
            # "parameters" is the word of the system that the preset `advisory` reproduces.
            return fill("this is call #$count to '$tool' with $identical parameters", finding)
        if scope == "scattered":
            where = f"in the last {finding.window_calls} calls" if finding.window_calls else "in this run"
            return fill(
                f"'$tool' was called with $identical arguments and returned the same $result $count times {where}",
                finding,
            )
        if finding.results == "alike":
            return fill(
                "'$tool' was called with $identical arguments $calls times$span and returned nearly the same result",
                finding,
                in_seconds=in_seconds,
            )
        if finding.window_calls:
            text = "'$tool' was called with $identical arguments $count times$among$span"
            return fill(text, finding, in_seconds=in_seconds)
        return super().describe(finding, in_seconds=in_seconds)


def _new_streak(key: str, ordinal: int) -> dict[str, Any]:
    """Return an empty streak of consecutive identical calls; results of calls up to `ordinal` do not belong to it.

    `calls` counts them, `series` those since the last changed result, and `count` the same with slow calls as a fifth;
    `paced` counts all of them so, and `asked` those since a message of the user.
    """
    return {"key": key, "after": ordinal, "calls": 0, "series": 0, "count": 0.0, "first": -1}


def _consecutive(
    own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
) -> Reading:
    values = policy.values
    ttl, ttl_from = values["ttl_seconds"], values["ttl_from"]
    streak = own.get("streak")
    if streak is None or streak["key"] != record.key:
        # Most calls begin a streak, and end there.
        own["streak"] = streak = {
            "key": record.key, "after": record.ordinal - 1, "calls": 1, "series": 1, "count": 1.0,
            "first": record.seq, "at": record.at, "paced": 1.0, "since": record.at,
        }  # fmt: skip
        if ttl_from == "entry":
            streak["times"] = [record.at]
        return Reading(1, values["max_repeats"])
    if ttl_from == "entry":
        # Each call ages by itself; one exactly as old as the time to live still counts. Times are kept beyond the
        # limit, so that a ladder sees whether the streak continues.
        kept = values["max_repeats"] + _MAX_TIMES_BEYOND_LIMIT
        times = [at for at in streak.get("times", ()) if record.at - at <= ttl][-kept:]
        if not times:
            streak = own["streak"] = _new_streak(record.key, record.ordinal - 1)
        streak["calls"] = streak["series"] = len(times)
        streak["count"] = float(len(times))
        streak["times"] = times
    elif ttl_from == "previous" and streak["calls"] and record.at - streak["at"] > ttl:
        streak = own["streak"] = _new_streak(record.key, record.ordinal - 1)
    # A pause after trouble of the provider is what such an error asks for.
    failed = streak.get("status") == ERROR and not streak.get("trouble")
    is_slow = streak["calls"] > 0 and record.weight < 1.0 and not failed
    streak["at"] = record.at
    streak["calls"] += 1
    streak["series"] += 1
    weight = record.weight if is_slow else 1.0
    streak["count"] += weight
    streak["paced"] = streak.get("paced", 0.0) + weight
    if "asked" in streak:
        streak["asked"] += 1
    if streak["first"] < 0:
        streak["first"], streak["since"] = record.seq, record.at
    if ttl_from == "entry":
        streak.setdefault("times", []).append(record.at)
    if streak["calls"] == 1:
        return Reading(1, values["max_repeats"])
    if streak["calls"] == _SECOND and values["result_aware"]:
        streak["moves_on"] = moves_on(record.tool, structured(call.arguments))
    return _judge_streak(streak, run, record, policy)


def _judge_streak(streak: dict[str, Any], run: RunState, record: Record, policy: Policy) -> Reading:
    values = policy.values
    calls, allowance = streak["calls"], run.allowance(record.key)
    if not values["result_aware"]:
        limit = values["max_repeats"] + allowance
        if calls < limit:
            return Reading(calls, limit)
        finding = _streak_finding(streak, run, record, policy, calls, calls, limit, "unknown")
        return Reading(calls, limit, finding)
    is_poll = policy.traits.tool_class == "poll"
    limit = (values["poll_max_repeats"] if is_poll else values["max_repeats"]) + allowance
    warn_at = (values["poll_warn_at"] if is_poll else values["repeat_warn_at"]) + allowance
    changing_limit = values["max_repeats_changing"] + allowance
    counted = int(streak["count"] + _ROUNDING)
    results = _results_of(streak)
    found: Finding | None = None
    if streak["count"] >= limit * _ENOUGH:
        series = streak["series"] if streak.get("changes") else calls
        count = max(counted if streak.get("changes") else calls, limit)
        # What the user may have asked for again is only warned about.
        asked = streak.get("asked", limit) < limit
        found = _streak_finding(streak, run, record, policy, count, series, limit, results, advisory=asked)
    elif (
        warn_at > allowance
        and streak["count"] >= warn_at * _ENOUGH
        and streak.get("known", 0) >= min(warn_at, limit) - 1 - allowance
    ):
        found = _streak_finding(
            streak, run, record, policy, counted, streak["series"], limit, results, advisory=True
        )
    elif (
        streak.get("changes")
        and streak["paced"] >= changing_limit * _ENOUGH
        and policy.traits.tool_class not in ("poll", "read")
        and not streak.get("moves")
    ):
        found = _streak_finding(
            streak, run, record, policy, calls, calls, changing_limit, "changing", advisory=True
        )
    return Reading(counted, limit, found)


def _note_result(streak: dict[str, Any], run: RunState, record: Record) -> None:
    last, last_status = streak.get("result", ""), streak.get("status", "")
    if last and record.result != last and not (record.status == ERROR and last_status == ERROR):
        # A changed result starts a new series, to which calls still in flight belong.
        in_flight = sum(
            1 for other in run.records if other.ordinal > record.ordinal and other.key == record.key
        )
        streak["series"] = 1 + in_flight
        streak["count"] = 1.0 + in_flight
        streak["known"] = 0
        streak["changes"] = streak.get("changes", 0) + (record.status in (OK, EMPTY))
    streak["known"] = streak.get("known", 0) + 1
    streak["result"], streak["status"] = record.result, record.status


def _note_direction(streak: dict[str, Any], text: str) -> None:
    """Note whether a figure of the results has only risen, or only fallen, from the second call on.

    An honest poll moves in one direction: 10 %, 20 %, 30 %. Few and short figures are kept, never the text.
    """
    figures = [
        int(figure[0]) for figure in islice(_FIGURE.finditer(text, 0, _MAX_FIGURES_CHARS), _MAX_FIGURES)
    ]
    last = streak.get("figures")
    if last is not None and last != figures:
        directions = [(now > before) - (now < before) for now, before in zip(figures, last, strict=False)]
        earlier = streak.get("directions", directions)
        streak["directions"] = [
            now if not before or now == before else before if not now else _BOTH_WAYS
            for now, before in zip(directions, earlier, strict=False)
        ]
        streak["moves"] = any(direction in (-1, 1) for direction in streak["directions"])
    streak["figures"] = figures


def _note_likeness(streak: dict[str, Any], record: Record, outcome: ResultOutcome, policy: Policy) -> None:
    """Count the results in a row that are nearly the same, from the second call on.

    Words are kept as keyed hashes of one character, never as text.
    """
    share = policy.values["repeat_near_ratio"]
    if streak.get("moves_on") or share == 1:
        return
    words, last = word_set(outcome.text, outcome.keyer), streak.get("words")
    streak["words"] = words
    is_same = record.result == streak.get("result")
    is_near = not is_same and last is not None and _are_nearly_the_same(words, last, share)
    if record.status == OK and record.weight == 1 and (is_same or is_near):
        streak["alike"] = streak.get("alike", 0) + 1
        streak["near"] = streak.get("near", False) or is_near
    else:
        streak["alike"], streak["near"] = 1, False


def _are_nearly_the_same(words: str, last: str, share: float) -> bool:
    """Return whether two sets of words share most of them, but differ in more than a state would."""
    changed, either = changed_words(words, last)
    return changed >= _MIN_CHANGED_WORDS and either - changed >= either * share


def _nearly_repeated(streak: dict[str, Any], run: RunState, record: Record, policy: Policy) -> Reading:
    """Advise if a call is repeated although its results are nearly the same. The next call judges identical ones."""
    warn_at = policy.values["repeat_warn_at"]
    if not warn_at or not streak.get("near") or policy.traits.tool_class == "poll":
        return QUIET
    # A state that is read may change a little each time.
    limit = warn_at + policy.traits.reads + run.allowance(record.key)
    calls = streak["alike"] + 1
    if calls < limit:
        return QUIET
    finding = _streak_finding(streak, run, record, policy, calls, calls, limit, "alike", advisory=True)
    return Reading(calls, limit, finding)


def _results_of(streak: dict[str, Any]) -> str:
    """Describe the known results since the last change."""
    if not streak.get("known"):
        return "unknown"
    return {ERROR: "errors", EMPTY: "empty"}.get(streak["status"], "equal")


def _scattered(
    own: dict[str, Any], run: RunState, record: Record, outcome: ResultOutcome, policy: Policy
) -> Reading:
    """Look for the same call with the same result, other calls in between.

    Among the last calls, only those since the last change count. Over the whole run, the limit is one higher and
    changes do not matter, because they did not change the result.
    """
    values = policy.values
    # An agent may write its list of tasks as often as it works.
    if policy.traits.tool_class == "poll" or record.effect == "note" or record.weight < 1.0:
        return QUIET
    in_run = 0
    reads = policy.traits.reads or record.effect in ("look", "search")
    if outcome.is_evidence and (record.status == ERROR or not reads):
        in_run = _count(own, "pairs", record.key[:6] + record.result[:6], _MAX_PAIRS)
    if record.is_new:
        return QUIET
    window = values["scattered_window_calls"]
    key, result = record.key, record.result
    recent = 0
    for other in run.records[-window:]:
        if other.key == key and other.result == result and not other.is_obsolete:
            recent += 1
    allowance = run.allowance(key)
    results = "errors" if record.status == ERROR else "equal"
    for count, limit, window_calls in (
        (recent, values["scattered_repeats"], window),
        (in_run, values["scattered_run_repeats"], None),
    ):
        if limit and window_calls is None and record.status == ERROR:
            limit -= 1
        if limit and count >= limit + allowance:
            limit += allowance
            details = detail(record.tool, advisory=True, scope="scattered")
            finding = _finding(run, record, policy, count, limit, results, details, window_calls=window_calls)
            return Reading(count, limit, finding)
    return QUIET


def _count(own: dict[str, Any], table: str, key: str, limit: int) -> int:
    """Count a key over the whole run in a table that keeps the latest `limit` keys."""
    counts = own.setdefault(table, {})
    count = counts.pop(key, 0) + 1
    counts[key] = count
    drop_oldest(counts, limit)
    return int(count)


def _in_window(run: RunState, record: Record, policy: Policy) -> int:
    """Count this call and the identical ones among the `window_calls` calls before it."""
    values = policy.values
    earlier = run.records[-1 - values["window_calls"] : -1]
    ttl = values["ttl_seconds"] if values["ttl_from"] != "never" else None
    return 1 + sum(
        1
        for other in earlier
        if other.key == record.key and not other.is_obsolete and (ttl is None or record.at - other.at <= ttl)
    )


def _known_results(run: RunState, record: Record) -> str:
    known = {other.result for other in run.records if other.key == record.key and other.result}
    return "unknown" if not known else "equal" if len(known) == 1 else "changing"


def _streak_finding(
    streak: dict[str, Any],
    run: RunState,
    record: Record,
    policy: Policy,
    count: int,
    calls: int,
    limit: int,
    results: str,
    *,
    advisory: bool = False,
) -> Finding:
    """Return a finding about the last `calls` calls of a streak; `count` is less where slow calls count as a fifth."""
    seconds = None
    if policy.values["ttl_from"] == "entry":
        seconds = policy.values["ttl_seconds"]
    elif policy.values["ttl_from"] == "previous":
        # The time to live limits the pause between two calls; what they span together can be any time.
        seconds = max(1, ceil(record.at - _start(streak, run, record, calls)))
    details = detail(
        record.tool, advisory=advisory, scope="consecutive", calls=calls if calls != count else None
    )
    window = {"window_seconds": seconds, "first_seq": streak["first"]}
    return _finding(run, record, policy, count, limit, results, details, **window)


def _start(streak: dict[str, Any], run: RunState, record: Record, calls: int) -> float:
    """Return the time of the first of the last `calls` calls; that of the whole streak where it is not remembered."""
    for other in reversed(run.records):
        if other.key == record.key:
            calls -= 1
            if not calls:
                return other.at
    return float(streak["since"])


def _finding(
    run: RunState,
    record: Record,
    policy: Policy,
    count: int,
    limit: int,
    results: str,
    details: Mapping[str, Any],
    **more: Any,
) -> Finding:
    same = [
        other
        for other in run.records
        if other.key == record.key and (not other.is_obsolete or other is record)
    ]
    more.setdefault("first_seq", same[0].seq)
    return Finding(
        kind="repeat",
        count=count,
        limit=limit,
        confidence=1.0 if results in ("equal", "errors") or not policy.values["result_aware"] else 0.8,
        loop_id=loop_identity("repeat", (record.key,)),
        call_keys=(record.key,),
        seqs=evidence(same),
        results=results,
        detail=details,
        **more,
    )
