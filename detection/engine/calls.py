"""Input and output values of the engine: observations, findings and verdicts.

Every type is a slotted dataclass without behaviour. Observations and findings are frozen. Verdicts and steps are not:
they are created at every step, and freezing them would cost as much as a detector.
"""

# ruff: noqa: D102 - the attributes of the protocols are described in `Call` and `Result`

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypedDict

Decision = Literal["allow", "warn", "block", "hold", "stop"]
Rung = Literal["observe", "warn", "delay", "reuse", "chance", "block", "finish", "ask", "judge", "stop"]
Ending = Literal["finish", "reuse", "delay"]
Arguments = dict[str, Any] | list[Any] | str | None

Overrule = Callable[["Verdict"], Decision | None]
"""A program's own reaction to a detection: the decision that replaces the ladder's, or None to keep it."""

DECISIONS: tuple[Decision, ...] = ("allow", "warn", "block", "hold", "stop")
"""Decisions from the weakest to the strictest."""


class ObservedEvent(Protocol):
    """What `fold.observe` takes: `Call`, `Result`, `Message`, `Usage`, `End`, `CallHeartbeat`, or a stored event.

    An event of the type `message` or `compaction` has a `message`, which is None for instructions of the system.
    """

    @property
    def type(self) -> str: ...


