"""The trace of a session: its calls in order, with what repeats and what does not folded, and when each ran."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Final, Literal

from detection.engine import durations
from detection.models import call_flags
from detection.selectors.session_runs import RUN_KEY_CHARACTERS
from detection.selectors.sessions import CallRow, CompactionRow, MessageRow
from detection.selectors.strips import HUES

FOLDED_CALLS: Final = 3
"""So many identical calls in a row are one line."""
STRETCH_CALLS: Final = 6
"""So many calls in a row of which none is made twice are one line: fewer are read sooner than opened."""
OUTCOMES: Final = {"warn": "warned", "block": "blocked", "hold": "held", "stop": "stopped"}
NARROWEST_PERCENT: Final = 0.4
"""Of a bar of the waterfall, so that it is seen."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A call as a line of the trace.

    Attributes
    ----------
    swatch
        CSS classes of the mark: the hue of a repeated call, pale with a new result.
    outcome
        What became of it in a word or two; empty for a call without anything to say.
    is_warned
        Whether the outcome is a reaction.
    x, width
        Its bar in percent of the time that the trace covers.
    """

    call: CallRow
    swatch: str
    outcome: str
    is_warned: bool
    took: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class TraceFold:
    """Several calls as one line, which opens.

    Attributes
    ----------
    words
        What they have in common.
    is_open
        Whether it is open at first: it has the selected call, or repeats.
    body
        The calls, and between them what the model said.
    """

    words: str
    count: int
    note: str
    swatch: str
    is_open: bool
    took: str
    cost_usd: Decimal
    x: str
    width: str
    calls: tuple[TraceCall, ...]
    body: tuple[TraceCall | TraceNote, ...]


@dataclass(frozen=True, slots=True)
class TraceNote:
    """What is between the calls: a message of the user, what the model said, or compactions."""

    seq: int
    text: str
    by: Literal["user", "model", ""]


TraceLine = TraceCall | TraceFold | TraceNote


def lay_out(
    calls: Sequence[CallRow],
    colours: Mapping[str, int],
    notes: Sequence[MessageRow | CompactionRow],
    unmarked: Collection[int],
    chosen_seq: int,
) -> list[TraceLine]:
    """Lay out the calls of a window, oldest first.

    Parameters
    ----------
    colours
        The hue of each repeated call of the run, by the beginning of its key.
    unmarked
        Calls that only a spent budget marks.
    chosen_seq
        The selected call, whose fold is open; 0 for none.
    """
    written = _notes(notes)
    if not calls:
        return [*written]
    between = [note for note in written if note.by != "model"]  # what the model says splits no repetition
    start = calls[0].received_at.timestamp()
    end = max((one.result or one).received_at.timestamp() for one in calls)
    texts = [note for note in written if note.by == "model"]
    layout = _Layout(colours, unmarked, chosen_seq, start, max(end - start, 0.001), texts)
    lines: list[TraceLine] = []
    waiting = [*between]
    for _, group in groupby(calls, lambda call: sum(note.seq < call.seq for note in between)):
        part = [*group]
        while waiting and waiting[0].seq < part[0].seq:
            lines.extend(layout.said_before(waiting[0].seq))
            lines.append(waiting.pop(0))
        lines.extend(layout.lines(part))
    return [*lines, *sorted([*texts, *waiting], key=lambda note: note.seq)]


def _notes(rows: Sequence[MessageRow | CompactionRow]) -> list[TraceNote]:
    """Return the notes; compactions in a row are one."""
    notes: list[TraceNote] = []
    for is_message, group in groupby(rows, lambda row: isinstance(row, MessageRow)):
        part = [*group]
        if is_message:
            notes += [
                TraceNote(row.seq, row.text, "model" if row.is_of_model else "user")
                for row in part
                if isinstance(row, MessageRow)
            ]
        else:
            times = f" {len(part):,} times" if len(part) > 1 else ""
            notes.append(TraceNote(part[0].seq, f"Context compacted{times}", ""))
    return notes


@dataclass(frozen=True, slots=True)
class _Layout:
    colours: Mapping[str, int]
    unmarked: Collection[int]
    chosen_seq: int
    start: float
    seconds: float
    texts: list[TraceNote]
    """What the model said and no line has yet; lines take theirs away."""

    def said_before(self, seq: int) -> Iterator[TraceNote]:
        """Yield what the model said before an event, once."""
        while self.texts and self.texts[0].seq < seq:
            yield self.texts.pop(0)

    def lines(self, calls: Sequence[CallRow]) -> Iterator[TraceLine]:
        """Yield the lines of calls between two notes."""
        for key, group in groupby(calls, self._kind):
            part = [*group]
            yield from self.said_before(part[0].seq)
            if key is None and len(part) >= STRETCH_CALLS:
                yield self._fold(part, "", len(part), "nothing repeated")
            elif key and len(part) >= FOLDED_CALLS:
                yield self._fold(part, part[0].tool, len(part), _results(part))
            else:
                yield from self._body(part)

    def _body(self, calls: Sequence[CallRow]) -> Iterator[TraceCall | TraceNote]:
        for call in calls:
            yield from self.said_before(call.seq)
            yield self._line(call)

    def _kind(self, call: CallRow) -> str | None:
        """Return the key of a repeated call, None for a call that is made once and ran, empty for any other."""
        key = call.call_key[:RUN_KEY_CHARACTERS]
        if key in self.colours:
            return key
        return None if call.decision == "allow" else ""

    def _line(self, call: CallRow) -> TraceCall:
        took = ""
        if call.result is not None:
            took = durations.precise((call.result.received_at - call.received_at).total_seconds())
        x, width = self._bar(call, call)
        is_warned = call.decision != "allow" and call.seq not in self.unmarked
        return TraceCall(call, self._swatch(call), self._outcome(call), is_warned, took, x, width)

    def _fold(self, calls: Sequence[CallRow], tool: str, count: int, note: str) -> TraceFold:
        first, last = calls[0], calls[-1]
        x, width = self._bar(first, last)
        end = (last.result or last).received_at
        is_chosen = any(call.seq == self.chosen_seq for call in calls)
        return TraceFold(
            tool or f"Calls {first.call_number:,} to {last.call_number:,}",
            count if tool else 0,
            note,
            self._swatch(last) if tool else "",
            bool(tool) or is_chosen,
            durations.span((end - first.received_at).total_seconds()),
            sum((call.cost_usd for call in calls), Decimal()),
            x,
            width,
            tuple(map(self._line, calls)),
            tuple(self._body(calls)),
        )

    def _bar(self, first: CallRow, last: CallRow) -> tuple[str, str]:
        low = (first.received_at.timestamp() - self.start) / self.seconds * 100
        high = ((last.result or last).received_at.timestamp() - self.start) / self.seconds * 100
        width = max(NARROWEST_PERCENT, high - low)
        return f"{min(low, 100 - width):.2f}%", f"{width:.2f}%"

    def _swatch(self, call: CallRow) -> str:
        key, hollow = call.call_key[:RUN_KEY_CHARACTERS], " no" if call.has_not_run else ""
        if key not in self.colours:
            return f"swatch{hollow}"
        is_new = call_flags.NEW in call.flags
        return f"swatch k h{self.colours[key] % HUES}{' p' if is_new else ''}{hollow}"

    def _outcome(self, call: CallRow) -> str:
        if call.decision != "allow" and call.seq not in self.unmarked:
            return call.decision_words if call_flags.ran_nevertheless(call.flags) else OUTCOMES[call.decision]
        if call.result is None:
            return "" if call.has_not_run else "no result yet"
        if call.result.is_error:
            return "error"
        if call.call_key[:RUN_KEY_CHARACTERS] not in self.colours:
            return ""
        return "new result" if call_flags.NEW in call.flags else "same"


def _results(calls: Sequence[CallRow]) -> str:
    """Return what identical calls brought: “same result 10 times”."""
    ran = [call for call in calls if call.result is not None]
    same = sum(call_flags.NEW not in call.flags for call in ran)
    errors = sum(bool(call.result and call.result.is_error) for call in ran)
    blocked = sum(call.has_not_run for call in calls)
    parts = [f"{errors:,} errors"] if errors else [f"same result {same:,} times"] if same > 1 else []
    parts += [f"{blocked:,} did not run"] if blocked else []
    return ", ".join(parts) or "each with a new result"
