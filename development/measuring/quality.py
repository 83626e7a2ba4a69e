"""Quality of detection on recorded runs: recall, false alarms and delay, per source, detector and set of labels.

Only runs that a person has inspected count as loops or as healthy. Runs that ended in success are counted separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Any

from detection.engine.calls import DECISIONS
from detection.engine.memory import BLOCKING
from detection.integrations.recorded_runs import Judged
from detection.integrations.traces import Line, SessionName, name_of

BIASES = (
    "Looping runs were found by searching for repeated calls: recall is too high.",
    "Healthy runs contain more hard cases than usual: false alarms are too many.",
    "Results are those of the original run: a warning cannot change what the model does next.",
    "Loops of one source may be short and by old models: compare recall with and without it.",
)


_SUCCESS = frozenset(("correct", "solved", "success"))
_TWO_SIDED_95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Label:
    """The label of one run.

    Attributes
    ----------
    loop : bool or None
        A person's decision; None if nobody has inspected the run.
    start_seq, end_seq : int or None
        The first call of the loop, not yet repeated, and its last one.
    label_set : str
        The set of labels that it belongs to.
    is_success : bool
        Whether the run solved its task.
    """

    loop: bool | None
    start_seq: int | None
    end_seq: int | None
    label_set: str = ""
    is_success: bool = False


def labels(
    rows: Iterable[Line], label_set: str = "", *, with_successes: bool = False
) -> dict[SessionName, Label]:
    """Return the labels of runs that a person inspected and decided, and of successful runs if they are wanted."""
    found: dict[SessionName, Label] = {}
    for row in rows:
        is_decided = row.get("label_origin") == "inspected" and isinstance(row.get("loop"), bool)
        is_success = with_successes and _is_success(row.get("outcome"))
        if is_decided or is_success:
            found[name_of(row)] = Label(
                row["loop"] if is_decided else None,
                row.get("loop_start_seq"),
                row.get("loop_end_seq"),
                label_set,
                is_success,
            )
    return found


def _is_success(outcome: Any) -> bool:
    """Return whether an outcome is a full score or a word for success."""
    return (
        outcome in _SUCCESS if isinstance(outcome, str) else isinstance(outcome, int | float) and outcome >= 1
    )


def interval(part: int, whole: int) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a share (Wilson, 1927), rounded to four digits; None without data."""
    if not whole:
        return None
    square, share = _TWO_SIDED_95**2, part / whole
    middle = share + square / (2 * whole)
    spread = _TWO_SIDED_95 * (share * (1 - share) / whole + square / (4 * whole**2)) ** 0.5
    scale = 1 + square / whole
    return round(max(0.0, (middle - spread) / scale), 4), round(min(1.0, (middle + spread) / scale), 4)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a policy did in one run: the detectors that found something, and the strictest decision."""

    kinds: tuple[str, ...] = ()
    decision: str = "allow"

    def __str__(self) -> str:
        return f"{self.decision} ({', '.join(self.kinds)})" if self.kinds else "nothing"


@dataclass(slots=True)
class Tally:
    """Counts over a set of runs."""

    loops: int = 0
    caught: int = 0
    healthy: int = 0
    alarmed: int = 0
    blocked: int = 0
    successes: int = 0
    successes_alarmed: int = 0
    successes_blocked: int = 0
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
            "successes": self.successes,
            "successes_alarmed": self.successes_alarmed,
            "successes_blocked": self.successes_blocked,
            "intervals": {name: interval(part, whole) for name, part, whole in self.shares()},
        }

    def shares(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, part and whole of each share."""
        return (
            ("caught", self.caught, self.loops),
            ("alarmed", self.alarmed, self.healthy),
            ("blocked", self.blocked, self.healthy),
            ("successes_alarmed", self.successes_alarmed, self.successes),
            ("successes_blocked", self.successes_blocked, self.successes),
        )


@dataclass(slots=True)
class Quality:
    """The measurement of all runs."""

    total: Tally = field(default_factory=Tally)
    by_source: dict[str, Tally] = field(default_factory=dict)
    by_set: dict[str, Tally] = field(default_factory=dict)
    kinds: Mapping[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in ("caught", "alarmed", "blocked")}
    )
    missed: list[list[str]] = field(default_factory=list)
    false_alarms: list[list[str]] = field(default_factory=list)
    runs: dict[SessionName, RunOutcome] = field(default_factory=dict)

    def add(self, name: SessionName, label: Label, judged: Iterable[Judged]) -> None:
        """Count one run."""
        run = list(judged)
        tallies = (
            self.total,
            self.by_source.setdefault(name[0], Tally()),
            self.by_set.setdefault(label.label_set, Tally()),
        )
        self.runs[name] = _outcome(run)
        if label.is_success:
            _succeeded(run, tallies)
        if label.loop is None:
            return
        if label.loop:
            self._loop(name, label, run, tallies)
        else:
            self._healthy(name, run, tallies)

    def _loop(self, name: SessionName, label: Label, run: list[Judged], tallies: Iterable[Tally]) -> None:
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

    def _healthy(self, name: SessionName, run: list[Judged], tallies: Iterable[Tally]) -> None:
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
            "by_set": {name: tally.report() for name, tally in self.by_set.items()},
            "by_kind": {kind: {name: counts[kind] for name, counts in self.kinds.items()} for kind in kinds},
            "missed": sorted(self.missed),
            "false_alarms": sorted(self.false_alarms),
        }