class ObservedCall(Protocol):
    """The part of a call that the fold reads. `Call` implements it, and so do stored events.

    Those have their arguments as JSON text; `identity.structured` returns either as an object.
    """

    @property
    def seq(self) -> int: ...
    @property
    def tool(self) -> str: ...
    @property
    def arguments(self) -> Arguments: ...
    @property
    def cwd(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def call_id(self) -> str: ...
    @property
    def round(self) -> str | None: ...
    @property
    def run(self) -> str | None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cost_usd(self) -> float: ...
    @property
    def agent(self) -> str: ...


class ObservedResult(Protocol):
    """The part of a result that the fold reads."""

    @property
    def call_id(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def arguments(self) -> Arguments: ...
    @property
    def cwd(self) -> str: ...
    @property
    def run(self) -> str | None: ...
    @property
    def content(self) -> str | None: ...
    @property
    def tail(self) -> str: ...
    @property
    def closes(self) -> int | None: ...
    @property
    def is_error(self) -> bool | None: ...


class ObservedUsage(Protocol):
    """The part of a usage that the fold reads."""

    @property
    def at(self) -> float: ...
    @property
    def run(self) -> str | None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cost_usd(self) -> float: ...


class ObservedEnd(Protocol):
    """The part of an end that the fold reads."""

    @property
    def run(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a model issued.

    Parameters
    ----------
    seq : int
        Position in the session, increasing, at least 0.
    tool : str
        Name of the tool as the model wrote it.
    arguments : dict, list, str or None
        The parsed arguments, or the raw text that the model wrote.
    at : float
        Server time in Unix seconds.
    call_id : str
        The client's id of the call. A resent call counts once: within its round or, without `round`, until its result
        comes.
    round : str or None
        Id of the model response, or of the request that the call came with. Identical calls of one response count once.
    run : str or None
        Id of the run within the session.
    tokens : int
        Tokens spent on the response that issued this call.
    cost_usd : float
        Cost of that response in US dollars.
    agent : str
        Name of the agent, where several share the session.
    cwd : str
        The directory in which the call runs, or empty. It belongs to the identity of calls that run in a directory,
        such as those of a shell.
    """

    type: ClassVar[str] = "call"

    seq: int
    tool: str
    arguments: Arguments
    at: float
    call_id: str = ""
    round: str | None = None
    run: str | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    agent: str = ""
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. `content` is text; a JSON result is compact JSON text.

    If the text was truncated, `tail` represents the rest: results that differ only there stay different. Without
    `call_id`, the result belongs to the oldest open call of `tool`, `arguments` and `cwd`, of `tool`, or of all.
    `closes` is the sequence number of its call where the caller knows it, 0 if it belongs to none.
    """

    type: ClassVar[str] = "result"

    call_id: str
    content: str | None
    is_error: bool | None
    at: float
    seq: int = 0
    tail: str = ""
    tool: str = ""
    arguments: Arguments = None
    run: str | None = None
    cwd: str = ""
    closes: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A user message, a user request to continue, an assistant text, or a compaction of the context."""

    type: ClassVar[str] = "message"

    at: float
    kind: Literal["user", "continue", "assistant", "condense"] = "user"
    seq: int = 0
    text: str = ""

    @property
    def message(self) -> Message:
        """Itself; a stored event returns what it says."""
        return self


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost in US dollars of a model response, reported after its calls or without any."""

    type: ClassVar[str] = "usage"

    at: float
    tokens: int = 0
    cost_usd: float = 0.0
    seq: int = 0
    run: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The run ended: `completed`, `failed` or `cancelled`."""

    type: ClassVar[str] = "end"

    at: float
    outcome: str
    seq: int = 0
    run: str | None = None


@dataclass(frozen=True, slots=True)
class CallHeartbeat:
    """A call still runs: the one with the sequence number `closes`."""

    type: ClassVar[str] = "heartbeat"

    at: float
    closes: int


class FindingDetail(TypedDict, total=False):
    """JSON-able details of a finding; what is not so, or not known, is absent.

    Attributes
    ----------
    tool : str
        The tool.
    advisory, notice, final, refusal, family, names_only : bool
        Whether it is warned about at most, for operators only, not to be extended, about refused calls, about
        several sessions, and about calls that were compared by their tools alone.
    scope, unit, own_limit, trouble : str
        What was looked at, what is counted, the limit of the call itself that its error reports, and the trouble of a
        provider.
    call, calls, sessions, repeats : int
        The call in question, and how many calls, sessions or repetitions there are, where `count` is another number.
    used, allowed : float
        Of a limit.
    said, silence, about, agents, block, so_far : str
        Parts of the sentence.
    """

    tool: str
    advisory: bool
    notice: bool
    final: bool
    refusal: bool
    family: bool
    names_only: bool
    scope: str
    unit: str
    own_limit: str
    trouble: str
    call: int
    calls: int
    sessions: int
    repeats: int
    used: float
    allowed: float
    said: str
    silence: str
    about: str
    agents: str
    block: str
    so_far: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector reports about an observation.

    Parameters
    ----------
    kind : str
        Name of the detector.
    count, limit : int
        What was counted, and the count at which the detector fires.
    window_seconds, window_calls : int or None
        The window that was counted over.
    confidence : float
        0 to 1.
    calls_digest : str
        Hex identity of the loop, the same at every call of its cycle.
    call_keys : tuple of str
        Hex keys of the calls in the loop.
    seqs : tuple of int
        Sequence numbers of the evidence, oldest first, at most 50.
    first_seq : int
        The first call of the loop.
    results : str
        `equal`, `alike` (nearly the same), `changing`, `errors`, `empty` or `unknown`.
    period : int
        Calls in one lap; 1 for a repeat.
    pattern : tuple of str
        Tools of one lap of a cycle, in order; empty for other kinds.
    laps : int
        Laps of a cycle so far; 0 for other kinds.
    detail : FindingDetail
        What else the detector reports.
    """

    kind: str
    count: int
    limit: int
    window_seconds: int | None = None
    window_calls: int | None = None
    confidence: float = 1.0
    calls_digest: str = ""
    call_keys: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    first_seq: int = 0
    results: str = "unknown"
    period: int = 1
    detail: FindingDetail = field(default_factory=FindingDetail)
    pattern: tuple[str, ...] = ()
    laps: int = 0


@dataclass(slots=True)
class Meter:
    """How close a session is to a detection, such as 3 of 4."""

    kind: str
    count: int
    limit: int


@dataclass(slots=True)
class Verdict:
    """The verdict on a call.

    `finding` is the decisive one. `findings` are all of this step, the decisive one first. They include findings that
    the ladder does not react to yet; if there are only such, `rung` is None and `decision` is `allow`.
    `detection_number` counts the reactions to this loop or, with `escalation_scope = session`, in the run. Advice
    counts as 0: it does not climb the ladder.

    `ending` says what a blocked call asks of the agent beyond another way: to finish, to use the known answer again, or
    to pause. A pause has `pause_seconds`; an answer that may be used again is that of the call `reuses`, by its
    sequence number.
    """

    decision: Decision = "allow"
    rung: Rung | None = None
    finding: Finding | None = None
    findings: tuple[Finding, ...] = ()
    message: str = ""
    detection_number: int = 0
    meter: Meter | None = None
    ending: Ending | None = None
    pause_seconds: int = 0
    reuses: int | None = None


@dataclass(slots=True)
class StripCell:
    """One cell of the loop strip. Cells with the same `key` have the same colour."""

    seq: int
    tool: str
    key: str
    decision: Decision
    kind: str | None
    result: Literal["pending", "new", "same", "error", "empty"]


@dataclass(slots=True)
class Step:
    """The result of one observation, with everything that a service stores.

    Parameters
    ----------
    verdict : Verdict
        The verdict.
    call_key : str or None
        Hex identity of the call.
    result_digest, error_digest : str or None
        Hex fingerprints of its result.
    result_is_new : bool or None
        Whether the result was new in this run; None while pending.
    duplicate : bool
        Whether the call was resent, or repeated within its round. It gets the same verdict and does not count.
    cell : StripCell or None
        The cell of the loop strip.
    closes : int or None
        Sequence number of the call that a result belongs to.
    faults : tuple of (str, str)
        Detectors that raised, as kind and exception type.
    """

    verdict: Verdict = field(default_factory=Verdict)
    call_key: str | None = None
    result_digest: str | None = None
    error_digest: str | None = None
    result_is_new: bool | None = None
    duplicate: bool = False
    cell: StripCell | None = None
    closes: int | None = None
    faults: tuple[tuple[str, str], ...] = ()
