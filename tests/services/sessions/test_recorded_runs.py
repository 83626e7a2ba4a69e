"""Recorded runs have one outcome, whatever the transactions. Opt-in: `LOOPGUARD_TRACES` names a folder with files in the trace form."""

import hashlib
import itertools
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from detection.engine.results import as_text
from detection.engine.scopes import PROJECT
from detection.integrations.recorded_runs import read_lines
from detection.integrations.traces import responses
from detection.services.policies.overrides import save_override
from tests.support.agents import OPERATOR
from tests.support.histories import differences, play, rows

FOLDER = os.environ.get("LOOPGUARD_TRACES", "")
RUNS, MOST_CALLS = 60, 400
PRESETS = ("standard", "balanced", "aggressive", "similarity", "interactive")
SIZES = (1000, 7, 2, 1)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_TRACES names no folder with recorded runs"),
]


def runs():
    """Yield runs of all files in turn, each as its name and its model responses."""
    files = [by_session(file) for file in sorted(Path(FOLDER).rglob("*.events.jsonl*"))]
    yield from itertools.islice(
        (run for turn in itertools.zip_longest(*files) for run in turn if run is not None), RUNS
    )


def by_session(file):
    for name, found in itertools.groupby(
        responses(read_lines(file)), lambda lines: (lines[0].get("source"), lines[0].get("session"))
    ):
        yield name, [*itertools.islice(found, MOST_CALLS)]


def history_of(found, mixes_guard):
    """Return the events of a run; with the guard, every other round is asked for, with the results before it."""
    history: list[Any] = []
    results: list[Any] = []
    for number, lines in enumerate(found):
        calls = []
        if lines[0].get("user_before"):
            history += [*({"type": "result", **one} for one in results), {"type": "message"}]
            results = []
        for line in lines:
            call = {"call_id": f"recorded-{line.get('seq')}", "tool": line["tool"]}
            if (arguments := line.get("arguments")) is not None:
                call["arguments"] = (
                    arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
                )
            if line.get("turn") is not None:
                call["round"] = f"turn-{line['turn']}"
            calls.append(call)
        if mixes_guard and number % 2:
            history.append((tuple(results), tuple(calls)))
        else:
            history += [{"type": "result", **one} for one in results]
            history += [{"type": "call", **one} for one in calls]
        results = [
            {"call_id": f"recorded-{line.get('seq')}", "content": as_text(line["result"]), **_error(line)}
            for line in lines
            if line.get("result") is not None
        ]
    return [
        *history,
        *({"type": "result", **one} for one in results),
        {"type": "end", "content": "completed"},
    ]


def _error(line):
    return {} if line.get("is_error") is None else {"is_error": line["is_error"]}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mixes_guard", [False, True])
def test_recorded_runs_give_the_same_rows_in_every_batch_size(principal, mixes_guard):
    different = []
    for number, (name, found) in enumerate(runs()):
        preset = PRESETS[number % len(PRESETS)]
        save_override(principal.project_id, PROJECT, {"preset": preset}, OPERATOR, note="a test")
        history = history_of(found, mixes_guard)
        label = hashlib.blake2b(repr(name).encode(), digest_size=6).hexdigest()
        sessions = [
            play(principal, f"{label}-{size}", history, itertools.repeat(size), itertools.cycle(evaluates))
            for size, evaluates in zip(
                SIZES, ([True], [False, True], [True, True, False], [True]), strict=True
            )
        ]
        expected = rows(sessions[-1])
        for size, session in zip(SIZES[:-1], sessions[:-1], strict=True):
            if lines := differences(rows(session), expected):
                different.append((name, preset, size, lines[:3]))
    assert different == []
