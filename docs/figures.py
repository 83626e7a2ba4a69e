# ruff: noqa: INP001
"""Updates the measured tables of `detectors.md` and `evaluation.md`: `.venv/bin/python docs/figures.py FOLDER…`.

A folder contains a set of labels, `labels.jsonl.gz`, and its runs, `*.events.jsonl.gz`. All tables but the one per set are about
the first folder. The recorded runs are not part of the project; the tables are, between marks that this script looks for. Everything
is measured with the same code as `manage.py evaluate`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from detection.engine.detectors import DETECTORS  # noqa: E402
from detection.engine.fields import FIELDS  # noqa: E402
from detection.engine.identity import Keyer  # noqa: E402
from detection.engine.policy import PRESETS, SESSION, resolve  # noqa: E402
from detection.integrations.recorded_runs import fold_session, read_lines, sessions  # noqa: E402
from detection.integrations.traces import name_of  # noqa: E402
from development.measuring.quality import Quality, labels  # noqa: E402

SHORT_RUNS = "intercode"
"""The source whose loops are short and by old models: every recall is given with and without it."""

# Limits of `standard` whose cost and catch are worth a line, with the steps tried.
SWEPT: dict[str, tuple[Any, ...]] = {
    "max_repeats": (3, 5),
    "repeat_warn_at": (0, 2, 4),
    "max_repeats_changing": (9, 11),
    "ttl_seconds": (60, 240),
    "slow_gap_seconds": (10, 40),
    "scattered_repeats": (0, 3, 5),
    "scattered_run_repeats": (0, 4, 6),
    "cycle_max_length": (5, 7),
    "cycle_min_laps": (2, 4),
    "cycle_unknown_laps": (3, 5),
    "similar_ratio": (0.8, 0.9),
    "similar_max_calls": (5, 7),
    "similar_window_calls": (11, 13),
    "outcome_max_results": (3, 4, 5, 7),
    "outcome_max_errors": (3, 5),
    "outcome_max_similar": (3, 5),
    "stagnation_max_calls": (4, 6),
    "budget_max_rounds": (99, 101),
    "rung_gap_calls": (2, 4),
}


FEATURES: dict[str, dict[str, Any]] = {
    "`repeat_near_ratio`": {"repeat_near_ratio": 1.0},
    "`outcome_max_refusals`": {"outcome_max_refusals": 0},
    "`stagnation_max_empty`": {"stagnation_max_empty": 0},
    "`outage_enabled`": {"outage_enabled": False},
    "`once_per_round`": {"once_per_round": False},
}
"""Rules for modern tool use that can be turned off, with the values that do."""


class Runs:
    """The labelled runs of a folder, read once."""

    def __init__(self, folder: Path, *, with_successes: bool = False) -> None:
        self.labels = labels(read_lines(folder / "labels.jsonl.gz"), with_successes=with_successes)
        events = sorted(folder.glob("*.events.jsonl.gz"))
        rows = (row for path in events for row in read_lines(path) if name_of(row) in self.labels)
        self.sessions = list(sessions(rows))

    def measure(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Fold every run under a policy."""
        policy, keyer, quality = resolve([(SESSION, values)]), Keyer(), Quality()
        for name, run in self.sessions:
            quality.add(name, self.labels[name], fold_session(run, policy, keyer))
        return quality.report()


def recall(report: Mapping[str, Any]) -> str:
    """Return recall with and without the short runs."""
    short = report["by_source"].get(SHORT_RUNS, {"loops": 0, "caught": 0})
    loops, caught = report["loops"] - short["loops"], report["caught"] - short["caught"]
    return f"{_percent(report['caught'], report['loops'])} / {_percent(caught, loops)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _delay(report: Mapping[str, Any]) -> str:
    delay = report["median_delay_calls"]
    return "–" if delay is None else f"{delay:g}"


def _alarms(report: Mapping[str, Any]) -> str:
    return f"{report['alarmed']} of {report['healthy']}"


