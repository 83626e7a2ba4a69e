"""State of a session between two observations, of bounded size regardless of the session's length.

A `State` holds the session, a `RunState` everything that is counted together (one run, or the whole session), and a
`Record` one call. Detectors read run states and keep what they remember in `RunState.detectors`. `snapshot` turns a
state into bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Self

from detection.engine.bounded import HASH_BYTES, MAX_RESULTS, RecentHashes, drop_oldest, hash_of
from detection.engine.calls import Decision, Ending, FindingDetail, Rung
from detection.engine.family import FamilyState

# The run in hand and two before it, whose results may be late; a judgement for the size of the state.
MAX_RUNS = 3
EARLIER_RUN = "\0"
"""The name of the run before the current one, where no client names runs; no client's name contains it."""
# Calls that evidence and scattered repeats look back at, where no window is longer.
MIN_RECORDS = 32
# The longest window that a setting allows has 60 calls.
MAX_RECORDS = 64
# A client that runs what was blocked is rare; a judgement for the size of the state.
MAX_BLOCKED_RESULTS = 16
BLOCKED = "blocked"
"""The place in `RunState.detectors` of results of calls that were to be blocked; no detector has this name."""
# 1 KiB of a state of 32 KiB: an id that is sent again after 256 other open calls counts twice; a judgement.
MAX_CALL_IDS = 256
# Open calls that do not count, such as those of exempt tools; a judgement for the size of the state.
MAX_UNCOUNTED = 16
# Different calls that are counted over a run, as many as results; a judgement for the size of the state.
MAX_TOTALS = 192
# Loops with a place in a ladder, for all detectors; a judgement for the size of the state.
MAX_LOOPS = 16
# Errors that report a limit of the call itself, at a time; a judgement, because a loop has one or two.
MAX_LIMITS = 4
# Tools that people exempt by hand in one session; a judgement.
MAX_EXEMPT = 32
# Names of sessions and agents are shorter; a longer one keeps a hash, so that it stays one name.
MAX_NAME_CHARACTERS = 96

PENDING, OK, ERROR, EMPTY = "p", "o", "e", "m"
"""Status of a call: no result yet, or what the result was."""

BLOCKING = frozenset(("block", "hold", "stop"))
"""Decisions that keep a call from running."""

# Further back than any call: no warning is that close.
_NO_WARNING = (-(10**9), "")


class Kept:
    """Base of the dataclasses of a state that are stored as their fields, in order, up to the last that is set.

    A later version may have added fields at the end, which this one omits.
    """

    __slots__ = ()

    @classmethod
    def of_row(cls, row: list[Any]) -> Self:
        """Return the object that was stored as this row."""
        return cls(*row[: len(cls.__slots__)])


@dataclass(slots=True)
class KeptReaction(Kept):
    """The reaction to a call, with what its message says of the finding, for when the call is sent again.

    Attributes
    ----------
    decision, rung, number : str and int
        Of the verdict; `number` is its `detection_number`.
    is_guided : bool
        Whether the agent had a chance to change its approach before.
    kind, count, limit, window_seconds, window_calls, results, period, detail
        Of the finding; `detail` without the tool.
    calls_digest : str
        Of the loop that the call is held for; empty if it is not held.
    ending, pause_seconds, reuses
        Of the verdict.
    """

    decision: Decision
    rung: Rung
    number: int
    is_guided: bool
    kind: str
    count: int
    limit: int
    window_seconds: int | None
    window_calls: int | None
    results: str
    period: int
    detail: FindingDetail
    calls_digest: str = ""
    ending: Ending | None = None
    pause_seconds: int = 0
    reuses: int | None = None


@dataclass(slots=True)
class Record:
    """One counted call.

    Attributes
    ----------
    seq : int
        Position in the session.
    ordinal : int
        Number of the call within its run state, from 1.
    tool, key : str
        Name of the tool and key of the call.
    at : float
        Server time in Unix seconds.
    round, call : int
        Hashes of the ids of round and call, 0 without one; see `hash_of`.
    weight : float
        1, or less for an identical call after a long pause.
    status : str
        `PENDING`, `OK`, `ERROR` or `EMPTY`.
    result : str
        Short fingerprint of the result.
    is_new : bool or None
        Whether the result was new in this run; None while pending.
    effect : str
        What the call intends; see `writes.Effect`.
    is_obsolete : bool
        Whether the call no longer counts as evidence.
    sketch : str
        Word sketch of the arguments.
    place : int
        Hash of the directory in which a command ran, 0 if it is not known.
    nested : str
        Hashed words of texts that lie deeper in the arguments, until the result comes; see `results.echo`.
    window : list of int or None
        The part of a file that the call reads, until its result comes; see `windows`.
    waits : bool
        Whether the result says that what the call looked at is not there yet.
    reaction : KeptReaction or None
        The reaction to the call; None if it was allowed without one.
    marks : int
        Of a write with marks of its own: a hash that differs with them; see `fresh_marks`.
    """

    seq: int
    ordinal: int
    tool: str
    key: str
    at: float
    round: int
    call: int
    weight: float = 1.0
    status: str = PENDING
    result: str = ""
    is_new: bool | None = None
    effect: str = ""
    is_obsolete: bool = False
    sketch: str = ""
    place: int = 0
    nested: str = ""
    window: list[int] | None = None
    waits: bool = False
    reaction: KeptReaction | None = None
    marks: int = 0

    @property
    def decision(self) -> Decision:
        """The verdict on the call."""
        return self.reaction.decision if self.reaction is not None else "allow"


