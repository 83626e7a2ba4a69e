"""The same call again and again.

    a a a a        consecutive: the fourth in a row
    a b a c a      window: the third among the last calls
    a … a … a      run: the n-th in the whole run
    a=1 b a=1 c …  scattered: the same call with the same result, other calls in between

Counts identical calls: the same tool with the same canonical arguments. It is the oldest and most reliable signal,
because consecutive identical calls are almost never intended unless their result keeps changing. `repeat_scope` selects
whether calls count in a row, within a window, or over the whole run.

With `result_aware` on, a changed result restarts the count (a poll that makes progress, a cursor kept by the server).
An error never does, and neither does the receipt of a call that sends, pays, starts or writes something if it differs
from the one before in ids, numbers, times or hashes alone: another order number is no progress. Such calls count in
full for `write_period_minutes`, whatever the pauses between them, and the message says what they did so far. Calls
that go one step on, such as `increment` or `move north`, do something else each time.

Any other identical call at least `slow_gap_seconds` after the previous one counts as a fifth of a call, and a command
that sleeps before it looks as two fifths if no answer speaks of waiting. After an error this applies only if the error
reports provider trouble, where a pause half as long again as those before counts as well. A look is a poll, with limits
of its own, if its answer says pending, running, queued or the like, if an interactive tool gets empty input, if the
name of its tool says wait, poll, status or check, or if it is a look of a shell after such a pause. What does not exist
is an error, and no waiting.

After a message of the user, a call that did not fail may be what the user asks for again, so its count restarts; if it
has the same result in `repeat_warn_at` turns in a row, or in `max_repeats` where `auto` gives no early warning, that is
mentioned once. Even if its results change, a call is warned about once it was made `max_repeats_changing` times, except
for tools that read, poll or take the next item, and for results in which a figure only rises or only falls, such as
10 %, 20 %, 30 %; if nothing but rising figures changes, and none has a goal as in `3 of 40`, at twice that number.

Nearly identical results of identical calls in a row, such as a page that is transcribed again, are warned about at the
count `repeat_warn_at`, at the limit where `auto` gives no early warning, and for tools that read, one call later.
Results are nearly identical if at least the share `repeat_near_ratio` of their words is the same and they differ in
more than numbers and a word or two, which would be a changing state. Calls that scroll or page do not count.

Scattered repeats are warned about and never blocked: the same call with the same result `scattered_repeats` times among
the last `scattered_window_calls` calls with no change and no message of the user in between, or `scattered_run_repeats`
times since the user spoke, an error one time earlier. Where two calls fail again, each with its own error, one more in
all is enough: one of them three times, the other twice. What counts over the run are not results of tools and shell
commands that only look, such as `git status`, which may well stay the same.

- **False alarms:** tools that poll under a name that does not say so, where results are never reported.
- **Tuning:** declare polls as `poll`, list arguments that change with every call in `ignore_arguments`, and raise
  `max_repeats` for tools that are legitimately called again. Calls further apart than `ttl_seconds` are not counted.
- **Cost:** constant per call; proportional to the window where `repeat_scope` is `window`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from detection.engine.calls import Call, Finding, ObservedCall
from detection.engine.detectors.base import (
    FAILS_AGAIN,
    QUIET,
    SAME_RESULTS,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    fill,
)
from detection.engine.detectors.repeat import (
    changing,
    in_a_row,
    nearly_same,
    scattered,
    whole_run,
    window,
)
from detection.engine.detectors.repeat.first_warning import of_limit
from detection.engine.detectors.repeat.state import RepeatState, Streak
from detection.engine.field import choice, number, ratio, switch
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome


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
    further_limits = ("max_repeats_changing", "repeat_warn_at", "poll_warn_at", "poll_max_repeats")
    is_exact = True
    own_type = RepeatState
    settings = (
        switch("repeat_enabled", True, "Detect repeats", "Detect identical calls.", weakens="off"),
        # The proxy's. On the 140 inspected runs, 3 saves 165 calls instead of 121 and 5 saves 88; none blocks a
        # healthy run.
        number(
            "max_repeats", 4, 2, 1000, "Limit for identical calls", "Fires on the n-th identical call.",
            aliases=("tool_loop_detection_max_repeats",),
        ),
        number(
            "repeat_warn_at", 0, 0, 1000, "First warning for identical calls",
            "Warns on the n-th identical call if all earlier results are known and identical. 0 turns this off; `auto` "
            "is three quarters of `max_repeats`, rounded up, and no warning below 3.",
            auto=of_limit,
        ),
        choice(
            "repeat_scope", "consecutive", ("consecutive", "window", "run"), "Which calls count",
            "Consecutive calls, calls within a window, or all calls of the run.",
            strictest_first=("run", "window", "consecutive"),
        ),
        # As the system that `balanced` repeats; `standard` counts calls in a row and does not use it.
        number(
            "window_calls", 10, 2, 60, "Window", "Number of earlier calls in the window.",
            weakens="down",
        ),
        # The proxy's; 60 and 240 judge the 140 inspected runs alike, most of which have no times.
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
        # 9 and 11 judge the 140 inspected runs alike; a judgement: ten looks at something that moves back and forth.
        number(
            "max_repeats_changing", 10, 2, 10_000, "Limit while results change",
            "Warns on the n-th identical call although its results change.",
        ),
        # Turned off, 6 of the 44 loops of dev2 are missed; smaller and larger shares were not measured.
        ratio(
            "repeat_near_ratio", 0.7, "Similarity of nearly identical results",
            "Warns about identical calls in a row whose results have at least this share of their words in common. "
            "1 turns this off.",
        ),
        # As many as in a row; 3, 5 and none judge the 140 inspected runs alike.
        number(
            "scattered_repeats", 4, 0, 100, "Limit for scattered repeats",
            "Warns on the n-th identical call with the same result among the last calls if nothing was changed in "
            "between. 0 turns this off.",
        ),
        # A judgement, not measured: twice the window of `balanced`, because other work lies in between.
        number(
            "scattered_window_calls", 20, 2, 60, "Window for scattered repeats",
            "Number of calls among which scattered repeats count.", weakens="down",
        ),
        # On the 140 inspected runs, 4 has one more false alarm and finds no further loop; 6 and none change nothing.
        number(
            "scattered_run_repeats", 5, 0, 1000, "Limit for scattered repeats per run",
            "Warns on the n-th identical call with the same result in the "
            "whole run, one time earlier if it is an error. 0 turns this off.",
        ),
        # 10 and 40 judge the 140 inspected runs alike, most of which have no times; a judgement: people and agents
        # that wait on purpose look at such distances.
        number(
            "slow_gap_seconds", 20, 1, 86_400, "Slow call",
            "An identical call this long after the previous one counts as a fifth of a call.",
            unit="seconds", weakens="down",
        ),
        # A judgement, not measured: whoever sends the same twice within the hour of a task rarely means it.
        number(
            "write_period_minutes", 60, 0, 525_600, "Period of writes",
            "Identical calls that send or change something count in full for so long, whatever the pauses between "
            "them. 0 counts them like other calls.",
            unit="minutes", weakens="down",
        ),
        # Half of the limit for polls; a judgement, not measured.
        number(
            "poll_warn_at", 10, 2, 10_000, "First warning for polls",
            "For tools of the class poll whose result stays the same.",
        ),
        # Five times `max_repeats`; a judgement, not measured: a poll is expected to return the same for a while.
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
        self, own: RepeatState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        scope = policy.values["repeat_scope"]
        if scope == "consecutive":
            return in_a_row.judge(own, run, record, call, policy)
        if scope == "window":
            return window.judge(run, record, policy)
        return whole_run.judge(own, run, record, policy)

    def on_result(
        self,
        own: RepeatState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Note whether the result changed, and look for scattered repeats."""
        streak, is_aware = own.streak, policy.values["result_aware"]
        if streak is not None and streak.key == record.key and record.ordinal > streak.after:
            # Not the first result, because most calls are made once.
            is_compared = is_aware and streak.calls > 1
            if is_compared:
                nearly_same.note_likeness(streak, record, outcome, policy)
            in_a_row.note_result(streak, run, record, outcome, policy)
            if is_compared:
                changing.note_direction(streak, outcome.text)
                nearly = nearly_same.judge(streak, run, record, policy)
                if nearly is not QUIET:
                    return nearly
        return scattered.judge(own, run, record, outcome, policy) if is_aware else QUIET

    def on_change(self, own: RepeatState, run: RunState, record: Record) -> None:
        """Reset other calls: after a change it makes sense to repeat them."""
        own.totals = {key: n for key, n in own.totals.items() if key == record.key}
        if own.streak is not None and own.streak.key != record.key:
            own.streak = Streak(own.streak.key, run.ordinal)

    def on_message(self, own: RepeatState) -> None:
        """Restart the counts of results over the run, and note that the user may have asked for the same again."""
        own.pairs.clear()
        if own.streak is not None and own.streak.status not in ("", ERROR):
            own.streak.spoken, own.streak.asked = True, 0

    def reset(self, own: RepeatState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting these calls again from zero."""
        if own.streak is not None and own.streak.key in keys:
            own.streak = Streak("", run.ordinal)
        own.pairs.clear()
        for key in keys:
            own.totals.pop(key, None)

    def count(self, run: RunState, key: str, tool: str, policy: PolicySettings, at: float) -> int:
        """Return how many calls of a key count for `max_repeats` at a time, without a further one."""
        # What one more call would count, less itself; nothing is changed by asking.
        run = deepcopy(run)
        run.ordinal += 1
        effect = next((one.effect for one in reversed(run.records) if one.key == key), "")
        record = Record(run.ordinal, run.ordinal, tool, key, at, 0, 0, effect=effect)
        run.records.append(record)
        own = run.detectors.get(self.kind) or self.own_type()
        return self.on_call(own, run, record, Call(record.seq, tool, None, at), policy).reached - 1

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
        if so_far := finding.detail.get("so_far"):
            return f"{super().describe(finding, in_seconds=in_seconds)}; {so_far}"
        if finding.window_calls:
            text = "'$tool' was called with $identical arguments $count times$among$span"
            return fill(text, finding, in_seconds=in_seconds)
        return super().describe(finding, in_seconds=in_seconds)
