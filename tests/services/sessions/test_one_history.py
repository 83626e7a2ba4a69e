"""One history has one outcome: the same events in the same order give the same rows, whatever the transactions."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine.scopes import PROJECT
from detection.models import Session
from detection.services.policies.overrides import save_override
from tests.support.agents import OPERATOR
from tests.support.histories import differences, play, rebuilt_tracker, rows, tracker

ROUNDS = 5
numbers = itertools.count()
mostly = st.sampled_from  # the first element is what hypothesis shrinks to

call_ids = mostly(["c-0", "c-0", "c-1", ""])
tools = mostly(["search", "search", "search", "read", "write_file", "bash"])
arguments = mostly(['{"q": "a"}', '{"q": "a"}', '{"q": "a", "page": 2}', '{"q": "b"}', None])
contents = mostly(
    ["0 hits", "0 hits", "0 hits", "ok", "Error: not found", "", "found something quite different"]
)
calls = st.fixed_dictionaries(
    {"call_id": call_ids, "tool": tools, "arguments": arguments},
    optional={
        "round": mostly([f"r-{number}" for number in range(ROUNDS)]),
        "run": mostly(["one", "two"]),
        "tokens": st.integers(0, 5000),
        "cost_usd": st.floats(0, 0.5),
        "agent": mostly(["triage", "billing"]),
        "cwd": mostly(["/src/one", "/src/two"]),
    },
)
results = st.one_of(
    st.fixed_dictionaries({"call_id": call_ids, "content": contents}, optional={"is_error": st.booleans()}),
    st.fixed_dictionaries({"tool": tools, "arguments": arguments, "content": contents}),
    st.fixed_dictionaries({"content": contents}),
)
others = st.one_of(
    st.just({"type": "message", "content": "Please continue."}),
    st.just({"type": "message", "content": "!/set(tool-loop-max-repeats=3)"}),
    st.builds(lambda run: {"type": "end", "content": "completed", "run": run}, mostly(["", "one"])),
)


def of(kind, events):
    return events.map(lambda event: {"type": kind, **event})


requests = st.tuples(st.lists(results, max_size=2), st.lists(calls, min_size=1, max_size=3))
loops = st.builds(
    lambda call, result, times: [item for _ in range(times) for item in (call, result)],
    of("call", calls),
    of("result", results),
    st.integers(2, 9),
)
guarded_loops = st.builds(
    lambda call, result, times: [((result,), (call,)) for _ in range(times)],
    calls,
    results,
    st.integers(2, 9),
)
single = st.one_of(of("call", calls), of("result", results), requests, others).map(lambda item: [item])
histories = st.lists(st.one_of(single, single, loops, guarded_loops), min_size=1, max_size=14).map(
    lambda parts: [item for part in parts for item in part]
)
presets = mostly(["standard", "proxy", "balanced", "aggressive", "similarity", "advisory", "interactive"])
splits = st.lists(st.tuples(st.sampled_from([1000, 1, 2, 3, 7]), st.booleans()), min_size=1, max_size=5)


def of_policy(principal, preset):
    save_override(principal.project_id, PROJECT, {"preset": preset}, OPERATOR, note="a test")


def played(principal, history, split):
    sizes, evaluates = zip(*itertools.chain.from_iterable(itertools.repeat(split, 200)), strict=True)
    return play(principal, f"s-{next(numbers)}", history, sizes, evaluates)


def check(principal, preset, history, split):
    of_policy(principal, preset)
    slow, fast = (played(principal, history, one) for one in ([(1, True)], split))
    assert differences(rows(fast), rows(slow)) == []
    assert Session.objects.get(pk=slow.pk).evaluated_seq == slow.last_seq


SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.promise("REL-12")
@settings(max_examples=15, deadline=None, suppress_health_check=SUPPRESSED)
@given(preset=presets, history=histories, split=splits)
def test_random_batches_give_the_rows_of_one_event_at_a_time(principal, preset, history, split):
    check(principal, preset, history, split)


def test_an_incident_has_the_names_of_its_call_not_those_of_a_later_one(principal):
    call = {"type": "call", "tool": "search", "arguments": "{}"}
    last = call | {"tool": "read", "agent": "triage", "backend": "openai", "model": "m-7"}
    history = [*(call | {"call_id": f"c-{number}"} for number in range(5)), last | {"call_id": "c-9"}]
    check(principal, "standard", history, [(1000, True)])


@pytest.mark.long
@settings(max_examples=600, deadline=None, suppress_health_check=SUPPRESSED)
@given(preset=presets, history=histories, split=splits)
def test_many_random_batches_give_the_rows_of_one_event_at_a_time(principal, preset, history, split):
    check(principal, preset, history, split)


@pytest.mark.promise("REL-30")
@settings(max_examples=15, deadline=None, suppress_health_check=SUPPRESSED)
@given(history=histories)
def test_a_state_of_an_older_version_is_rebuilt_as_it_was(principal, history):
    history = [item for item in history if not (isinstance(item, dict) and "!/" in item.get("content", ""))]
    session = played(principal, history or [{"type": "end"}], [(1000, True)])
    stored = tracker(session)
    assert stored is None or rebuilt_tracker(session) == stored
