"""Runs to test with: repeated motifs with noise, late results, resent calls and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from detection.engine.calls import Call, Message, Result
from tests.engine.twins.history import Observation

ARGUMENTS: tuple[Any, ...] = (
    {},
    {"q": "reset password"},
    {"q": "reset my password"},
    {"q": "how to reset the password now"},
    {"user": "ann", "page": 1},
    {"user": "bob", "page": 2},
    {"user": "ann", "page": 2, "deep": True},
    ["one", "two"],
    "no json at all",
    {"command": "sleep 5; cat log"},
    {"command": "git status"},
)
TOOLS = ("lookup", "read_file", "edit_file", "job_status", "sleep", "bash")
ANSWERS = (
    "three rows found",
    "nothing like that here",
    "it was there already",
    "No results for it",
    "",
    "[]",
    "ok",
    "Done.",
    "false",
    "[image]",
)
PAGE = "the page shows a shop with seven aisles of goods and today there are #"
GOODS = ("apples and pears", "plums, cherries", "many pears, plums")
ERRORS = (
    "denied for ann", "denied for bob", "404 page gone", "", "429 Too Many Requests", "the request timed out",
)  # fmt: skip
PAUSES = (1.0, 1.0, 1.0, 1.0, 0.0, 19.0, 20.0, 30.0, 120.0, 121.0)


@dataclass(frozen=True)
class Turn:
    """One step of a motif: a call, and what it is answered."""

    tool: str
    arguments: Any
    answer: str | None
    """None: no answer ever; `*` in it: a number that rises from turn to turn; `#`: goods that change."""
    is_error: bool
    pause: float
    late: int
    """How many further calls come before the answer."""
    with_previous: bool
    """In the same round as the call before."""
    resent: bool
    tokens: int


def turns(arguments: tuple[Any, ...] = ARGUMENTS, answered: bool = True) -> st.SearchStrategy[Turn]:
    """Any one step."""
    good = st.tuples(st.sampled_from((*ANSWERS, PAGE, "row * found")), st.just(False))
    bad = st.tuples(st.sampled_from((*ERRORS, "crash in line * of 9000")), st.just(True))
    answers = st.one_of(good, good, bad, st.just((None, False)))
    return st.builds(
        lambda tool, arguments, answer, pause, late, joined, resent, tokens: Turn(
            tool, arguments, answer[0], answer[1], pause, late, joined, resent, tokens
        ),
        st.sampled_from(TOOLS),
        st.sampled_from(arguments),
        answers if answered else st.just((None, False)),
        st.sampled_from(PAUSES),
        st.sampled_from((0, 0, 0, 1, 3)),
        st.sampled_from((False, False, False, True)),
        st.sampled_from((False, False, False, False, True)),
        st.integers(0, 50),
    )


@st.composite
def runs(
    draw: st.DrawFn,
    arguments: tuple[Any, ...] = ARGUMENTS,
    *,
    answered: bool = True,
    messages: bool = False,
) -> list[Observation]:
    """Motifs over a few steps, each several times, up to about fifty calls."""
    palette = draw(st.lists(turns(arguments, answered), min_size=1, max_size=4))
    motif = st.tuples(st.lists(st.sampled_from(palette), min_size=1, max_size=4), st.integers(2, 6))
    motifs = draw(st.lists(motif, min_size=1, max_size=4))
    return observations(motifs, messages)


def observations(motifs: list[tuple[list[Turn], int]], messages: bool = False) -> list[Observation]:
    """Write motifs out as what an engine sees."""
    seen: list[Observation] = []
    waiting: list[tuple[int, Result]] = []
    at, number, round_number = 1_000_000.0, 0, 0
    for steps, times in motifs:
        for turn in steps * times:
            at += turn.pause
            round_number += not (turn.with_previous and number)
            call = Call(
                seq=number,
                tool=turn.tool,
                arguments=turn.arguments,
                at=at,
                call_id=f"call-{number}",
                round=f"round-{round_number}",
                tokens=turn.tokens,
                cost_usd=turn.tokens / 1024,
            )
            seen.append(call)
            if turn.answer is not None:
                text = turn.answer.replace("*", f"{number}").replace("#", GOODS[number % len(GOODS)])
                waiting.append((number + turn.late, Result(call.call_id, text, turn.is_error, at, number)))
            due = [result for when, result in waiting if when <= number]
            waiting = [one for one in waiting if one[0] > number]
            seen += due
            if turn.resent:
                seen += [call, *due]
            number += 1
        if messages and times % 2:
            seen.append(Message(at, "user", number))
    return [*seen, *(result for _, result in waiting)]
