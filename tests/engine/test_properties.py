"""Properties of every run: purity, bounds, identity, and that resent calls never count."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from detection.engine import fold, snapshot
from detection.engine.bounded import MAX_RESULTS
from detection.engine.calls import Call, Message, Result, Step
from detection.engine.identity import Keyer, canonical, smallest_rotation
from detection.engine.memory import MAX_CALL_IDS, MAX_LOOPS, MAX_RECORDS, MAX_RUNS, MAX_TOTALS
from detection.engine.policy import PRESETS, SERVER, Policy, resolve
from detection.engine.similarity import literal_similarity, sketch, sketch_similarity
from tests.engine.play import KEYER, observe
from tests.engine.twins.history import Observation
from tests.engine.twins.identity import tree
from tests.engine.twins.runs import ARGUMENTS, runs
from tests.engine.twins.similarity import alike, literally_alike

POLICIES = {name: resolve([(SERVER, {"preset": name})]) for name in PRESETS}
PROMISED_BYTES = 32 * 1024
AIMED_BYTES = 8 * 1024
some = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
presets = st.sampled_from(sorted(POLICIES))


def play(run: list[Observation], policy: Policy) -> list[Step]:
    state = fold.new_state()
    return [observe(state, one, policy) for one in run]


@some
@given(run=runs(messages=True), preset=presets)
def test_an_outcome_depends_on_state_and_observation_alone(run, preset):
    policy, again = POLICIES[preset], resolve([(SERVER, {"preset": preset})])
    # A copy of the state, another policy object of the same values and a keyer that has seen nothing yet.
    state = fold.new_state()
    for one in run:
        twin = copy.deepcopy(state)
        step = observe(state, one, policy)
        assert observe(twin, one, again, Keyer(b"a secret of the tests")) == step
        assert twin == state
        assert not step.faults


@some
@given(run=runs(messages=True), preset=presets)
def test_a_snapshot_at_any_point_changes_nothing(run, preset):
    policy = POLICIES[preset]
    kept, restored = fold.new_state(), fold.new_state()
    for one in run:
        before = snapshot.dump(restored)
        restored = snapshot.load(before)
        assert snapshot.dump(restored) == before
        assert observe(kept, one, policy) == observe(restored, one, policy)
    assert snapshot.dump(kept) == snapshot.dump(restored)


@some
@given(run=runs(), preset=presets, data=st.data())
def test_runs_beside_one_another_do_not_meet(run, preset, data):
    """Where counting is per run, two interleaved runs say what each says alone."""
    policy = POLICIES[preset]
    assume(policy.get("counting_scope") == "run")

    def named(one: Observation, name: str) -> Observation:
        if isinstance(one, Call):
            return Call(one.seq, one.tool, one.arguments, one.at, f"{name}{one.call_id}", one.round, name)
        assert isinstance(one, Result)
        return Result(f"{name}{one.call_id}", one.content, one.is_error, one.at, one.seq)

    runs_apart = {name: [named(one, name) for one in run] for name in ("a", "b")}
    apart = {name: [step.verdict for step in play(own, policy)] for name, own in runs_apart.items()}
    turns = data.draw(st.permutations(["a"] * len(run) + ["b"] * len(run)))
    state = fold.new_state()
    together: dict[str, list[Any]] = {"a": [], "b": []}
    waiting = {name: iter(own) for name, own in runs_apart.items()}
    for name in turns:
        together[name].append(observe(state, next(waiting[name]), policy).verdict)
    assert together == apart


@some
@given(run=runs(messages=True), preset=presets, data=st.data())
def test_resent_calls_and_second_results_never_count(run, preset, data):
    """A run in which anything is resent any number of times gives the same verdicts as the run without."""
    policy = POLICIES[preset]
    plain, seen, ids = [], [], set()
    for one in run:
        name = (type(one), getattr(one, "call_id", None))
        if isinstance(one, Message) or name not in ids:
            plain.append(one)
            seen.append((one, True))
            ids.add(name)
        old = data.draw(st.sampled_from(plain))
        if not isinstance(old, Message) and data.draw(st.booleans()):
            seen.append((old, False))
    state = fold.new_state()
    verdicts = []
    for one, first in seen:
        step = observe(state, one, policy)
        if first:
            verdicts.append(step.verdict)
        else:
            assert step.duplicate or step.call_key is None or isinstance(one, Result)
    assert verdicts == [step.verdict for step in play(plain, policy)]


@some
@given(run=runs(), preset=presets)
def test_findings_are_sane(run, preset):
    policy = POLICIES[preset]
    state, latest = fold.new_state(), 0
    for one in run:
        step = observe(state, one, policy)
        verdict, latest = step.verdict, max(latest, one.seq)
        is_second_write = verdict.decision == "block" and not verdict.findings  # of the same answer
        assert (verdict.decision == "allow" or is_second_write) == (verdict.rung in (None, "observe"))
        assert bool(verdict.message) == (verdict.decision != "allow")
        assert (verdict.finding is None) == (not verdict.findings)
        for finding in () if step.duplicate else verdict.findings:
            assert finding.count >= 1
            assert finding.limit >= 1
            assert 0 < finding.confidence <= 1
            assert len(finding.calls_digest) == 32
            assert 1 <= len(finding.seqs) <= 50
            assert list(finding.seqs) == sorted(finding.seqs)
            assert finding.first_seq <= finding.seqs[-1] <= latest
            assert finding.call_keys
            json.dumps(dict(finding.detail))


@given(lap=st.lists(st.sampled_from("abcd"), min_size=2, max_size=5), turn=st.integers(0, 4))
@settings(deadline=None)
def test_the_name_of_a_cycle_does_not_depend_on_where_it_is_entered(lap, turn):
    turned = lap[turn % len(lap) :] + lap[: turn % len(lap)]
    assert smallest_rotation(lap) == smallest_rotation(turned)

    def names(steps):
        run: list[Observation] = [
            Call(n, tool, {}, float(n), f"call-{n}") for n, tool in enumerate(steps * 5)
        ]
        policy = resolve([(SERVER, {"repeat_enabled": False, "stagnation_enabled": False})])
        return {
            finding.calls_digest
            for step in play(run, policy)
            for finding in step.verdict.findings
            if finding.kind == "cycle"
        }

    assert names(lap) == names(turned)
    assert len(names(lap)) <= 1


# Identity


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**62, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(("e\u0301", "\u00e9", "\ud800", "1", "null", "\x00"))
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def _twice(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True)


@given(one=trees, other=trees)
@settings(deadline=None, max_examples=100)
def test_two_calls_share_a_key_exactly_when_they_are_the_same_tree(one, other):
    for left, right in ((one, other), ([one], [other]), ({"a": one}, {"a": other})):
        same = KEYER.call_key("t", left) == KEYER.call_key("t", right)
        assert same == (tree(left) == tree(right))


@given(value=trees)
@settings(deadline=None, max_examples=100)
def test_canonical_form_is_final_and_does_not_see_order_or_spelling(value):
    if isinstance(value, str):
        value = [value]
    form = canonical(value)
    assert canonical(form.decode("utf-8", "surrogatepass")) == form
    assert canonical(_twice(value)) == form
    turned = json.loads(_twice(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical(turned) == form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "true"),
        ('{"a":1}', '{"a":"1"}'),
        ("18446744073709551616", "18446744073709551617"),
        ("9007199254740993", "9007199254740992"),
        ("1e400", "1e401"),
        ('"a"', "a"),
        ("[1,2]", "[2,1]"),
        ('{"a":null}', "{}"),
    ],
)
def test_values_that_are_not_the_same_keep_apart(one, other):
    assert KEYER.call_key("t", one) != KEYER.call_key("t", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[1,2]}', ' {"b" : [1, 2], "a" : 1} '),
        ('{"a":"\\u00e9"}', '{"a":"e\u0301"}'),
        ('{"a":"e\u0301","n":1180591620717411303424}', {"a": "\u00e9", "n": 2**70}),
        ('{"a":"e\u0301\\ud800"}', {"a": "\u00e9\ud800"}),
        ("", "{}"),
        (None, {}),
        ("  no json ", "no json"),
    ],
)
def test_values_that_are_the_same_come_together(one, other):
    assert KEYER.call_key("t", one) == KEYER.call_key("t", other)


def test_a_key_belongs_to_its_tool_and_its_project():
    assert KEYER.call_key("a", {}) != KEYER.call_key("b", {})
    assert KEYER.call_key("a", {}) != Keyer(b"another").call_key("a", {})
    assert KEYER.call_key("ab", "c") != KEYER.call_key("a", "bc")


# Similarity


fields = st.dictionaries(
    st.sampled_from(("q", "user", "page")),
    st.lists(
        st.sampled_from(["red", "green", "blue", "one", "two", "three", "7", "42", ".", "-"]), max_size=7
    ).map(" ".join)
    | st.integers(0, 3)
    | st.booleans(),
    min_size=1,
)


@given(one=fields, other=fields, ratio=st.sampled_from((0.5, 0.7, 0.85, 1.0)))
@settings(deadline=None, max_examples=100)
def test_sketches_are_as_alike_as_the_words_they_stand_for(one, other, ratio):
    found = sketch_similarity(sketch(one, KEYER), sketch(other, KEYER), ratio)
    assert found == pytest.approx(alike(one, other, ratio))


@given(one=trees, other=trees, threshold=st.sampled_from((0.5, 0.8)))
@settings(deadline=None)
def test_literal_similarity_is_the_written_formula(one, other, threshold):
    assert literal_similarity(one, other, threshold) == pytest.approx(literally_alike(one, other, threshold))


# Bounds


def hostile_text(number: int) -> str:
    return ("\x00\u6f22\ud800" if number % 3 else "\u6f22\u5b57 ") * 2000 + str(number)


def hostile(number: int, kind: str) -> tuple[str, Any, str, bool]:
    """Tool, arguments, answer, is_error: as large and as odd as they come, equal now and then."""
    turn = number // 2 if kind == "repeating" else number
    return (
        hostile_text(turn % 40) if kind == "long names" else f"tool-{turn % 9}",
        {f"field {field}": hostile_text(turn) for field in range(6)} if kind == "long texts" else {"n": turn},
        hostile_text(turn) if turn % 5 else "",
        turn % 4 == 0,
    )


@pytest.mark.parametrize("kind", ["plain", "long texts", "long names", "repeating"])
@pytest.mark.parametrize("preset", sorted(POLICIES))
def test_a_state_stays_small_whatever_comes_in(preset, kind):
    policy = POLICIES[preset]
    state = fold.new_state()
    biggest = 0
    for number in range(60):
        tool, arguments, answer, is_error = hostile(number, kind)
        run = tool if kind == "long names" and number % 2 else None
        observe(state, Call(number, tool, arguments, float(number), f"call-{number}", run=run), policy)
        observe(state, Result(f"call-{number}", answer, is_error, float(number), number), policy)
        if number % 10 == 0 or number > 55:
            data = snapshot.dump(state)
            biggest = max(biggest, len(data))
            state = snapshot.load(data)
    assert biggest <= (
        AIMED_BYTES if kind == "plain" and preset in ("standard", "observe", "proxy") else PROMISED_BYTES
    )


@pytest.mark.promise("REL-23")
@pytest.mark.parametrize("preset", ["standard", "similarity", "advisory", "proxy"])
def test_what_a_session_remembers_stops_growing(preset):
    """The number of things that a step can look at is bounded, hence its cost, at any length of the session."""
    policy = POLICIES[preset]
    state = fold.new_state()

    def grown(calls: range) -> int:
        for number in calls:
            call = Call(number, f"tool-{number % 50}", {"n": number % 700}, float(number), f"call-{number}")
            observe(state, call, policy)
            observe(state, Result(call.call_id, f"row {number % 900}", number % 7 == 0, call.at), policy)
        return len(snapshot.dump(state))

    early = grown(range(1100))  # `standard` stops at the 1,000th call
    assert grown(range(1100, 3000)) <= early * 1.1
    assert len(state.runs) <= MAX_RUNS
    assert len(state.round_calls) <= MAX_CALL_IDS
    assert len(state.open_calls) <= MAX_CALL_IDS
    for run in state.runs.values():
        assert len(run.records) <= MAX_RECORDS
        assert len(run.seen) <= MAX_RESULTS
        assert len(run.loops) <= MAX_LOOPS
        assert len(run.detectors["repeat"].totals) <= MAX_TOTALS


@pytest.mark.parametrize("depth", [100, 1_100, 50_000])
def test_deep_arguments_and_results_are_judged_like_any_other(depth):
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    text = '{"a":' * depth + "1" + "}" * depth
    for arguments in (deep, text):
        state = fold.new_state()
        for number in range(4):
            last = observe(state, Call(number, "t", arguments, 0.0, f"c{number}"), POLICIES["standard"])
            observe(state, Result(f"c{number}", text, None, 0.0), POLICIES["standard"])
        assert last.verdict.decision == "block"


@pytest.mark.promise("REL-24")
def test_long_runs_of_combining_marks_are_no_way_to_stop_the_engine():
    # Sorting them takes quadratic time: minutes for a megabyte.
    text = "a" + "\u0301\u0327" * 50_000
    assert KEYER.call_key("t", {"a": text}) == KEYER.call_key("t", {"a": text})
    assert KEYER.call_key("t", {"a": text}) != KEYER.call_key("t", {"a": text + "b"})


def test_another_version_and_damaged_bytes_are_rejected():
    good = snapshot.dump(fold.new_state())
    damaged = (b"", b"[]", b"{}", good[:-1], good.replace(b'"v":%d' % snapshot.VERSION, b'"v":999'), b"\xff")
    for data in damaged:
        with pytest.raises(snapshot.SnapshotVersionError):
            snapshot.load(data)


def test_switched_off_nothing_is_written():
    policy = resolve([(SERVER, {"enabled": False})])
    state = fold.new_state()
    for number in range(20):
        step = observe(state, Call(number, "t", {}, 0.0, "c"), policy)
        assert step == Step()
        assert observe(state, Result("c", "x", None, 0.0), policy) == Step()
    assert state == fold.new_state()


def test_the_runs_of_these_tests_hold_no_two_arguments_that_are_one():
    assert len({KEYER.call_key("t", one) for one in ARGUMENTS}) == len(ARGUMENTS)
