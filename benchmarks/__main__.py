"""``python -m benchmarks``: prints the table of promised speeds."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable
from functools import partial

from benchmarks import (
    beside_what_if,
    containment,
    detectors,
    engine,
    exposure,
    fairness,
    families,
    freezes,
    gateway,
    hooks,
    http,
    kills,
    live,
    pages,
    revocation,
    scaling,
    search,
    start,
)
from benchmarks.report import HEAD, MARKDOWN_HEAD, Figure
from benchmarks.stack import Stack

PARTS = (
    "engine",
    "detectors",
    "guard",
    "events",
    "incident",
    "live",
    "fairness",
    "freezes",
    "pages",
    "start",
    "kills",
    "gateway",
    "screens",
    "revocation",
    "containment",
    "what-if",
    "families",
    "exposure",
    "search",
    "hooks",
)
_BUILD_OPTIONS = {"--enable-optimizations": "a profile", "--with-lto": "link-time optimisation"}
MORE_PARTS = ("scaling",)
"""Measured only when they are named."""


def main() -> None:
    """Measure the selected speeds; exit 1 when one misses its required limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"only some of {', '.join((*PARTS, *MORE_PARTS))}"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each load runs (default 15)")
    parser.add_argument("--viewers", type=int, default=100, help="open live pages (default 100)")
    parser.add_argument(
        "--events", type=int, default=search.EVENTS, help="events that are searched (default 1,000,000)"
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=containment.CONNECTIONS,
        help="open when it is contained (default 600)",
    )
    parser.add_argument(
        "--agents", type=int, default=containment.AGENTS, help="that call when it is contained (default 200)"
    )
    parser.add_argument("--markdown", action="store_true", help="print rows for docs/benchmarks.md")
    options = parser.parse_args()
    parts = set(options.parts or PARTS)
    if unknown := parts - {*PARTS, *MORE_PARTS}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()} ({_build()}), {os.cpu_count()} cores, load before "
        f"{load:.1f}\n\n{MARKDOWN_HEAD if options.markdown else HEAD}",
        flush=True,
    )
    sys.exit(1 if _run(parts, options) else 0)


def _build() -> str:
    """Return how the interpreter was compiled: the engine of one with a profile is about a seventh faster."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    found = [words for option, words in _BUILD_OPTIONS.items() if option in options]
    return f"built with {' and '.join(found)}" if found else "built without a profile"


def _run(parts: set[str], options: argparse.Namespace) -> int:
    """Run the parts; return how many promises were missed."""
    missed, show = 0, partial(_show, markdown=options.markdown)
    if "engine" in parts:
        missed += show(engine.run())
    if "detectors" in parts:
        missed += show(detectors.run())
    for group in (("guard", "events", "incident", "live"), ("fairness", "freezes")):
        if parts.intersection(group):
            with Stack() as stack:
                missed += sum(show(_measure(part, stack, options)) for part in group if part in parts)
    if "pages" in parts:
        # Of its own: the others measure without a month of work in the tables.
        with Stack() as stack:
            missed += show(pages.run(stack))
    if "what-if" in parts:
        with Stack() as stack:
            missed += show(beside_what_if.run(stack, options.seconds))
    if "scaling" in parts:
        with Stack() as stack:
            missed += show(scaling.run(stack, options.seconds))
    for part, measure in (
        ("families", partial(families.run, options.seconds)),
        ("start", start.run),
        ("kills", kills.run),
        ("revocation", revocation.run),
        ("containment", partial(containment.run, options.connections, options.agents)),
        ("exposure", exposure.run),
        ("search", partial(search.run, options.events)),
        ("hooks", hooks.run),
    ):
        if part in parts:
            missed += show(measure())
    if "screens" in parts:
        # Needs Playwright and a browser, which the others do not.
        from benchmarks import screens

        with Stack() as stack:
            missed += show(screens.run(stack, options.seconds))
        with Stack() as stack:
            missed += show(screens.run_loads(stack))
    if "gateway" in parts:
        missed += show(gateway.run())
    return missed


def _measure(part: str, stack: Stack, options: argparse.Namespace) -> list[Figure]:
    seconds: float = options.seconds
    if part == "guard":
        return http.guard(stack, seconds)
    if part == "events":
        return http.events(stack, seconds)
    if part == "incident":
        return http.commit_to_incident(stack, seconds)
    if part == "live":
        return live.run(stack, options.viewers, events=max(5, int(seconds)))
    return fairness.run(stack, seconds) if part == "fairness" else freezes.run(stack)


def _show(figures: Iterable[Figure], *, markdown: bool) -> int:
    """Print figures; return how many promises were missed."""
    missed = 0
    for figure in figures:
        print(figure.row() if markdown else figure.line(), flush=True)
        missed += figure.standing == "MISSED"
    return missed


if __name__ == "__main__":
    main()
