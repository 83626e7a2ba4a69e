"""What every detector keeps to. One that is registered is tested here without a further line."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine import fold, snapshot
from detection.engine.calls import Call, Finding, Message, Result
from detection.engine.detectors import DETECTORS, KINDS, BaseDetector
from detection.engine.detectors.base import MAX_EVIDENCE
from detection.engine.family import FamilyState
from detection.engine.fields import FIELDS
from detection.engine.messages import TEMPLATES, message
from detection.engine.policy import PRESETS, SERVER, Policy, relevant_fields, resolve
from detection.engine.silence import Silence, observe_silence
from tests.engine.play import KEYER, as_stored, observe
from tests.engine.twins.history import Observation
from tests.engine.twins.runs import runs

MAX_OWN_BYTES = 16 * 1024
METHODS: dict[str, list[dict[str, Any]]] = {
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


def only(detector: BaseDetector, **values: Any) -> Policy:
    """`standard` with this detector alone."""
    switches = {one.switch: one is detector for one in DETECTORS}
    return resolve([(SERVER, {**switches, "budget_soft_rounds": False, **values})])


def stuck(calls: int) -> list[Observation]:
    """The plainest loop there is: one call, one answer."""
    run: list[Observation] = []
    for number in range(calls):
        run.append(Call(number, "lookup", {"q": "reset password"}, float(number), f"call-{number}"))
        run.append(Result(f"call-{number}", "denied for ann", True, float(number), number))
    return run


def test_names_switches_and_settings_belong_together():
    assert len(set(KINDS)) == len(DETECTORS)
    for detector in DETECTORS:
        assert re.fullmatch("[a-z][a-z_]{1,15}", detector.kind), "the database keeps sixteen characters"
        assert type(detector).__module__.endswith(f".{detector.kind}")
        assert FIELDS[detector.switch].type == "bool"
        assert FIELDS[detector.switch].group == detector.kind
        assert detector.is_silence or FIELDS[detector.ladder].type == "ladder"
        assert detector.limit_setting in FIELDS
        assert set(detector.key_settings) <= set(relevant_fields(detector.kind))
        assert all(FIELDS[field.name].group == detector.kind for field in detector.settings)
        assert type(detector).__doc__
        assert sys.modules[type(detector).__module__].__doc__


def test_no_setting_is_declared_twice():
    names = [field.name for detector in DETECTORS for field in detector.settings]
    assert len(set(names)) == len(names)
    labels = [FIELDS[name].label for name in FIELDS]
    assert len(set(labels)) == len(labels), "labels are shown without their group, too"


@each_detector
@few
@given(run=runs())
def test_it_is_deterministic_and_keeps_json(detector, values, run):
    policy = only(detector, **values)
    one, other = fold.new_state(), fold.new_state()
    for place in run:
        assert observe(one, place, policy) == observe(other, place, policy)
        other = snapshot.load(snapshot.dump(other))
        assert [run.detectors for run in other.counted] == [run.detectors for run in one.counted]


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
    assert not any(run.detectors for run in state.counted)


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
    for run in state.counted:
        assert len(snapshot.packed(run.detectors.get(detector.kind))) <= MAX_OWN_BYTES


@pytest.mark.parametrize(
    ("detector", "name"),
    [pytest.param(detector, name, id=name) for detector in DETECTORS for name in detector.examples],
)
def test_its_examples_fire_as_documented(detector, name):
    example = detector.examples[name]
    policy, family = only(detector, **(example.values or {})), FamilyState("parent")
    states: dict[Any, Any] = {}
    findings: list[Any] = []
    for number, one in enumerate(example.calls):
        state = states.setdefault(one.session, fold.new_state())
        if one.session:
            family.enter(one.session, "parent", one.session, (state.whole.ordinal + 1, 0, 0.0))
            state.family = family
        if not one.tool:
            said = Message(float(number), "assistant", number, str(one.arguments))
            findings += fold.observe_message(state, said, policy, KEYER).verdict.findings
            continue
        call = Call(
            number, one.tool, as_stored(one.arguments), float(number), f"call-{number}", f"round-{number}",
            one.run, agent=one.agent,
        )  # fmt: skip
        findings += observe(state, call, policy).verdict.findings
        if one.result is not None:
            result = Result(call.call_id, one.result, one.is_error, call.at, number)
            findings += observe(state, result, policy).verdict.findings
    if example.silent_seconds:
        last = len(example.calls) - 1
        findings += observe_silence(state, Silence(last + example.silent_seconds, last, False), policy)[0]
    assert bool(findings) == example.fires
    for finding in findings:
        assert finding.kind == detector.kind
        assert finding.count > 0
        assert finding.limit > 0
        assert 0 < len(finding.seqs) <= MAX_EVIDENCE
        assert list(finding.seqs) == sorted(finding.seqs)
        assert set(finding.seqs) <= set(range(len(example.calls)))
        assert finding.detail["tool"] in {one.tool for one in example.calls}


@each_detector
def test_its_messages_name_the_loop_and_never_quote_arguments(detector, values):
    policy = only(detector, **values)
    finding = Finding(detector.kind, 5, 4, results="errors", detail={"tool": "lookup"})
    assert detector.describe(finding).isascii()
    for rung in TEMPLATES:
        text = message(rung, finding, policy)
        assert detector.describe(finding)[1:] in text
        assert "$" not in text
        assert text.isascii()


def test_every_detector_declares_its_messages():
    for detector in DETECTORS:
        for text in (detector.label, detector.headline, detector.unit, detector.advice, detector.message):
            assert text.strip()
        assert detector.sentence.count("*") % 2 == 0
        assert any(name in detector.sentence for name in ("$count", "$calls", "$used", "$time"))
        assert not detector.sentence.endswith(".")
        assert detector.advice.endswith(".")


def test_every_detector_declares_an_example_of_its_name_that_fires():
    for detector in DETECTORS:
        assert next(iter(detector.examples)) == detector.kind
        assert detector.examples[detector.kind].fires
        assert all(
            name == detector.kind or name.startswith(f"{detector.kind}-") for name in detector.examples
        )


def test_every_detector_names_the_presets_that_turn_it_on():
    for detector in DETECTORS:
        assert set(detector.presets) <= set(PRESETS) - {"observe", "strict", "lenient"}, detector.kind
        for name, values in PRESETS.items():
            is_on = ("standard" if name in ("observe", "strict", "lenient") else name) in detector.presets
            assert values[detector.switch] is is_on, (detector.kind, name)


def test_all_names_of_the_settings_are_reached_by_some_kind_or_by_all():
    grouped = {name for kind in KINDS for name in relevant_fields(kind)}
    general = {name for name, field in FIELDS.items() if field.group in ("general", "reactions")}
    assert set(FIELDS) == grouped | general


@given(count=st.integers(1, 10**6), limit=st.integers(1, 10**6))
@few
def test_no_message_is_empty(count, limit):
    for detector in DETECTORS:
        assert message("stop", Finding(detector.kind, count, limit, detail={"tool": "t"}), resolve([]))