def _outcome(run: list[Judged]) -> RunOutcome:
    kinds = sorted({kind for one in run for kind in one.kinds})
    decisions = (one.verdict.decision for one in run)
    return RunOutcome(tuple(kinds), max(decisions, key=DECISIONS.index, default="allow"))


def _succeeded(run: list[Judged], tallies: Iterable[Tally]) -> None:
    for tally in tallies:
        tally.successes += 1
        tally.successes_alarmed += any(one.kinds for one in run)
        tally.successes_blocked += any(one.verdict.decision in BLOCKING for one in run)


def differences(one: Quality, other: Quality, wanted: Mapping[SessionName, Label]) -> list[dict[str, Any]]:
    """Return the runs in which two policies reacted differently, sorted by name."""
    return [
        {
            "source": name[0],
            "session": name[1],
            "label": _label_words(wanted[name]),
            "before": str(one.runs[name]),
            "after": str(other.runs[name]),
        }
        for name in sorted(one.runs)
        if one.runs[name] != other.runs[name]
    ]


def _label_words(label: Label) -> str:
    if label.loop is None:
        return "success"
    return "loop" if label.loop else "healthy"


LIMITS: Mapping[str, tuple[str, str]] = {
    "min_recall": ("caught", "at least"),
    "max_alarms": ("alarmed", "at most"),
    "max_blocked": ("blocked", "at most"),
    "max_success_alarms": ("successes_alarmed", "at most"),
    "max_success_blocked": ("successes_blocked", "at most"),
}
"""Limits by name: the share that is limited, and how."""


def violations(tallies: Mapping[str, Tally], limits: Mapping[str, float]) -> list[str]:
    """Return one sentence per limit that a set of runs misses; a set without such runs meets it."""
    found = []
    for title, tally in tallies.items():
        shares = {name: (part, whole) for name, part, whole in tally.shares()}
        for limit, value in limits.items():
            name, how = LIMITS[limit]
            part, whole = shares[name]
            share = part / whole if whole else value
            if share < value if how == "at least" else share > value:
                found.append(f"{title}: {name} {part}/{whole} {share:.1%}, {how} {value:.1%} wanted")
    return found


def _index(run: list[Judged], seq: int | None, default: int) -> int:
    return default if seq is None else next((one.index for one in run if one.seq >= seq), default)


def table(report: Mapping[str, Any], write: Callable[[str], object]) -> None:
    """Print a report for people, with its biases."""
    _rows("source", {**report["by_source"], **_without_the_largest(report), "all": report}, write)
    if len(report["by_set"]) > 1:
        write("")
        _rows("labels", report["by_set"], write)
    if "by_preset" in report:
        write("")
        _rows("preset", report["by_preset"], write)
    write("")
    _intervals(report, write)
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
    _differences(report, write)
    write("")
    for bias in BIASES:
        write(f"Bias: {bias}")


def _intervals(report: Mapping[str, Any], write: Callable[[str], object]) -> None:
    write("95 % confidence intervals:")
    sets = report["by_set"] if len(report["by_set"]) > 1 else {}
    for title, one in {**sets, "all": report}.items():
        for name, bounds in one["intervals"].items():
            if bounds is not None:
                write(f"  {title[:23]:<24}{name:<20}{bounds[0]:>7.1%} to {bounds[1]:.1%}")


def _differences(report: Mapping[str, Any], write: Callable[[str], object]) -> None:
    if "differences" not in report:
        return
    write("")
    write(f"runs that differ: {len(report['differences'])}")
    for one in report["differences"]:
        write(f"  {one['source']}  {one['session']}  {one['label']}: {one['before']} -> {one['after']}")


def _rows(title: str, rows: Mapping[str, Mapping[str, Any]], write: Callable[[str], object]) -> None:
    with_successes = any(one.get("successes") for one in rows.values())
    row = "{:<24}{:>14}{:>16}{:>10}{:>8}{:>8}" + ("{:>18}{:>18}" if with_successes else "{:.0}{:.0}")
    write(
        row.format(
            title,
            "loops caught",
            "healthy alarmed",
            "blocked",
            "delay",
            "saved",
            "success alarmed",
            "success blocked",
        ).rstrip()
    )
    for name, one in rows.items():
        delay = "-" if one["median_delay_calls"] is None else f"{one['median_delay_calls']:g}"
        successes = one.get("successes", 0)
        write(
            row.format(
                name[:23],
                _share(one["caught"], one["loops"]),
                _share(one["alarmed"], one["healthy"]),
                one["blocked"],
                delay,
                one["calls_saved"],
                _share(one.get("successes_alarmed", 0), successes, 1),
                _share(one.get("successes_blocked", 0), successes, 1),
            ).rstrip()
        )


def _without_the_largest(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sum without the source that has the most loops and would dominate the others."""
    sources = report["by_source"]
    if len(sources) < 2:
        return {}
    largest = max(sources, key=lambda name: sources[name]["loops"])
    counts = (
        "loops", "caught", "healthy", "alarmed", "blocked", "calls_saved",
        "successes", "successes_alarmed", "successes_blocked",
    )  # fmt: skip
    rest = {name: report[name] - sources[largest][name] for name in counts}
    return {f"without {largest}": {**rest, "median_delay_calls": None}}


def _share(part: int, whole: int, digits: int = 0) -> str:
    return f"{part}/{whole} {100 * part / whole:.{digits}f}%" if whole else "-"