def per_detector(runs: Runs) -> str:
    """Return the figures of each detector alone, of all but it, and of all together."""
    lines = [
        "| detectors on | recall, all / without intercode | false alarms on healthy runs | healthy runs blocked | median delay, calls | calls saved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]

    def line(title: str, values: Mapping[str, Any]) -> None:
        report = runs.measure(values)
        lines.append(
            f"| {title} | {recall(report)} | {_alarms(report)} | {report['blocked']} | {_delay(report)} | {report['calls_saved']} |"
        )

    judged = [one for one in DETECTORS if "standard" in one.presets]
    for one in judged:
        line(f"`{one.kind}` alone", {other.switch: other is one for other in DETECTORS})
    for one in judged:
        line(f"all but `{one.kind}`", {one.switch: False})
    line("**all**", {})
    return "\n".join(lines)


def per_limit(runs: Runs) -> str:
    """Return one line per limit and step: the change against `standard`."""
    base = runs.measure({})
    lines = [
        "| limit | standard | tried | loops found | false alarms on healthy runs | healthy runs blocked | median delay | calls saved |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    standard = resolve([]).values
    for name, tried in SWEPT.items():
        for value in tried:
            report = runs.measure({name: FIELDS[name].clean(value)})
            cells = [
                f"{report[key]} ({report[key] - base[key]:+d})"
                if report[key] != base[key]
                else f"{report[key]}"
                for key in ("caught", "alarmed", "blocked")
            ]
            lines.append(
                f"| `{name}` | {standard[name]} | {value} | {' | '.join(cells)} | {_delay(report)} | {report['calls_saved']} |"
            )
    return "\n".join(lines)


def per_source(runs: Runs) -> str:
    """Return the table of `manage.py evaluate`, with a second total without the short runs."""
    report = runs.measure({})
    lines = [
        "| source | loops found | healthy runs with an alarm | healthy runs blocked | median delay | calls saved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for source, one in report["by_source"].items():
        lines.append(
            f"| {source} | {one['caught']} of {one['loops']} | {_alarms(one)} | {one['blocked']} | {_delay(one)} | {one['calls_saved']} |"
        )
    lines.append(
        f"| **all** | {report['caught']} of {report['loops']} ({recall(report)} without intercode) | {_alarms(report)} |"
        f" {report['blocked']} | {_delay(report)} | {report['calls_saved']} |"
    )
    return "\n".join(lines)


def per_set(folders: Iterable[Path]) -> str:
    """Return one line per set of labels, with confidence intervals and the runs that ended in success."""
    lines = [
        "| set | loops found | healthy runs with an alarm | healthy runs blocked | successful runs with a finding | successful runs blocked |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    names = (("caught", "loops"), ("alarmed", "healthy"), ("blocked", "healthy"),
             ("successes_alarmed", "successes"), ("successes_blocked", "successes"))  # fmt: skip
    for folder in folders:
        report = Runs(folder, with_successes=True).measure({})
        cells = [_with_interval(report, part, whole) for part, whole in names]
        lines.append(f"| {folder.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def per_feature(folders: Iterable[Path]) -> str:
    """Return the figures of each rule alone and of all but it, for every folder."""
    sets = {folder.name: Runs(folder) for folder in folders}
    lines = [f"| rules on | {' | '.join(sets)} |", f"| --- |{' --- |' * len(sets)}"]

    def line(title: str, off: Iterable[str]) -> None:
        values = {name: value for feature in off for name, value in FEATURES[feature].items()}
        reports = [runs.measure(values) for runs in sets.values()]
        cells = [f"{one['caught']} of {one['loops']}, {_alarms(one)}" for one in reports]
        lines.append(f"| {title} | {' | '.join(cells)} |")

    line("none of them", FEATURES)
    for feature in FEATURES:
        line(f"only {feature}", [other for other in FEATURES if other != feature])
    for feature in FEATURES:
        line(f"all but {feature}", [feature])
    line("**all**", [])
    return "\n".join(lines)


def _with_interval(report: Mapping[str, Any], part: str, whole: str) -> str:
    bounds = report["intervals"][part]
    if bounds is None:
        return "–"
    low, high = (f"{100 * bound:.1f}" for bound in bounds)
    return f"{report[part]:,} of {report[whole]:,} ({low} to {high} %)"


def per_preset(runs: Runs) -> str:
    """Return the figures of every preset on the same runs."""
    lines = [
        "| preset | recall, all / without intercode | false alarms on healthy runs | healthy runs blocked | median delay | calls saved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in PRESETS:
        report = runs.measure({"preset": name})
        lines.append(
            f"| `{name}` | {recall(report)} | {_alarms(report)} | {report['blocked']} | {_delay(report)} | {report['calls_saved']} |"
        )
    return "\n".join(lines)


def misses(runs: Runs) -> str:
    """Return the names of the runs that were judged wrongly; the reasons are written by hand."""
    report = runs.measure({})
    lines = [f"- missed: {source}, `{session}`" for source, session in report["missed"]]
    lines += [f"- alarm: {one[0]}, `{one[1]}`: {one[2]}, {one[3]}" for one in report["false_alarms"]]
    return "\n".join(lines)


def put(page: str, name: str, text: str) -> None:
    """Replace the text between the marks of this name."""
    path = ROOT / "docs" / page
    before, mark, rest = path.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not mark or not end:
        raise SystemExit(f"{page} has no marks named {name}")
    path.write_text(f"{before}{mark}{text}\n{end}{after}")


def main() -> None:
    """Measure and write."""
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        raise SystemExit("usage: .venv/bin/python docs/figures.py FOLDER…")
    put("evaluation.md", "per set", per_set(folders))
    put("evaluation.md", "per feature", per_feature(folders))
    runs = Runs(folders[0])
    put("evaluation.md", "per source", per_source(runs))
    put("evaluation.md", "per preset", per_preset(runs))
    put("evaluation.md", "judged wrongly", misses(runs))
    put("detectors.md", "per detector", per_detector(runs))
    put("detectors.md", "per limit", per_limit(runs))


if __name__ == "__main__":
    main()
