"""Base class of all detectors: a small pure fold over the calls and results that are counted together.

Everything that other parts of LoopGuard need to know about a detector is declared here and set by its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, ClassVar, Final, Unpack, cast

from detection.engine import durations
from detection.engine.calls import Finding, FindingDetail, Message, ObservedCall, ObservedUsage, Usage
from detection.engine.field import Field
from detection.engine.identity import Keyer
from detection.engine.memory import Kept, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome

# What the evidence of an incident holds in one row; a judgement, not measured.
MAX_EVIDENCE = 50

# How sure a finding is where it is not certain (1): judgements that are shown and averaged, and that no reaction
# reads.
SURE = 0.9
"""Results that a detector has compared and counted by tool, agents or turns; a judgement, not measured."""
LIKELY = 0.8
"""Calls without known results, or results that honest work may share; a judgement, not measured."""
POSSIBLE = 0.6
"""Likeness, novelty and empty answers, which are weak signals alone; a judgement, not measured."""


@dataclass(slots=True)
class Reading:
    """How far a detector has counted, the limit it counts to, and the finding if it fired."""

    reached: int
    limit: int
    finding: Finding | None = None


SAME_RESULTS = ("equal", "empty", "errors")
"""What `Finding.results` says where the known results were compared and brought nothing new."""
QUIET = Reading(0, 1)
"""The reading of a detector that has counted nothing."""


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """One call of an example with its result.

    Parameters
    ----------
    letter : str
        Stands for the call in a picture; identical calls share it.
    tool, arguments : str, object
        What is called; without a tool, a text of the assistant.
    result : str or None
        The result; None means that it never arrives.
    is_error : bool
        Whether the result is an error.
    run : str or None
        The run of the call.
    session : str
        Which session of a family makes the call; empty for examples of one session.
    agent : str
        Name of the agent.
    """

    letter: str
    tool: str
    arguments: Any
    result: str | None
    is_error: bool = False
    run: str | None = None
    session: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A short run that documents and tests a detector.

    Parameters
    ----------
    title : str
        What happens, in a few words.
    calls : tuple of ExampleCall
        The calls in order, one second apart, one per round.
    fires : bool
        Whether the detector fires, under `standard` and `values`.
    values : mapping
        Settings above `standard`.
    silent_seconds : float
        What passes after the last event until the session is looked at; 0 for examples that need no pause.
    """

    title: str
    calls: tuple[ExampleCall, ...]
    fires: bool = True
    values: Mapping[str, Any] | None = None
    silent_seconds: float = 0


NAMES_ONLY: Final = "names_only"
"""Detail of findings where calls were compared by their tools alone, so that nothing is known of their arguments."""

SMALLER_STEPS: Final = "Break the request into smaller steps, or try another approach."
"""Advice for a run that was stopped."""

FAILS_AGAIN: Final = "It fails the same way each time: find the cause, try another way, or report what fails."
"""Advice for calls whose results are all errors."""