@dataclass(slots=True)
class LadderProgress:
    """How far a loop has climbed its escalation ladder.

    Attributes
    ----------
    kind : str
        The detector.
    keys : tuple of str
        Keys of its calls.
    level : int
        Reactions so far.
    ordinal, count : int
        Call and count of the latest reaction.
    rung, before : str
        The latest reaction, and the one of the step before it.
    round : int
        Hash of the round of the latest reaction, 0 without one.
    reset : str
        What the answer to a held call resets: `loop`, `all` or `none`; see `reset_after_detection`.
    delays : int
        How many pauses the agent was given.
    pause_ends : float
        Server time in Unix seconds at which the latest of them ends; 0 after a call that has kept it.
    """

    kind: str
    keys: tuple[str, ...]
    level: int = 0
    ordinal: int = 0
    count: int = 0
    rung: str = ""
    reset: str = "none"
    delays: int = 0
    pause_ends: float = 0.0
    before: str = ""
    round: int = 0


@dataclass(slots=True)
class RunState:
    """Everything that is counted together: one run, or a whole session.

    Attributes
    ----------
    records : list of Record
        The latest calls, oldest first.
    ordinal, results, new_results, detections : int
        Numbers of calls, results, new results and detections so far.
    epoch : int
        Number of the call after which something was changed last or the user spoke; 0 before that.
    loops : dict
        The latest loops by identity.
    allowances : dict
        Further calls that an operator granted, by call key or kind.
    seen : RecentHashes
        Fingerprints of results.
    detectors : dict
        What each detector remembers, by kind.
    warned : tuple of int and str
        Call number and loop of the latest warning.
    round : tuple of three int
        Hash of the latest round, how many further requests have joined it, and the hash of the latest request.
    limits : dict
        Names of the limits of calls that errors have reported, by fingerprint of the error; the latest ones.
    family : FamilyState or None
        The family of the session, during one step; stored by itself.
    """

    records: list[Record] = field(default_factory=list)
    ordinal: int = 0
    results: int = 0
    new_results: int = 0
    detections: int = 0
    epoch: int = 0
    loops: dict[str, LadderProgress] = field(default_factory=dict)
    allowances: dict[str, int] = field(default_factory=dict)
    seen: RecentHashes = field(default_factory=RecentHashes)
    detectors: dict[str, Any] = field(default_factory=dict)
    warned: tuple[int, str] = _NO_WARNING
    round: tuple[int, int, int] = (0, 0, 0)
    limits: dict[str, str] = field(default_factory=dict)
    family: FamilyState | None = field(default=None, compare=False, repr=False)

    def recent(self, key: str, calls: int) -> Record | None:
        """Return the latest record of this key among the last `calls` calls before the current one."""
        for record in self.records[-2 : -2 - calls : -1]:
            if record.key == key:
                return record
        return None

    def has_earlier(self, record: Record) -> bool:
        """Return whether a remembered call before this one was identical."""
        key = record.key
        return bool([one for one in self.records[-9:] if one.key == key and one is not record])

    def is_new(self, fingerprint: str) -> bool:
        """Return whether a fingerprint is new, and remember it."""
        value = bytes.fromhex(fingerprint[: 2 * HASH_BYTES])
        if self.seen.add_new(value, MAX_RESULTS):
            return True
        self.seen.renew(self.seen.find(value))
        return False

    def has_seen(self, fingerprint: str) -> bool:
        """Return whether a fingerprint is remembered."""
        return self.seen.find(bytes.fromhex(fingerprint[: 2 * HASH_BYTES])) >= 0

    def is_new_of_blocked(self, fingerprint: str) -> bool:
        """Return whether a result of a call that was to be blocked is new, and remember it apart from those that count.

        Most are messages about the block, each with another number.
        """
        if self.has_seen(fingerprint):
            return False
        own = self.detectors.setdefault(BLOCKED, {})
        known = RecentHashes(bytes.fromhex(own.get("results", "")))
        is_new = known.add_new(bytes.fromhex(fingerprint[: 2 * HASH_BYTES]), MAX_BLOCKED_RESULTS)
        own["results"] = known.packed.hex()
        return is_new

    def note_limit(self, result: str, limit: str) -> None:
        """Remember the limit of the call itself that an error reports; empty for any other error."""
        if limit:
            self.limits.pop(result, None)
            self.limits[result] = limit
            drop_oldest(self.limits, MAX_LIMITS)

    def is_first_in_epoch(self, record: Record, *, same_call: bool) -> bool:
        """Return whether something was changed, or the user spoke, since this result was seen the last time.

        With `same_call`, since this call had this result. False if that is longer ago than calls are remembered.
        """
        if not self.epoch:
            return False
        for other in reversed(self.records):
            if other.ordinal <= self.epoch:
                return True
            if (
                other.result == record.result
                and other is not record
                and (not same_call or other.key == record.key)
            ):
                return False
        return False

    def user_spoke(self) -> None:
        """Start over after a user message; detectors keep what still counts, such as a series of errors."""
        self.epoch = self.ordinal
        for record in self.records:
            record.is_obsolete = True

    @property
    def has_open_calls(self) -> bool:
        """Whether calls wait for their results or for a decision."""
        return any(
            record.status == PENDING and record.decision not in ("block", "stop") for record in self.records
        )

    def reset(self) -> None:
        """Forget everything except the number of calls, granted calls and fingerprints."""
        self.records.clear()
        self.detections = 0
        self.loops.clear()
        self.detectors.clear()
        self.warned = _NO_WARNING

    def discard(self, keys: Collection[str]) -> None:
        """Stop counting earlier calls of these keys as evidence."""
        for record in self.records:
            if record.key in keys:
                record.is_obsolete = True


