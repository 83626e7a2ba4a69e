"""Quality of detection on labelled runs: recall, false alarms and delay, per source and per detector.

Only runs that a person has inspected count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from detection.engine.memory import BLOCKING
from detection.measuring.traces import Event, Judged, SessionName, name_of

BIASES = (
    "Looping runs were found by searching for repeated calls: recall is too high.",
    "Healthy runs contain more hard cases than usual: false alarms are too many.",
    "Results are those of the original run: a warning cannot change what the model does next.",
    "Loops of one source may be short and by old models: compare recall with and without it.",
)


@dataclass(frozen=True, slots=True)
class Label:
    """A person's label of one run."""

    loop: bool
    start_seq: int | None
    end_seq: int | None


def labels(rows: Iterable[Event]) -> dict[SessionName, Label]:
    """Return the labels of runs that a person inspected and decided."""
    return {
        name_of(row): Label(row["loop"], row.get("loop_start_seq"), row.get("loop_end_seq"))
        for row in rows
        if row.get("label_origin") == "inspected" and isinstance(row.get("loop"), bool)
    }


@dataclass(slots=True)
class Tally:
    """Counts over a set of runs."""

    loops: int = 0
    caught: int = 0
    healthy: int = 0
    alarmed: int = 0
    blocked: int = 0
    calls_saved: int = 0
    delays: list[int] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """Return the figures by their published names."""
        return {
            "loops": self.loops,
            "caught": self.caught,
            "healthy": self.healthy,
            "alarmed": self.alarmed,
            "blocked": self.blocked,
            "median_delay_calls": median(self.delays) if self.delays else None,
            "calls_saved": self.calls_saved,
        }


@dataclass(slots=True)
class Quality:
    """The measurement of all runs."""

    total: Tally = field(default_factory=Tally)
    by_source: dict[str, Tally] = field(default_factory=dict)
    kinds: Mapping[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in ("caught", "alarmed", "blocked")}
    )
    missed: list[list[str]] = field(default_factory=list)
    false_alarms: list[list[str]] = field(default_factory=list)

    def add(self, name: SessionName, label: Label, judged: Iterable[Judged]) -> None:
        """Count one run."""
        run = list(judged)
        tallies = (self.total, self.by_source.setdefault(name[0], Tally()))
        if label.loop:
            self._loop(name, label, run, tallies)
        else:
            self._healthy(name, run, tallies)

    def _loop(self, name: SessionName, label: Label, run: list[Judged], tallies: tuple[Tally, Tally]) -> None:
        start = _index(run, label.start_seq, 0)
        end = _index(run, label.end_seq, len(run) - 1)
        found = next((one for one in run if one.kinds and one.index <= end), None)
        blocked = next((one for one in run if one.verdict.decision in BLOCKING and one.index <= end), None)
        for tally in tallies:
            tally.loops += 1
            if found is not None:
                tally.caught += 1
                tally.delays.append(max(0, found.index - start))
            if blocked is not None:
                tally.calls_saved += end - blocked.index + 1
        if found is None:
            self.missed.append(list(name))
        for kind in {kind for one in run if one.index <= end for kind in one.kinds}:
            self.kinds["caught"][kind] += 1

    def _healthy(self, name: SessionName, run: list[Judged], tallies: tuple[Tally, Tally]) -> None:
        alarms = [one for one in run if one.kinds]
        blocked = [one for one in run if one.verdict.decision in BLOCKING]
        for tally in tallies:
            tally.healthy += 1
            tally.alarmed += bool(alarms)
            tally.blocked += bool(blocked)
        for kind in {kind for one in alarms for kind in one.kinds}:
            self.kinds["alarmed"][kind] += 1
        for kind in {one.verdict.finding.kind for one in blocked if one.verdict.finding is not None}:
            self.kinds["blocked"][kind] += 1
        if alarms:
            worst = (blocked or alarms)[0]
            self.false_alarms.append([*name, worst.kinds[0] if worst.kinds else "", worst.verdict.decision])

    def report(self) -> dict[str, Any]:
        """Return the whole report, ready for JSON."""
        kinds = sorted(set().union(*self.kinds.values()))
        return {
            **self.total.report(),
            "by_source": {source: tally.report() for source, tally in sorted(self.by_source.items())},
            "by_kind": {kind: {name: counts[kind] for name, counts in self.kinds.items()} for kind in kinds},
            "missed": sorted(self.missed),
            "false_alarms": sorted(self.false_alarms),
        }


def _index(run: list[Judged], seq: int | None, default: int) -> int:
    return default if seq is None else next((one.index for one in run if one.seq >= seq), default)


def table(report: Mapping[str, Any], write: Callable[[str], object]) -> None:
    """Print a report for people, with its biases."""
    _rows("source", {**report["by_source"], **_without_the_largest(report), "all": report}, write)
    if "by_preset" in report:
        write("")
        _rows("preset", report["by_preset"], write)
    write("")
    write("{:<24}{:>10}{:>10}{:>10}".format("detector (any ladder)", "caught", "alarmed", "blocked"))
    for kind, counts in report["by_kind"].items():
        write(f"{kind:<24}{counts['caught']:>10}{counts['alarmed']:>10}{counts['blocked']:>10}")
    for title, rows in (("missed", report["missed"]), ("false alarms", report["false_alarms"])):
        if rows:
            write("")
            write(f"{title}:")
            for one in rows:
                write("  " + "  ".join(one))
    write("")
    for bias in BIASES:
        write(f"Bias: {bias}")


def _rows(title: str, rows: Mapping[str, Mapping[str, Any]], write: Callable[[str], object]) -> None:
    row = "{:<24}{:>14}{:>16}{:>10}{:>8}{:>8}"
    write(row.format(title, "loops caught", "healthy alarmed", "blocked", "delay", "saved"))
    for name, one in rows.items():
        delay = "-" if one["median_delay_calls"] is None else f"{one['median_delay_calls']:g}"
        write(
            row.format(
                name[:23],
                _share(one["caught"], one["loops"]),
                _share(one["alarmed"], one["healthy"]),
                one["blocked"],
                delay,
                one["calls_saved"],
            )
        )


def _without_the_largest(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sum without the source that has the most loops and would dominate the others."""
    sources = report["by_source"]
    if len(sources) < 2:
        return {}
    largest = max(sources, key=lambda name: sources[name]["loops"])
    counts = ("loops", "caught", "healthy", "alarmed", "blocked", "calls_saved")
    rest = {name: report[name] - sources[largest][name] for name in counts}
    return {f"without {largest}": {**rest, "median_delay_calls": None}}


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} {100 * part / whole:.0f}%" if whole else "-"
