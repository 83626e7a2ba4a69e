"""What every detector keeps to. One that is registered is tested here without a further line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine import fold, snapshot
from detection.engine.calls import Call, Result, Step
from detection.engine.detectors import DETECTORS
from detection.engine.detectors.base import MAX_EVIDENCE, Detector
from detection.engine.fields import FIELDS, KINDS
from detection.engine.identity import Keyer
from detection.engine.messages import message
from detection.engine.policy import SERVER, Policy, relevant_fields, resolve
from tests.engine.twins.history import Observation
from tests.engine.twins.runs import runs

KEYER = Keyer(b"conformance")
MAX_OWN_BYTES = 16 * 1024
METHODS = {
    "similar": [{"similar_method": "sketch"}, {"similar_method": "literal"}],
    "outcome": [{"outcome_method": name} for name in ("fingerprint", "literal", "literal_masked")],
    "repeat": [
        {"repeat_scope": scope, "result_aware": aware, "ttl_from": ttl_from}
        for scope in ("consecutive", "window", "run")
        for aware in (True, False)
        for ttl_from in ("previous", "entry")
    ],
}
CASES = [
    pytest.param(detector, values, id=f"{detector.kind}-{'-'.join(map(str, values.values())) or 'standard'}")
    for detector in DETECTORS
    for values in METHODS.get(detector.kind, [{}])
]
each_detector = pytest.mark.parametrize(("detector", "values"), CASES)
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def only(detector: Detector, **values: Any) -> Policy:
    """`standard` with this detector alone."""
    switches = {one.switch: one is detector for one in DETECTORS}
    return resolve([(SERVER, {**switches, "budget_soft_rounds": False, **values})])


def observe(state: Any, one: Observation, policy: Policy) -> Step:
    if isinstance(one, Call):
        return fold.observe_call(state, one, policy, KEYER)
    assert isinstance(one, Result)
    return fold.observe_result(state, one, policy, KEYER)


def stuck(calls: int) -> list[Observation]:
    """The plainest loop there is: one call, one answer."""
    run: list[Observation] = []
    for number in range(calls):
        run.append(Call(number, "lookup", {"q": "reset password"}, float(number), f"call-{number}"))
        run.append(Result(f"call-{number}", "denied for ann", True, float(number), number))
    return run


def test_names_switches_and_settings_belong_together():
    assert [detector.kind for detector in DETECTORS] == list(KINDS)
    for detector in DETECTORS:
        assert FIELDS[detector.switch].type == "bool"
        assert FIELDS[detector.switch].group == detector.kind
        assert ("mode" if detector.kind == "repeat" else f"{detector.kind}_ladder") in FIELDS
        assert relevant_fields(detector.kind)
        assert type(detector).__doc__
        assert __import__(type(detector).__module__, fromlist=["x"]).__doc__


@each_detector
@few
@given(run=runs())
def test_it_is_deterministic_and_keeps_json(detector, values, run):
    policy = only(detector, **values)
    one, other = fold.new_state(), fold.new_state()
    for place in run:
        assert observe(one, place, policy) == observe(other, place, policy)
        for lane in one.lanes.values():
            own = lane.own.get(detector.kind, {})
            assert json.loads(json.dumps(own)) == own
        other = snapshot.load(snapshot.dump(other))


@each_detector
def test_it_lets_work_alone_that_always_brings_something_new(detector, values):
    policy = only(detector, **values)
    state = fold.new_state()
    words = [
        "amber",
        "birch",
        "cedar",
        "delta",
        "ember",
        "fjord",
        "grove",
        "heron",
        "inlet",
        "jetty",
        "knoll",
        "larch",
        "mango",
        "north",
        "olive",
        "pearl",
    ]
    for number in range(60):
        name = f"{words[number % 16]}{words[number * 7 % 13]}{number}"
        call = Call(number, f"tool_{number % 7}", {name: f"{name} {number}"}, float(number), f"call-{number}")
        assert not observe(state, call, policy).verdict.findings
        answer = Result(
            call.call_id, f"{name} has {words[number * 5 % 16]} {number * 37}", False, call.at, number
        )
        assert not observe(state, answer, policy).verdict.findings


@each_detector
def test_switched_off_it_is_silent(detector, values):
    policy = only(detector, **values, **{detector.switch: False})
    state = fold.new_state()
    for one in stuck(60):
        assert not observe(state, one, policy).verdict.findings
    assert not any(lane.own for lane in state.lanes.values())


ODD: dict[str, str | None] = {
    "none": None,
    "empty": "",
    "large": "lorem ipsum " * 5_000,
    "binary": bytes(range(256)).decode("latin-1") * 20,
    "surrogates": "\ud800\udfff" * 50,
    "broken json": '{"a": [1, 2',
    "deep json": "[" * 2000 + "]" * 2000,
    "numbers": "1e999 " + "9" * 5000,
    "nul": "\x00",
    "other scripts": "\u0928\u092e\u0938\u094d\u0924\u0947 \U0001f9ea \u202e" * 100,
}


@each_detector
@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_it_takes_any_answer(detector, values, content):
    policy = only(detector, **values)
    state = fold.new_state()
    for number in range(6):
        call = Call(number, "lookup", {"q": content or "", "n": number}, float(number), f"call-{number}")
        assert not observe(state, call, policy).faults
        assert not observe(
            state, Result(call.call_id, content, (None, False, True)[number % 3], call.at, number), policy
        ).faults
        state = snapshot.load(snapshot.dump(state))


@each_detector
def test_what_it_keeps_is_bounded(detector, values):
    policy = only(detector, **values)
    state = fold.new_state()
    for number in range(400):
        call = Call(number, f"tool-{number % 40}", {"n": number % 300}, float(number), f"call-{number}")
        observe(state, call, policy)
        observe(
            state,
            Result(call.call_id, f"row {number % 250} of \u6f22" * 90, number % 6 == 0, call.at),
            policy,
        )
    for lane in state.lanes.values():
        assert len(json.dumps(lane.own.get(detector.kind, {}))) <= MAX_OWN_BYTES


@each_detector
def test_its_findings_can_be_explained(detector, values):
    policy = only(detector, **values, budget_max_calls=10, cycle_min_laps=2)
    seen = 0
    state = fold.new_state()
    run: list[Observation] = []
    for number in range(60):
        letter = (
            "ab"[number % 2] if detector.kind == "cycle" else "ab"[number % 2] * (detector.kind == "similar")
        )
        run.append(
            Call(
                number,
                "lookup",
                {"q": f"please help me reset my very old password {letter}"},
                float(number),
                f"call-{number}",
            )
        )
        run.append(Result(f"call-{number}", "denied", True, float(number), number))
    for one in run:
        verdict = observe(state, one, policy).verdict
        for finding in verdict.findings:
            seen += 1
            assert finding.kind == detector.kind
            assert finding.count > 0
            assert finding.limit > 0
            assert len(finding.seqs) <= MAX_EVIDENCE
            assert set(finding.seqs) <= set(range(60))
            assert finding.detail["tool"] == "lookup"
            for rung in ("warn", "chance", "block", "ask", "judge", "stop"):
                text = message(rung, finding, policy)
                assert "lookup" in text or finding.kind == "budget"
                assert "password" not in text
                assert text.isascii()
    assert seen, "this run should be a loop to every detector"


def test_all_names_of_the_settings_are_reached_by_some_kind_or_by_all():
    grouped = {name for kind in KINDS for name in relevant_fields(kind)}
    general = {name for name, field in FIELDS.items() if field.group in ("general", "reactions")}
    assert set(FIELDS) == grouped | general


@given(count=st.integers(1, 10**6), limit=st.integers(1, 10**6))
@few
def test_no_text_is_ever_empty(count, limit):
    from detection.engine.calls import Finding

    for detector in DETECTORS:
        assert message("stop", Finding(detector.kind, count, limit, detail={"tool": "t"}), resolve([]))