class BaseDetector:
    """Base class of all detectors.

    A detector is a class in a module of its own with one line in the registry. It declares its settings and texts, and
    overrides the hooks it needs. Hooks are called with the call or result in hand already stored: the newest record is
    the last of `run.records`, and a result is filled in. `own` is what only this detector reads and writes, an object
    of `own_type`; it is stored with the session. A hook must cost a bounded amount of time whatever the length of the
    session, and must not raise. One that raises is skipped for that call and counted.

    Attributes
    ----------
    kind : str
        Stable name in lower snake case, at most 16 characters: the `kind` of findings and incidents, and the prefix of
        the settings.
    switch : str
        The setting that turns the detector on: `{kind}_enabled`.
    ladder : str
        The setting that holds the escalation ladder; `{kind}_ladder` if not overridden, empty with `is_silence`.
    label : str
        Name for people, in the plural: `Cycles`.
    headline : str
        Title of an incident; the tool is added.
    unit : str
        What is counted, in the plural: `laps`.
    sentence : str
        The incident in one sentence for people, without the full stop. Text between asterisks is emphasised.
        Placeholders: `$tool`, `$count`, `$limit`, `$span` (" in 12 s" or nothing), `$period`, `$result` ("error" or
        "result"), `$identical` ("identical", or "any" where only tools were compared) and the finding's details.
    recurrence : str
        A loop of such incidents in one sentence for people, without the full stop. Placeholders: `$tool`,
        `$identical` and `$detail` (the trouble of a provider, or the unit of a budget). Text between asterisks is
        emphasised.
    message : str
        The finding for the agent, within a sentence. It never quotes arguments. The same placeholders, with `$span` as
        " within 12 s", and `$among` (" in the last 13 calls" or nothing).
    advice : str
        What the agent should do instead, as sentences.
    error_advice : str
        The same where all results were errors; empty if `advice` suits these, too.
    templates : mapping of str to str
        Message templates by rung or name of `messages.CLOSINGS` that replace the defaults, whatever the class of the
        tool.
    again : str
        The subject of a sentence about the next detection, such as "The same call again".
    again_by_name : str
        The same where calls were compared by their tools alone; empty if `again` suits these, too.
    settings : tuple of Field
        The detector's settings, including its switch and its ladder. Their group is the kind.
    presets : tuple of str
        Presets that turn the detector on: `standard` (and with it `observe`), or those of known systems.
    key_settings : tuple of str
        Settings that decide a finding; shown with every incident, even where nobody changed them.
    limit_setting : str
        The setting that an operator raises to let one session go further.
    same_calls_limits : tuple of str
        Other limits at which the same calls are found.
    further_limits : tuple of str
        Limits for calls of another kind, such as those that fail.
    examples : mapping of str to Example
        Pictures of the documentation by file name; the first is called as the kind and fires.
    is_exact : bool
        The loop consists of identical calls. Extra calls are granted to these calls, not to the detector as a whole,
        and the judge may not overrule the finding.
    is_run_limit : bool
        The finding is about the run as a whole: it never stands in for a loop among the same calls, and extensions
        grant rounds instead of calls.
    stands_alone : bool
        What it finds is no loop that another detector may find in the same calls, so both react.
    spans_session : bool
        It counts over the whole session: `own` and the escalation of its loops belong to no run, and no message of the
        user resets them. `run` is still the run of the call in hand.
    judges_texts : bool
        Its evidence are messages and compactions; an incident has no calls.
    own_type : type
        What it remembers: a JSON-able dictionary, or a dataclass that inherits from `Kept`. It is created without
        parameters.
    spans_tools : bool
        The loop is a lap of several calls: the incident names every tool of the lap, and takes precedence over an
        equally strict finding about a single call.
    only_warns_fallible : bool
        Tools of the class `fallible` are warned about at most.
    spared_classes : tuple of str
        Classes of tools for which it has higher limits, or finds nothing; besides `exempt`.
    judges_arguments : bool
        It may find less where arguments are ignored.
    spans_family : bool
        The finding may be about several sessions; a replay of one session does not find it.
    needs_family : bool
        Nothing is to be judged in a session without a family, so that the hooks of calls and results are not called.
    is_silence : bool
        Nothing happens, so it is not a loop and the agent gets no message: workers look for it, see `silence`. The
        incident ends with the next sign of life.
    describes_results : bool
        The incident's sentence adds what is known about the results.
    counts_results : bool
        It counts results, and calls that did not run have none. Results of reported calls that would not have run
        do not count, either.
    """

    kind: ClassVar[str] = ""
    switch: ClassVar[str] = ""
    ladder: ClassVar[str] = ""
    label: ClassVar[str] = ""
    headline: ClassVar[str] = ""
    unit: ClassVar[str] = "calls"
    sentence: ClassVar[str] = "*$tool* was called *$count times$span*"
    recurrence: ClassVar[str] = "*$tool* is called again and again"
    message: ClassVar[str] = "'$tool' was called $count times$span"
    advice: ClassVar[str] = "Change the approach, or report what you have."
    error_advice: ClassVar[str] = ""
    templates: ClassVar[Mapping[str, str]] = {}
    again: ClassVar[str] = "Continuing like this"
    again_by_name: ClassVar[str] = ""
    settings: ClassVar[tuple[Field, ...]] = ()
    presets: ClassVar[tuple[str, ...]] = ()
    key_settings: ClassVar[tuple[str, ...]] = ()
    limit_setting: ClassVar[str] = ""
    same_calls_limits: ClassVar[tuple[str, ...]] = ()
    further_limits: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[Mapping[str, Example]] = {}
    own_type: ClassVar[type[dict[str, object]] | type[Kept]] = dict
    is_exact: ClassVar[bool] = False
    is_run_limit: ClassVar[bool] = False
    stands_alone: ClassVar[bool] = False
    spans_session: ClassVar[bool] = False
    judges_texts: ClassVar[bool] = False
    spans_tools: ClassVar[bool] = False
    only_warns_fallible: ClassVar[bool] = False
    spared_classes: ClassVar[tuple[str, ...]] = ()
    judges_arguments: ClassVar[bool] = True
    spans_family: ClassVar[bool] = False
    needs_family: ClassVar[bool] = False
    is_silence: ClassVar[bool] = False
    describes_results: ClassVar[bool] = True
    counts_results: ClassVar[bool] = False

    @property
    def is_of_calls(self) -> bool:
        """Whether calls make up what it finds: not silence, and not a limit of the run, which no other call leaves."""
        return not (self.is_silence or self.is_run_limit)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.kind:  # otherwise a base class of several detectors
            cls.switch = f"{cls.kind}_enabled"
            cls.ladder = "" if cls.is_silence else cls.ladder or f"{cls.kind}_ladder"

    def on_call(
        self, own: Any, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        return QUIET

    def on_result(
        self, own: Any, run: RunState, record: Record, outcome: ResultOutcome, policy: PolicySettings
    ) -> Reading:
        """Judge a call by its result."""
        return QUIET

    def on_change(self, own: Any, run: RunState, record: Record) -> None:
        """Discard evidence that a successful change has made obsolete."""

    def on_message(self, own: Any) -> None:
        """Discard evidence after a message of the user: what succeeded before may be asked for again."""

    def on_usage(self, own: Any, usage: ObservedUsage) -> None:
        """Add the usage of a model response that was reported by itself."""

    def on_text(
        self, own: Any, run: RunState, message: Message, policy: PolicySettings, keyer: Keyer
    ) -> Reading:
        """Judge a text of the assistant, a message of the user or a compaction. Only with `spans_session`.

        `run` is what is counted over the whole session.
        """
        return QUIET

    def on_turn(self, own: Any) -> None:
        """Note that a turn begins: the user spoke, or the context was compacted."""

    def on_uncounted(self, own: Any, call: ObservedCall) -> None:
        """Note a call that is not judged: of an exempt tool, or repeated in its round. Only with `spans_session`."""

    def on_rebuilt(self, own: Any, calls: int, used: Usage) -> None:
        """Note the session's usage after its state was rebuilt from its latest events. Only with `spans_session`.

        `used.at` is the time of its first event.
        """

    def reset(self, own: Any, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting the loop over these calls again from zero."""

    def extend(self, own: Any, rounds: int) -> None:
        """Grant further rounds; only for detectors with `is_run_limit`."""

    def recalled(self, finding: Finding, calls: Sequence[Record]) -> Finding:
        """Return a finding that was kept with its call, with what can be read from the calls up to that one."""
        return finding

    def is_refuted(self, results: str, detail: Mapping[str, Any]) -> bool:
        """Return whether a new result shows that a loop is over, which was found with these results and this detail."""
        return False

    def memory_calls(self, values: Mapping[str, Any]) -> int:
        """Return how many calls a session must remember for these settings."""
        return 0

    def validate(self, values: Mapping[str, Any]) -> None:
        """Check settings that depend on one another; those that are missing are inherited.

        Raises
        ------
        PolicyError
            Naming one setting.
        """

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        return self.limit_setting

    def setting_of(self, limit: int, unit: str) -> int:
        """Return the value of `raised_setting` under which findings have this limit."""
        return limit

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without arguments.

        Parameters
        ----------
        in_seconds
            Whether the window is given in seconds, as agents read it in the systems that the presets come from:
            ``120 s`` instead of ``2 min``.
        """
        return fill(self.message, finding, in_seconds=in_seconds)


class RemovedDetector(BaseDetector):
    """Stands for a detector that is no longer installed and whose incidents are still stored."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # type: ignore[misc]
        self.label = self.headline = kind.replace("_", " ").capitalize()  # type: ignore[misc]


def is_within_repeats(count: float, key: str, run: RunState, policy: PolicySettings, limit: str) -> bool:
    """Return whether so many calls of one key are within the limit of identical calls, which alone decides then.

    The setting `limit`, that of the detector that asks, decides where someone has set it.
    """
    values = policy.values
    is_within = bool(values["repeat_enabled"]) and count < values["max_repeats"] + run.allowances.get(key, 0)
    return is_within and policy.sources[limit].startswith("preset:")


def calls_in_window(finding: Finding) -> int:
    """Return how many calls were looked at, the one in hand included; 0 where calls do not bound the window."""
    if not finding.window_calls:
        return 0
    return finding.window_calls + (finding.detail.get("scope") != "scattered")


def fill(template: str, finding: Finding, *, in_seconds: bool = False) -> str:
    """Return a message template with the finding's figures; unknown placeholders stay."""
    seconds = finding.window_seconds
    time = durations.in_seconds if in_seconds else durations.exact
    span = f" within {time(seconds)}" if seconds else ""
    calls = calls_in_window(finding)
    among = f" in the last {calls} calls" if calls else ""
    return Template(template).safe_substitute(
        placeholders(
            str(finding.detail.get("tool", "")),
            finding.count,
            finding.limit,
            finding.period,
            finding.results,
            finding.detail,
        ),
        span=span,
        among=among,
    )


def placeholders(
    tool: str, count: int, limit: int, period: int, results: str, detail: Mapping[str, Any]
) -> dict[str, str]:
    """Return the values of the placeholders that sentences and messages share."""
    known = {"calls": count, "unit": "rounds", "used": count, "allowed": limit, **detail}
    known |= {"tool": tool, "count": count, "limit": limit, "period": period, "time": durations.span(count)}
    unit = str(known["unit"])
    known["used"] = durations.figure(known["used"], unit)
    known["allowed"] = durations.amount(known["allowed"], unit)
    known["result"] = "error" if results == "errors" else "result"
    known["identical"] = identical(names_only=bool(detail.get(NAMES_ONLY)))
    return {
        name: durations.figure(value, "") if isinstance(value, int | float) else str(value)
        for name, value in known.items()
    }


def identical(*, names_only: bool) -> str:
    """Return the placeholder `$identical`: which arguments the counted calls have."""
    return "any" if names_only else "identical"


def forget_all(own: Mapping[str, object]) -> None:
    """Empty what a detector remembers; type checkers allow no `clear` of a typed dictionary."""
    if isinstance(own, dict):
        own.clear()


def evidence(records: list[Record]) -> tuple[int, ...]:
    """Return the sequence numbers of records, the newest if there are too many."""
    return tuple(record.seq for record in records[-MAX_EVIDENCE:])


def detail(tool: str, /, **more: Unpack[FindingDetail]) -> FindingDetail:
    """Return the details of a finding; False, 0 and empty texts are omitted."""
    return cast("FindingDetail", {"tool": tool, **{name: value for name, value in more.items() if value}})
