"""Every detector says what its slow twin says, call by call, on runs of every shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine import fold
from detection.engine.calls import Call, Message, Result
from detection.engine.detectors import DETECTORS
from detection.engine.policy import SERVER, Policy, resolve
from tests.engine.play import KEYER, observe
from tests.engine.twins import (
    budget,
    cycle,
    outage,
    outcome,
    repeat,
    session_budget,
    session_repeat,
    similar,
    stagnation,
    talk,
)
from tests.engine.twins.findings import Expected, as_expected
from tests.engine.twins.history import History, Observation, history
from tests.engine.twins.runs import runs

TWINS: dict[str, Callable[[History, Policy], Expected | None]] = {
    "repeat": repeat.repeat,
    "cycle": cycle.cycle,
    "similar": similar.similar,
    "outcome": outcome.outcome,
    "outage": outage.outage,
    "stagnation": stagnation.stagnation,
}
TWINS_OF_ALL: dict[str, Callable[[History, Policy, Sequence[Observation]], Expected | None]] = {
    "budget": budget.budget,
    "session_budget": session_budget.session_budget,
    "session_repeat": session_repeat.session_repeat,
}
"""Twins that also read what does not count as a call of a run."""
often = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def alone(kind: str, **values: Any) -> Policy:
    """One detector by itself, only looking on."""
    base: dict[str, Any] = {f"{one.kind}_enabled": one.kind == kind for one in DETECTORS}
    base |= {one.ladder: "observe" for one in DETECTORS}
    return resolve([(SERVER, base | {"mode": "observe"} | values)])


def compare(kind: str, observations: Sequence[Observation], policy: Policy) -> None:
    """Fold a run and ask the twin after every observation."""
    state = fold.new_state()
    for place, one in enumerate(observations):
        step = observe(state, one, policy)
        if isinstance(one, Message):
            continue
        assert not step.faults
        found = [
            as_expected(finding) for finding in step.verdict.findings if not finding.detail.get("notice")
        ]
        if step.duplicate:
            continue
        so_far = observations[: place + 1]
        past = history(so_far, policy)
        if kind in TWINS_OF_ALL:
            expected = TWINS_OF_ALL[kind](past, policy, so_far)
        else:
            expected = TWINS[kind](past, policy)
        assert found == ([expected] if expected else []), "\n".join(map(short, so_far))


def short(one: Observation) -> str:
    """One line for people who read a failure."""
    if isinstance(one, Call):
        return f"{one.call_id} {one.tool} {one.arguments} at {one.at - 1_000_000:g} in {one.round}"
    return (
        f"{one.call_id} answered {one.content!r}, error {one.is_error}"
        if isinstance(one, Result)
        else "message"
    )


counts = st.integers(2, 6)


@often
@given(
    run=runs(messages=True),
    limit=counts,
    warn_at=st.sampled_from((0, 2, 3, "auto")),
    changing=counts,
    ttl=st.sampled_from((60, 120)),
)
def test_repeats_in_a_row_whose_answers_are_looked_at(run, limit, warn_at, changing, ttl):
    policy = alone(
        "repeat",
        result_aware=True,
        max_repeats=limit,
        repeat_warn_at=warn_at,
        max_repeats_changing=changing,
        ttl_seconds=ttl,
        poll_max_repeats=limit + 2,
        poll_warn_at=3,
        scattered_repeats=3,
        scattered_window_calls=8,
        scattered_run_repeats=limit,
    )
    compare("repeat", run, policy)


@often
@given(
    run=runs(),
    limit=counts,
    scope=st.sampled_from(("consecutive", "window", "run")),
    ttl_from=st.sampled_from(("entry", "previous", "never")),
    window=st.integers(2, 12),
    once=st.booleans(),
)
def test_repeats_counted_without_their_answers(run, limit, scope, ttl_from, window, once):
    policy = alone(
        "repeat",
        result_aware=False,
        max_repeats=limit,
        repeat_scope=scope,
        ttl_from=ttl_from,
        ttl_seconds=60,
        window_calls=window,
        once_per_round=once,
    )
    compare("repeat", run, policy)


@often
@given(run=runs(messages=True), laps=st.integers(2, 4), longest=st.integers(2, 6), aware=st.booleans())
def test_cycles(run, laps, longest, aware):
    policy = alone(
        "cycle",
        cycle_min_laps=laps,
        cycle_unknown_laps=laps + 1,
        cycle_max_length=longest,
        result_aware=aware,
        max_repeats_changing=5,
    )
    compare("cycle", run, policy)


@often
@given(
    run=runs(messages=True),
    limit=st.integers(2, 5),
    window=st.integers(2, 12),
    method=st.sampled_from(("sketch", "literal")),
    aware=st.booleans(),
    ratio=st.sampled_from((0.5, 0.8, 1.0)),
)
def test_similar_calls(run, limit, window, method, aware, ratio):
    policy = alone(
        "similar",
        similar_max_calls=limit,
        similar_window_calls=window,
        similar_method=method,
        similar_ratio=ratio,
        result_aware=aware,
    )
    compare("similar", run, policy)


@often
@given(
    run=runs(messages=True),
    results=counts,
    errors=counts,
    near=counts,
    refusals=st.sampled_from((0, 2, 3)),
    method=st.sampled_from(("fingerprint", "literal")),
)
def test_equal_outcomes(run, results, errors, near, refusals, method):
    policy = alone(
        "outcome",
        result_aware=True,
        outcome_max_results=results,
        outcome_max_errors=errors,
        outcome_max_similar=near,
        outcome_max_refusals=refusals,
        outcome_method=method,
        window_calls=10,
    )
    compare("outcome", run, policy)


@often
@given(
    run=st.one_of(runs(messages=True), runs(answered=False, messages=True)),
    limit=counts,
    searches=st.sampled_from((0, 2, 3)),
)
def test_stagnation(run, limit, searches):
    limits = {"stagnation_max_calls": limit, "stagnation_max_empty": searches}
    compare("stagnation", run, alone("stagnation", result_aware=True, **limits))


@often
@given(run=runs(messages=True), limit=counts)
def test_provider_trouble(run, limit):
    compare("outage", run, alone("outage", result_aware=True, outage_max_errors=limit))


@often
@given(
    run=runs(messages=True),
    limits=st.fixed_dictionaries(
        {
            "budget_max_rounds": st.integers(0, 20),
            "budget_max_calls": st.integers(0, 20),
            "budget_max_seconds": st.integers(0, 600),
            "budget_max_tokens": st.integers(0, 500),
            "budget_max_cost_usd": st.sampled_from((0.0, 0.25, 1.0)),
        }
    ),
)
def test_budgets(run, limits):
    compare("budget", run, alone("budget", budget_soft_rounds=False, **limits))


@often
@given(
    run=runs(messages=True),
    names=st.lists(st.sampled_from(("a", "b", "c", "d", "e")), min_size=1, max_size=8),
    limits=st.fixed_dictionaries(
        {
            "session_budget_max_calls": st.integers(0, 20),
            "session_budget_max_seconds": st.integers(0, 600),
            "session_budget_max_tokens": st.integers(0, 500),
            "session_budget_max_cost_usd": st.sampled_from((0.0, 0.25, 1.0)),
        }
    ),
    attended=st.booleans(),
)
def test_limits_of_a_session_whatever_its_runs_and_messages(run, names, limits, attended):
    parts = [
        replace(one, run=names[one.seq * len(names) // 60 % len(names)]) if isinstance(one, Call) else one
        for one in run
    ]
    policy = alone("session_budget", attended=attended, once_per_round=False, **limits)
    compare("session_budget", parts, policy)


@often
@given(parts=st.lists(runs(), min_size=1, max_size=6), limit=st.integers(2, 4), ttl=st.sampled_from((1, 60)))
def test_the_same_result_turn_after_turn(parts, limit, ttl):
    run: list[Observation] = []
    for number, part in enumerate(parts):
        step, at = 1000 * number, 2000.0 * number
        run += [_moved(one, step, at) for one in (part if number % 2 else parts[0])]
        run.append(Message(0.0, "user", step))
    limits = {"session_repeat_max_turns": limit, "session_repeat_ttl_minutes": ttl}
    compare("session_repeat", run, alone("session_repeat", result_aware=True, **limits))


SAID = (
    "I will check it now",
    "I will check that now",
    "Let me see",
    "",
    "all of it is done",
    "Checking",
    "continue",
)
talked = st.one_of(
    st.builds(Message, st.just(0.0), st.just("assistant"), st.just(0), st.sampled_from(SAID)),
    st.builds(Message, st.just(0.0), st.just("user"), st.just(0), st.sampled_from(SAID[4:])),
    st.builds(Message, st.just(0.0), st.just("condense")),
    st.builds(Call, st.just(0), st.just("lookup"), st.just({}), st.just(0.0)),
)


@often
@given(
    run=st.lists(talked, max_size=40),
    texts=st.integers(2, 4),
    compactions=st.integers(0, 4),
    announcements=st.integers(0, 5),
    ratio=st.sampled_from((0.5, 0.6, 1.0)),
)
def test_talk_without_work(run, texts, compactions, announcements, ratio):
    limits = {"talk_max_texts": texts, "talk_max_compactions": compactions, "talk_ratio": ratio}
    limits["talk_max_announcements"] = announcements
    policy, state = alone("talk", **limits), fold.new_state()
    seen: list[Observation] = []
    for number, one in enumerate(run):
        changes = {"call_id": f"call-{number}"} if isinstance(one, Call) else {}
        seen.append(replace(one, seq=number, **changes))
        step = observe(state, seen[-1], policy)
        expected = talk.talk(seen, policy)
        assert not step.faults
        assert [*map(as_expected, step.verdict.findings)] == ([expected] if expected else [])


def _moved(one: Observation, step: int, at: float) -> Observation:
    name: dict[str, Any] = {} if isinstance(one, Message) else {"call_id": f"{step}-{one.call_id}"}
    round_name: dict[str, Any] = {"round": f"{step}-{one.round}"} if isinstance(one, Call) else {}
    return replace(one, seq=one.seq + step, at=one.at + at, **name, **round_name)


@pytest.mark.parametrize("length", [2, 3, 6])
def test_a_cycle_whose_results_change_stays_progress_at_any_length(length):
    policy = alone("cycle", result_aware=True)
    run: list[Observation] = []
    for number in range(150):
        run.append(Call(number, "lookup", {"q": number % length}, float(number), f"call-{number}"))
        run.append(Result(f"call-{number}", f"row {number}", False, float(number), number))
    state = fold.new_state()
    for one in run:
        step = observe(state, one, policy)
        assert all(finding.results == "changing" for finding in step.verdict.findings)


@pytest.mark.parametrize("ttl_from", ["entry", "previous", "never"])
def test_a_high_limit_fires_as_well(ttl_from):
    policy = alone("repeat", result_aware=False, max_repeats=200, ttl_from=ttl_from)
    state = fold.new_state()
    found = [
        bool(
            fold.observe_call(
                state, Call(n, "lookup", {}, n / 10, f"call-{n}"), policy, KEYER
            ).verdict.findings
        )
        for n in range(210)
    ]
    assert found == [False] * 199 + [True] * 11