@dataclass(slots=True)
class State:
    """One session.

    Attributes
    ----------
    runs : dict of str to RunState
        By id of the run, the least recently used first. The empty id is that of the current run where the client names
        none, and of the session where it is counted as a whole.
    whole : RunState
        What detectors with `spans_session` count over all runs, and how far their loops have escalated. It has no
        records.
    round_calls, open_calls : RecentHashes
        Hashes of the latest call ids: with their rounds, and of calls without a named round until their results come.
    uncounted : list of list
        Calls without a record that wait for their results, oldest first: sequence number, hash of the id, tool and key.
    exempt : list of str
        Tools that an operator exempted for this session.
    """

    runs: dict[str, RunState] = field(default_factory=dict)
    whole: RunState = field(default_factory=RunState)
    round_calls: RecentHashes = field(default_factory=RecentHashes)
    open_calls: RecentHashes = field(default_factory=RecentHashes)
    uncounted: list[list[Any]] = field(default_factory=list)
    exempt: list[str] = field(default_factory=list)

    family: FamilyState | None = field(default=None, compare=False, repr=False)

    def run(self, name: str) -> RunState:
        """Return the state of a run. A new one replaces the least recently used above the limit."""
        if len(self.runs) == 1 and name in self.runs:
            return self.runs[name]
        run = self.runs.pop(name, None) or RunState()
        self.runs[name] = run
        if len(self.runs) > MAX_RUNS:
            del self.runs[next(iter(self.runs))]
        return run

    def begin_run(self) -> None:
        """Begin a run of a client that names none. The one before it is kept only while calls of it are open."""
        run = self.runs.pop("", None)
        if run is None:
            return
        self.runs.pop(EARLIER_RUN, None)
        if run.has_open_calls:
            self.runs[EARLIER_RUN] = run

    def end_run(self, name: str) -> None:
        """Forget a run."""
        self.runs.pop(name, None)
        if not name:
            self.runs.pop(EARLIER_RUN, None)

    @property
    def counted(self) -> tuple[RunState, ...]:
        """Everything that loops are counted in: the runs, and the session as a whole."""
        return *self.runs.values(), self.whole

    def leave_family(self) -> None:
        """Forget the family of the session, which is known only during a step."""
        self.family = None
        for run in self.counted:
            run.family = None

    def add_uncounted(self, seq: int, call: int, tool: str, key: str) -> None:
        """Remember a call without a record until its result comes."""
        self.uncounted.append([seq, call, tool, key])
        del self.uncounted[:-MAX_UNCOUNTED]


def bounded_name(text: str) -> str:
    """Return the name of a tool or run as stored: valid, bounded text. A long one ends in a hash of the whole."""
    if len(text) <= MAX_NAME_CHARACTERS and text.isascii():
        return text
    valid = text[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()
    return valid if len(text) <= MAX_NAME_CHARACTERS else f"{valid[:-9]}~{hash_of(text):08x}"
