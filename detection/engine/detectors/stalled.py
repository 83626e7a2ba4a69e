"""Calls without a result, and runs that stop in the middle.

    read_file(…) → nothing for 10 minutes
    search → result, and then no further call, no answer and no end

A stalled session makes no calls that could reveal it, so workers check every few seconds and report it to operators, as
an incident and as an alert event of the severity `warning`. The agent gets no message. A call is stalled if it has no
result within the limit of its tool's class: `stalled_read_seconds` for `read`, `poll` and `message`,
`stalled_change_seconds` for `change`, `stalled_shell_seconds` for `fallible`, `stalled_other_seconds` for all other
classes. Tools of the classes `wait` and `exempt` are never stalled. A run is stalled if its calls have their results
and for `stalled_run_seconds` neither a call, nor a message of the assistant, nor the end follows. The class is guessed
from the tool's name where no tool rule sets it: `fetch_url` reads.

A `heartbeat` event with the `call_id` says that a call still runs, and restarts its time. Calls that were blocked or
are held, imported sessions, and sessions that never report a result are not judged, nor are stopped ones. The incident
ends by itself when the result, or any sign of life of the run, arrives.

- **False alarms:** agents that report neither their answers (`message` with the role `assistant`) nor the `end` of a
  run: set `stalled_run_seconds` to 0 for them.
- **Misses:** calls that are still open after 64 others were made; the first call ever, if its result would be the first
  one.
- **Tuning:** send heartbeats from tools that take long, or set the limits by a tool rule. 0 turns a limit off.
- **Cost:** constant per call. A working session is checked once per shortest limit.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypedDict

from detection.engine.bounded import drop_oldest
from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import QUIET, BaseDetector, Example, ExampleCall, Reading, detail
from detection.engine.field import NOT_OF_TOOLS, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import BLOCKING, MAX_RECORDS, PENDING, Record, RunState
from detection.engine.policy_settings import PolicySettings

_LIMIT_OF_CLASS: Final = {
    "read": "stalled_read_seconds",
    "poll": "stalled_read_seconds",
    "message": "stalled_read_seconds",
    "change": "stalled_change_seconds",
    "fallible": "stalled_shell_seconds",
}
# Seconds of a year: more than any session lives.
_LONGEST = 31_536_000


class StalledState(TypedDict, total=False):
    """What the detector remembers: heartbeats by call, and the calls that were found."""

    is_working: bool
    beats: dict[str, float]
    found: list[int]


class Stalled(BaseDetector):
    """Finds calls that wait for their result for too long, and runs that stopped in the middle."""

    kind = "stalled"
    judges_arguments = False
    label = "Stalled"
    headline = "Stalled"
    unit = "seconds"
    sentence = "*$tool* $silence for *$time*"
    recurrence = "*$tool* is silent for too long"
    message = "'$tool' was silent for $time"
    advice = "Check whether the tool or the agent is still running."
    limit_setting = "stalled_other_seconds"
    is_silence = True
    stands_alone = True
    describes_results = False
    limits: ClassVar[tuple[str, ...]] = (
        "stalled_read_seconds", "stalled_change_seconds", "stalled_shell_seconds", "stalled_other_seconds",
        "stalled_run_seconds",
    )  # fmt: skip
    key_settings = limits
    settings = (
        switch(
            "stalled_enabled", False, "Detect stalled sessions",
            "Report calls without a result, and runs that stop in the middle, to operators.",
            weakens="off", scopes=NOT_OF_TOOLS,
        ),
        # A judgement, not measured: a read that takes ten minutes has lost its result.
        number(
            "stalled_read_seconds", 600, 0, _LONGEST, "Limit for reads without a result",
            "For tools of the classes read, poll and message. 0 means no limit.", unit="seconds",
        ),
        # As for reads.
        number(
            "stalled_change_seconds", 600, 0, _LONGEST, "Limit for changes without a result",
            "For tools of the class change. 0 means no limit.", unit="seconds",
        ),
        # A judgement, not measured: builds and tests take half an hour and more.
        number(
            "stalled_shell_seconds", 3600, 0, _LONGEST, "Limit for commands without a result",
            "For tools of the class fallible, such as a shell. 0 means no limit.", unit="seconds",
        ),
        # A judgement, not measured: between a read and a command, because nothing is known of the tool.
        number(
            "stalled_other_seconds", 1800, 0, _LONGEST, "Limit for other calls without a result",
            "For tools of all other classes. 0 means no limit.", unit="seconds",
        ),
        # A judgement, not measured: models think for minutes, not for half an hour.
        number(
            "stalled_run_seconds", 1800, 0, _LONGEST, "Limit for runs that stop",
            "Applies if no call, answer or end follows the last result. 0 means no limit.",
            unit="seconds", scopes=NOT_OF_TOOLS,
        ),
    )  # fmt: skip
    examples = {
        "stalled": Example(
            "a result that never comes",
            (
                ExampleCall("A", "read_file", {"path": "a.txt"}, "alpha"),
                ExampleCall("B", "fetch_url", {"url": "https://example.com"}, None),
            ),
            silent_seconds=700,
        ),
        "stalled-run": Example(
            "a run that stops after its last result",
            (
                ExampleCall("A", "read_file", {"path": "a.txt"}, "alpha"),
                ExampleCall("B", "read_file", {"path": "b.txt"}, "beta"),
            ),
            silent_seconds=2000,
        ),
        "stalled-patient": Example(
            "a build that takes twenty minutes: not stalled",
            (
                ExampleCall("A", "read_file", {"path": "a.txt"}, "alpha"),
                ExampleCall("B", "bash", {"command": "make"}, None),
            ),
            fires=False,
            silent_seconds=1200,
        ),
    }

    def on_call(
        self, own: StalledState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Note that the agent is working."""
        own["is_working"] = True
        return QUIET

    def note_heartbeat(self, own: StalledState, seq: int, at: float) -> None:
        """Note that a call is still running; if it was reported as stalled, it may be reported again."""
        beats = own.setdefault("beats", {})
        beats.pop(str(seq), None)
        beats[str(seq)] = at
        drop_oldest(beats, MAX_RECORDS)
        own["found"] = [one for one in own.get("found", ()) if one != seq]

    def overdue_calls(
        self, own: StalledState, run: RunState, now: float, policy: PolicySettings
    ) -> tuple[list[Finding], list[float]]:
        """Return the calls that have stalled since the last check, and when the others would stall."""
        findings: list[Finding] = []
        waits_until: list[float] = []
        beats, known = own.get("beats", {}), set(own.get("found", ()))
        is_open = set()
        for record in run.records:
            if record.status != PENDING or record.decision in BLOCKING:
                continue
            is_open.add(record.seq)
            limit = self.limit_of(record.tool, policy)
            if not limit or record.seq in known:
                continue
            since = max(record.at, beats.get(str(record.seq), 0.0))
            if now < since + limit:
                waits_until.append(since + limit)
                continue
            findings.append(
                self._finding(record, (record.key, str(record.seq)), now - since, limit, call=record.seq)
            )
        own["found"] = sorted((known & is_open) | {finding.seqs[-1] for finding in findings})
        return findings, waits_until

    def stopped_run(
        self, own: StalledState, run: RunState, now: float, last_event_at: float, policy: PolicySettings
    ) -> tuple[list[Finding], list[float]]:
        """Return the finding for a stalled run, whose calls all have results, or the time at which it would stall."""
        limit = policy.values["stalled_run_seconds"]
        latest = run.records[-1] if run.records else None
        if not limit or latest is None or latest.status == PENDING or not own.get("is_working"):
            return [], []
        if now < last_event_at + limit:
            return [], [last_event_at + limit]
        # Reported once: a further call is work again.
        own.pop("is_working")
        return [self._finding(latest, ("run", str(latest.seq)), now - last_event_at, limit)], []

    def limit_of(self, tool: str, policy: PolicySettings) -> int:
        """Return the number of seconds after which a call of a tool counts as stalled, 0 for never."""
        policy = policy.for_tool(tool)
        if not policy.values[self.switch]:
            return 0
        return int(policy.values[_LIMIT_OF_CLASS.get(policy.traits.tool_class, "stalled_other_seconds")])

    def _finding(
        self, record: Record, name: tuple[str, ...], seconds: float, limit: int, call: int = 0
    ) -> Finding:
        return Finding(
            kind=self.kind,
            count=int(seconds),
            limit=limit,
            calls_digest=digest_of_calls(self.kind, name),
            call_keys=(record.key,),
            seqs=(record.seq,),
            first_seq=record.seq,
            detail=detail(
                record.tool,
                advisory=True,
                call=call,
                silence="has returned no result" if call else "was the last call, and nothing followed",
            ),
        )
