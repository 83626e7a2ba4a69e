"""`manage.py chaos`: seeds, one after the other, on one installation, and a report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from development.chaos.installation import Installation
from development.chaos.outcome import Outcome
from development.chaos.schedule import Strike, schedule
from development.chaos.trial import RESTART, Player, Trial

_MOST_SENTENCES = 12


def run(arguments: Sequence[str]) -> int:
    """Run the seeds; return 1 if anything was lost, duplicated, different or late."""
    parser = argparse.ArgumentParser(
        prog="manage.py chaos",
        description="Kill, freeze and fill a LoopGuard of its own at random "
        "under load, and compare what is left with the same runs without faults.",
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to this file")
    parser.add_argument(
        "--schedule", action="store_true", help="print the faults of the seeds and do nothing"
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    seeds = range(options.seed, options.seed + options.seeds)
    if options.schedule:
        for seed in seeds:
            print(f"seed {seed}: {_described(schedule(seed, with_disk=True, with_clock=True))}")
        return 0
    signal.signal(signal.SIGTERM, _on_end)
    signal.signal(signal.SIGHUP, _on_end)
    began = time.monotonic()
    trials = _Seeds(list(seeds)).run()
    report = summary(trials, time.monotonic() - began)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    _print_summary(report)
    return 0 if len(trials) == len(seeds) and all(trial.is_clean for trial in trials) else 1


def _on_end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Seeds:
    """Runs seeds on one installation, or a new one after a seed it did not recover from. Keeps the logs of failures."""

    def __init__(self, seeds: list[int]) -> None:
        self._waiting = seeds
        self._trials: list[Trial] = []

    def run(self) -> list[Trial]:
        """Return what came of each seed; fewer than asked for after Ctrl-C, or if LoopGuard does not start."""
        try:
            while self._waiting:
                began = time.monotonic()
                with Installation() as installation:
                    _say_what_is_missing(installation)
                    print(f"Started in {time.monotonic() - began:.1f} s.", flush=True)
                    try:
                        self._run_on(installation, began)
                    except Exception:
                        print(f"The logs are in {_kept_logs(installation)}.", flush=True)
                        raise
        except KeyboardInterrupt:
            print("Interrupted.", flush=True)
        except (RuntimeError, OSError) as error:
            print(f"Ended: {error}", file=sys.stderr, flush=True)
        return self._trials

    def _run_on(self, installation: Installation, began: float) -> None:
        names = [f"{kind}-{seed}" for seed in self._waiting for kind in ("reference", "chaos")]
        player = Player(installation, installation.create_projects(["probe", *names]))
        # All of them before the first fault: nothing has happened to the installation yet.
        references: dict[int, Outcome] = {seed: player.reference(seed) for seed in self._waiting}
        print(
            f"Replayed {len(references)} without faults after {time.monotonic() - began:.1f} s.", flush=True
        )
        while self._waiting:
            seed = self._waiting.pop(0)
            try:
                trial = player.trial(seed, references.pop(seed))
            except (RuntimeError, OSError, httpx.HTTPError) as error:
                trial = Trial(
                    seed, schedule(seed, with_disk=installation.has_volume, with_clock=installation.has_clock)
                )
                trial.problems.append(f"{type(error).__name__}: {error}")
            self._trials.append(trial)
            _print_trial(trial)
            if not trial.is_clean:
                print(f"  The logs are in {_kept_logs(installation)}.", flush=True)
            if not trial.is_working:
                return


def summary(trials: list[Trial], seconds: float) -> dict[str, Any]:
    """Return the report of all seeds."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for recovery in (one for trial in trials for one in trial.recoveries):
        # Starting everything again takes longer than what else was hit.
        kinds = [RESTART] if RESTART in recovery.kinds else recovery.kinds
        for kind in kinds:
            by_kind[kind].append(recovery.seconds)
    return {
        "seeds": len(trials),
        "clean": sum(trial.is_clean for trial in trials),
        "events": sum(trial.events for trial in trials),
        "contained_calls": sum(trial.contained_calls for trial in trials),
        "faults": sum(len(strike.faults) for trial in trials for strike in trial.strikes),
        "lost": sum(len(trial.comparison.lost) for trial in trials),
        "duplicated": sum(len(trial.comparison.duplicated) for trial in trials),
        "different": sum(len(trial.comparison.different) for trial in trials),
        "late": sum(recovery.is_late for trial in trials for recovery in trial.recoveries),
        "over_under_load": sum(
            recovery.is_over and not recovery.is_late for trial in trials for recovery in trial.recoveries
        ),
        "problems": sum(len(trial.problems) for trial in trials),
        "seconds": round(seconds, 1),
        "recovery_seconds": {
            kind: {
                "times": len(found),
                "median": round(statistics.median(found), 2),
                "longest": round(max(found), 2),
            }
            for kind, found in sorted(by_kind.items())
        },
        "trials": [{**asdict(trial), "is_clean": trial.is_clean} for trial in trials],
    }


