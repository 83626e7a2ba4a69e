"""The navigator of a session's page: the whole run as a map, a window of calls, loops to jump to, and a search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.http import QueryDict

from detection.console import formatting, permalinks
from detection.console.access import ProjectRequest
from detection.console.loops import incident_text
from detection.console.sessions import session_map
from detection.console.sessions.session_map import Area, MappedLoop, SessionMap
from detection.console.sessions.session_window import (
    MIN_CALLS,
    Move,
    Window,
    at_loop,
    moves,
    number,
    rows_of,
    window_of,
)
from detection.engine.detectors import detector_for
from detection.engine.durations import amount
from detection.models import Session
from detection.selectors.session_runs import (
    CallRun,
    Hits,
    RunIncident,
    incidents_of_run,
    read_run,
    search_calls,
)
from detection.selectors.strips import Cell, hues

MAX_INCIDENTS = 200
MAX_DETAILED_CALLS = 200
"""A window with more calls is drawn as a separate map."""
MAX_AREAS = 48
MAX_SEARCHED_TEXT = 200
ANCHOR = "#run"


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A position in a series, such as loops or hits, with links to the previous and next one."""

    place: int
    count: int
    previous: str
    next: str


@dataclass
class Navigator:
    """What the page shows of a run; parts are computed when a template uses them."""

    query: QueryDict
    project: str
    run: CallRun
    window: Window
    incidents: list[RunIncident]
    chosen_seq: int
    text: str
    hits: Hits | None
    colours: dict[str, int]

    @cached_property
    def loops(self) -> list[RunIncident]:
        """The incidents that are loops. Spent budgets are excluded, because they concern every later call."""
        return [one for one in self.incidents if not detector_for(one.kind).is_run_limit]

    def _span(self, loop: RunIncident) -> tuple[int, int]:
        """Return the first and last call of a loop; for one without calls, the call before it."""
        if not detector_for(loop.kind).judges_texts or not self.run.seqs:
            return loop.first_seq, loop.last_seq
        before = self.run.seqs[max(0, bisect_left(self.run.seqs, loop.first_seq) - 1)]
        return before, before

    @cached_property
    def budgets(self) -> list[tuple[RunIncident, str, str, str]]:
        """The incidents of limits, newest first, with their titles, units and addresses."""
        spent = [one for one in reversed(self.incidents) if detector_for(one.kind).is_run_limit]
        return [
            (
                one,
                incident_text.title(one),
                incident_text.unit_of(one.kind, one.unit),
                permalinks.run_url(self.project, one.loop, one.public_id),
            )
            for one in spent
        ]

    @cached_property
    def unmarked(self) -> frozenset[int]:
        """Numbers of calls that only a spent budget marks; its first call and repeated calls in loops keep theirs."""
        seqs, over = self.run.seqs, set[int]()
        for incident, *_ in self.budgets:
            over.update(seqs[bisect_right(seqs, incident.first_seq) : bisect_right(seqs, incident.last_seq)])
        for loop in self.loops if over else ():
            part = slice(bisect_left(seqs, loop.first_seq), bisect_right(seqs, loop.last_seq))
            over.difference_update(cell.seq for cell in self.run.cells[part] if cell.key in self.colours)
        return frozenset(over)

    @property
    def is_detailed(self) -> bool:
        """Whether the window is small enough for one cell per call."""
        return self.window.size <= MAX_DETAILED_CALLS

    @property
    def first_number(self) -> int:
        """Number of the first call of the window."""
        return self.run.cells[self.window.first].number if self.run.cells else 0

    @property
    def last_number(self) -> int:
        """Number of the last call of the window."""
        return self.run.cells[self.window.last - 1].number if self.run.cells else 0

    @property
    def last_start(self) -> int:
        """Number of the first call of the newest window."""
        return self.run.cells[self.window.total - self.window.size].number if self.run.cells else 0

    @property
    def label(self) -> str:
        """The run in words."""
        count = len(self.run.cells)
        return (
            f"The whole run: {count:,} call{'' if count == 1 else 's'}, loops: {len(self._loop_addresses):,}"
        )

    @property
    def last_of_run(self) -> int:
        """Number of the newest call, also while the session waits to be evaluated."""
        return self.run.cells[-1].number if self.run.cells else 0

    @property
    def first_of_run(self) -> int:
        """Number of the first call of the map."""
        return self.run.cells[0].number if self.run.cells else 0

    def rows(self, most: int) -> Sequence[Cell]:
        """Return the calls of a view with at most this many rows."""
        first, last = rows_of(self.window, self.run, self.chosen_seq, most)
        return self.run.cells[first:last]

    def following(self, rows: Sequence[Cell]) -> str:
        """Return the address of the calls of the window after these; empty if there are none."""
        if not rows or rows[-1].number >= self.last_number:
            return ""
        return self._to(Move(rows[-1].number + 1, len(rows)))

    @cached_property
    def calls_query(self) -> str:
        """The query string to which the number of a selected call is appended."""
        values = self.query.copy()
        values.pop("call", None)
        values.pop("before", None)
        if not self.window.follows:
            values["from"] = str(self.first_number)
        return "?" + "".join(f"{one}&" for one in [values.urlencode()] if one) + "call="

    def _to(self, move: Move | None, call: int | None = None) -> str:
        if move is None:
            return ""
        start = "" if move.start is None else f"from={move.start}&"
        chosen = f"&call={call}" if call else ""
        return f"?{self._kept_query}{start}calls={move.calls}{chosen}{ANCHOR}"

    @cached_property
    def _kept_query(self) -> str:
        """The part of the query string that moving does not change: a long run has hundreds of addresses."""
        values = self.query.copy()
        for name in ("from", "calls", "call", "before"):
            values.pop(name, None)
        return f"{values.urlencode()}&" if values else ""

    @cached_property
    def moves(self) -> dict[str, str]:
        """Addresses of the buttons; empty for disabled ones."""
        return {name: self._to(move) for name, move in moves(self.window, self.run).items()}

    @property
    def newest(self) -> str:
        """Address of the newest calls."""
        return "" if self.window.follows else self._to(Move(None, self.window.size))

    def _step(self, seqs: Sequence[int], address: dict[int, str]) -> Neighbours | None:
        if not seqs:
            return None
        first = self.run.cells[self.window.first].seq
        if self.chosen_seq:
            before, after = bisect_left(seqs, self.chosen_seq), bisect_right(seqs, self.chosen_seq)
        else:
            after = bisect_left(seqs, first)
            before = len(seqs) if self.window.follows else after
        return Neighbours(
            after if self.chosen_seq in seqs else 0,
            len(seqs),
            address[seqs[before - 1]] if before else "",
            address[seqs[after]] if after < len(seqs) else "",
        )

    @cached_property
    def _loop_addresses(self) -> dict[int, str]:
        """Address of each loop by its first call; loops with the same first call share the address of the widest."""
        known = {self.run.cells[0].seq} if self.run.cells else set()
        found: dict[int, int] = {}
        for loop in self.loops:
            first, last = self._span(loop)
            if known and last >= self.run.cells[0].seq:
                found[first] = max(last, found.get(first, 0))
        return {first: self._to(at_loop(self.run, first, last), first) for first, last in found.items()}

    @cached_property
    def loop_step(self) -> Neighbours | None:
        """Previous and next loop."""
        return self._step(sorted(self._loop_addresses), self._loop_addresses)

    @cached_property
    def hit_step(self) -> Neighbours | None:
        """Previous and next hit of the search."""
        window, seqs = self.window, self.run.seqs
        hits = [seq for seq in (self.hits.seqs if self.hits else ()) if seqs and seqs[0] <= seq]
        addresses = {}
        for seq in hits:
            place = bisect_left(seqs, seq)
            first = min(max(0, place - window.size // 2), window.total - window.size)
            addresses[seq] = self._to(Move(self.run.cells[first].number, window.size), seq)
        return self._step(hits, addresses)

    @property
    def searched_up_to(self) -> int:
        """Number of the last call that an unfinished search has read."""
        place = bisect_right(self.run.seqs, self.hits.searched_up_to) if self.hits else 0
        return self.run.cells[place - 1].number if place else 0

    def _map_loops(self) -> list[MappedLoop]:
        return [
            MappedLoop(
                *self._span(loop),
                f"{formatting.visible(incident_text.title(loop))}, {_counted(loop)}, "
                f"calls {loop.first_call_number:,} to {loop.last_call_number:,}",
                self._loop_addresses.get(self._span(loop)[0], ""),
            )
            for loop in self.loops
        ]

    def _draw(self, first: int, last: int) -> SessionMap:
        hits = self.hits.seqs if self.hits else ()
        return session_map.lay_out(
            self.run,
            first,
            last,
            colours=self.colours,
            loops=self._map_loops(),
            hits=hits,
            unmarked=self.unmarked,
        )

    @cached_property
    def whole(self) -> SessionMap:
        """The map of the whole run."""
        return self._draw(0, self.window.total)

    @cached_property
    def detail(self) -> SessionMap:
        """The map of a window that is too large for cells."""
        return self._draw(self.window.first, self.window.last)

    @property
    def view(self) -> tuple[str, str] | None:
        """Left edge and width of the window on the map; None if it shows everything."""
        if self.window.size == self.window.total:
            return None
        return session_map.percents(self.window.first, self.window.last, self.window.total)

    @cached_property
    def areas(self) -> list[Area]:
        """Clickable parts of the whole map, without scripts: each shows as many calls as the window."""
        return self._areas(0, self.window.total, self.window.size)

    @cached_property
    def detail_areas(self) -> list[Area]:
        """Clickable parts of the window's map: each shows its own calls."""
        return self._areas(self.window.first, self.window.last, 0)

    def _areas(self, first: int, last: int, size: int) -> list[Area]:
        count, cells = last - first, self.run.cells
        if not count or size == count:
            return []
        areas = []
        parts = min(MAX_AREAS, max(1, count // MIN_CALLS))
        for part in range(parts):
            low, high = first + part * count // parts, first + (part + 1) * count // parts
            shown = size or high - low
            start = min(max(0, (low + high - shown) // 2), self.window.total - shown)
            x, width = session_map.percents(low - first, high - first, count)
            areas.append(
                Area(
                    x,
                    width,
                    self._to(Move(cells[start].number, shown)),
                    f"Calls {cells[low].number:,} to {cells[high - 1].number:,}",
                )
            )
        return areas


def _counted(loop: RunIncident) -> str:
    return amount(loop.count, incident_text.unit_of(loop.kind, loop.unit))


def read(request: ProjectRequest, session: Session) -> Navigator:
    """Read what the address selects: the run, its incidents and, with `q`, the search hits."""
    run = read_run(session)
    text = request.GET.get("q", "").strip()[:MAX_SEARCHED_TEXT]
    hits = None
    if text and run.cells:
        hits = search_calls(session, text, after_seq=number(request.GET.get("after"), 0))
    chosen = number(request.GET.get("call"), 0)
    if hits and hits.seqs and not chosen and "from" not in request.GET:
        chosen = hits.seqs[0]
    return Navigator(
        request.GET,
        request.project.slug,
        run,
        window_of(request.GET, run, chosen),
        incidents_of_run(session, MAX_INCIDENTS),
        chosen,
        text,
        hits,
        hues(cell.key for cell in run.cells),
    )
