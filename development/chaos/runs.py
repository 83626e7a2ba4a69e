"""The load: runs of agents whose every request is known beforehand, a function of the seed alone.

The agents go on whatever they are told, so that the same runs, replayed without faults, make the same history.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

RUNS = 21
STEPS = (8, 14)
CHOICES = (
    {"choice": "allow_once"},
    {"choice": "skip"},
    {"choice": "raise", "raise_by": 2},
    {"choice": "exempt"},
)
ASKING_BACKEND = "asks"
SETTINGS = {
    # What a fault delays must not change what counts: no call is old, slow, or unanswered.
    "ttl_seconds": 31_536_000,
    "slow_gap_seconds": 86_400,
    "answer_timeout_seconds": 86_400,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One request of an agent, sent until it is answered.

    Attributes
    ----------
    again
        Whether it is sent a second time although it was answered, as by a client that lost the response.
    """

    path: str
    body: dict[str, Any]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One session."""

    session: str
    steps: tuple[Step, ...]


def runs(seed: int) -> list[Run]:
    """Return the runs of a seed."""
    rng = random.Random(f"runs-{seed}")
    made = [_SHAPES[number % len(_SHAPES)](f"run-{number:02}", rng) for number in range(RUNS)]
    rng.shuffle(made)
    return made


def choice_of(approval: dict[str, Any]) -> dict[str, Any]:
    """Return how the operator decides, by the held call alone."""
    return CHOICES[zlib.crc32(f"{approval['session']}/{approval['call_id']}".encode()) % len(CHOICES)]


def _guarded(
    session: str,
    rng: random.Random,
    call: Callable[[int], dict[str, Any]],
    content: Callable[[int], dict[str, Any]],
    **more: Any,
) -> Run:
    """A run that asks before each call and reports each result with the next request."""
    steps = []
    for number in range(rng.randint(*STEPS)):
        results = (
            [{"id": f"{session}-r{number - 1}", "call_id": f"c{number - 1}", **content(number - 1)}]
            if number
            else []
        )
        body = {
            "session": session, "round": f"round-{number}", "agent": "chaos", "results": results, **more,
            "calls": [{"id": f"{session}-c{number}", "call_id": f"c{number}", **call(number)}],
        }  # fmt: skip
        steps.append(Step("/guard", body, rng.random() < 0.1))
    return Run(session, tuple(steps))


def _reported(
    session: str,
    rng: random.Random,
    call: Callable[[int], dict[str, Any]],
    content: Callable[[int], dict[str, Any]],
) -> Run:
    """A run that is reported afterwards, in batches of any size."""
    events = [*_events(session, rng.randint(*STEPS) * 2, call, content)]
    if rng.random() < 0.5:
        events.append({"id": f"{session}-end", "session": session, "type": "end", "outcome": "completed"})
    steps = []
    while events:
        size = rng.randint(1, 6)
        steps.append(Step("/events", {"events": events[:size]}, rng.random() < 0.2))
        events = events[size:]
    return Run(session, tuple(steps))


def _events(
    session: str, calls: int, call: Callable[[int], dict[str, Any]], content: Callable[[int], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for number in range(calls):
        common = {"session": session, "call_id": f"c{number}"}
        yield {**common, "id": f"{session}-c{number}", "type": "call", "agent": "chaos", **call(number)}
        yield {**common, "id": f"{session}-r{number}", "type": "result", **content(number)}


def _other(number: int) -> dict[str, Any]:
    return {"tool": "read_file", "arguments": {"path": f"src/module_{number}.py"}}


def _same(_: int) -> dict[str, Any]:
    return {"tool": "search_web", "arguments": {"q": "the same words"}}


def _lap(number: int) -> dict[str, Any]:
    return ({"tool": "list_orders", "arguments": {}}, {"tool": "get_order", "arguments": {"id": 7}})[
        number % 2
    ]


def _new_result(number: int) -> dict[str, Any]:
    return {
        "content": f"{zlib.crc32(str(number).encode())} lines, of which the first is number {number * 7919}"
    }


def _no_hits(_: int) -> dict[str, Any]:
    return {"content": "0 hits"}


def _error(_: int) -> dict[str, Any]:
    return {"content": "PermissionError: not allowed", "is_error": True}


def _healthy(session: str, rng: random.Random) -> Run:
    return _guarded(session, rng, _other, _new_result)


def _repeats(session: str, rng: random.Random) -> Run:
    return _guarded(session, rng, _same, _no_hits)


def _asks(session: str, rng: random.Random) -> Run:
    return _guarded(session, rng, _same, _no_hits, backend=ASKING_BACKEND)


def _reported_cycle(session: str, rng: random.Random) -> Run:
    return _reported(session, rng, _lap, _no_hits)


def _reported_errors(session: str, rng: random.Random) -> Run:
    return _reported(session, rng, lambda number: {"tool": "write_file", "arguments": {"n": number}}, _error)


def _reported_work(session: str, rng: random.Random) -> Run:
    return _reported(session, rng, _other, _new_result)


def _mixed(session: str, rng: random.Random) -> Run:
    """A run that is reported first, guarded afterwards, and stopped by a person before its last call."""
    reported = _reported(session, rng, _lap, _no_hits).steps[:4]
    known = sum(event["type"] == "call" for step in reported for event in step.body["events"])
    guarded = _guarded(session, rng, lambda number: _same(number) if number % 3 else _other(number), _no_hits)
    later = []
    for step in guarded.steps:
        text = {
            "calls": [dict(one) for one in step.body["calls"]],
            "results": [dict(one) for one in step.body["results"]],
        }
        for one in (*text["calls"], *text["results"]):
            one["id"], one["call_id"] = f"{one['id']}-later", f"later-{known}-{one['call_id']}"
        later.append(Step(step.path, {**step.body, **text}, step.again))
    stop = Step(f"/sessions/{session}/stop", {"reason": "enough"})
    return Run(session, (*reported, *later[:-1], stop, later[-1]))


_SHAPES = (_healthy, _repeats, _asks, _reported_cycle, _reported_errors, _reported_work, _mixed)
