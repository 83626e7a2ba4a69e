"""``python -m benchmarks``: prints the table of promised speeds."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable

from benchmarks import detectors, engine, http, live, pages, start
from benchmarks.report import HEAD, Figure
from benchmarks.stack import Stack

PARTS = ("engine", "detectors", "guard", "events", "incident", "live", "pages", "start")


def main() -> None:
    """Measure what is asked for; exit 1 when a promise that must hold does not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only some of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each load runs (default 15)")
    parser.add_argument("--viewers", type=int, default=100, help="open live pages (default 100)")
    options = parser.parse_args()
    parts = set(options.parts or PARTS)
    if unknown := parts - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load before {load:.1f}\n\n{HEAD}",
        flush=True,
    )
    missed = 0
    if "engine" in parts:
        missed += show(engine.run())
    if "detectors" in parts:
        missed += show(detectors.run())
    if parts & {"guard", "events", "incident", "live"}:
        with Stack() as stack:
            if "guard" in parts:
                missed += show(http.guard(stack, options.seconds))
            if "events" in parts:
                missed += show(http.events(stack, options.seconds))
            if "incident" in parts:
                missed += show(http.commit_to_incident(stack, options.seconds))
            if "live" in parts:
                missed += show(live.run(stack, options.viewers, events=max(5, int(options.seconds))))
    if "pages" in parts:
        # Of its own: the others measure without a month of work in the tables.
        with Stack() as stack:
            missed += show(pages.run(stack))
    if "start" in parts:
        missed += show(start.run())
    sys.exit(1 if missed else 0)


def show(figures: Iterable[Figure]) -> int:
    """Print figures; return how many promises were missed."""
    missed = 0
    for figure in figures:
        print(figure.line(), flush=True)
        missed += figure.standing == "MISSED"
    return missed


if __name__ == "__main__":
    main()