def _print_trial(trial: Trial) -> None:
    word = "clean" if trial.is_clean else "FAILED"
    repeats = sum(trial.repeated.values())
    print(
        f"seed {trial.seed}: {word}, {trial.seconds:.1f} s, {trial.events} events, {repeats} requests repeated, "
        f"{trial.contained_calls} calls contained",
        flush=True,
    )
    for strike, recovery in zip(trial.strikes, trial.recoveries, strict=False):
        late = (
            f" {'LATE' if recovery.is_late else 'under load'}, promised {recovery.limit_seconds:g} s: {recovery.parts};"
            f" load {recovery.load:g} on {os.cpu_count()} processors"
            if recovery.is_over
            else ""
        )
        print(f"  {_described([strike])}: recovered in {recovery.seconds:.1f} s{late}", flush=True)
    for name in ("lost", "duplicated", "different"):
        _print_sentences(name, getattr(trial.comparison, name))
    _print_sentences("problem", trial.problems)
    if trial.missed:
        print(f"  hit nothing: {', '.join(trial.missed)}", flush=True)


def _print_sentences(name: str, sentences: list[str]) -> None:
    for sentence in sentences[:_MOST_SENTENCES]:
        print(f"  {name}: {sentence}", flush=True)
    if len(sentences) > _MOST_SENTENCES:
        print(f"  {name}: and {len(sentences) - _MOST_SENTENCES} more", flush=True)


def _print_summary(report: dict[str, Any]) -> None:
    print(f"\n{'fault':<24} {'times':>5} {'median':>8} {'longest':>8}")
    for kind, found in report["recovery_seconds"].items():
        print(f"{kind:<24} {found['times']:>5} {found['median']:>6.1f} s {found['longest']:>6.1f} s")
    print(
        f"\n{report['clean']} of {report['seeds']} seeds clean: {report['events']} events, {report['faults']} faults,"
        f" {report['lost']} lost, {report['duplicated']} duplicated, {report['different']} different, "
        f"{report['late']} late ({report['over_under_load']} more under load),"
        f" {report['problems']} other problems, {report['seconds']:.0f} s"
    )


def _described(strikes: list[Strike]) -> str:
    """Return the faults of strikes in words."""
    return "; ".join(
        ", ".join(
            fault.kind
            + (f" for {fault.seconds:.1f} s" if fault.seconds else "")
            + (f" ({fault.jump_seconds:+d} s)" if fault.jump_seconds else "")
            + (f" after {fault.after_seconds:.1f} s" if fault.after_seconds else "")
            for fault in strike.faults
        )
        for strike in strikes
    )


def _say_what_is_missing(installation: Installation) -> None:
    if not installation.has_volume:
        print("This account may not mount a volume: the disk is left alone.", flush=True)
    if not installation.has_clock:
        print("There is no C compiler (cc): the clock is left alone.", flush=True)


def _kept_logs(installation: Installation) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="loopguard-chaos-logs-"))
    installation.keep_logs(folder)
    return folder
