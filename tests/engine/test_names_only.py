"""Texts about calls that were compared by the names of their tools alone: nothing is known of their arguments."""

from __future__ import annotations

import re
from string import Template

import pytest

from detection.engine import Guard, fold
from detection.engine.calls import Call, Finding, FindingDetail, Result
from detection.engine.detectors import DETECTORS, detector_for
from detection.engine.detectors.base import NAMES_ONLY, identical, placeholders
from detection.engine.identity import Keyer
from detection.engine.loop_identity import ANY_ARGUMENTS, identify
from detection.engine.messages import TEMPLATES, describe, message
from detection.engine.policy import SESSION, ToolRule, resolve
from detection.engine.tool_classes import TOOL_CLASSES

# `similar` compares the arguments themselves, whatever the identity.
CLAIM = re.compile(
    r"(?i)(?<!nearly )identical (?:arguments|parameters|calls?)|same (?:arguments|parameters|calls?\b|change)"
    r"|equal arguments|change the inputs|send it again"
)
OF_CALLS = [one for one in DETECTORS if one.is_of_calls and not one.judges_texts]
RESULTS = ("unknown", "equal", "errors", "empty", "changing", "alike")
SCOPES = ("consecutive", "window", "run", "scattered", "session", "")


def findings(detector, *, names_only):
    """Every finding of a detector that differs in its words."""
    for results in RESULTS:
        for scope in SCOPES:
            for window in (None, 10):
                detail: FindingDetail = {
                    "tool": "search",
                    "scope": scope,
                    "sessions": 3,
                    "said": "said",
                    "agents": "a → b",
                }
                yield Finding(
                    detector.kind, 4, 4, 12, window, results=results, period=2,
                    detail=detail | ({NAMES_ONLY: True} if names_only else FindingDetail()),
                )  # fmt: skip


def texts(detector, *, names_only):
    """All texts of a detector: for agents on each rung and class of tools, for people, and of its patterns."""
    policies = [resolve([(SESSION, {})], [ToolRule("search", tool_class=name)]) for name in TOOL_CLASSES]
    for finding in findings(detector, names_only=names_only):
        yield describe(finding)
        values = placeholders("search", 4, 4, 2, finding.results, finding.detail)
        yield Template(detector.sentence).safe_substitute(
            values, span="", arguments=identical(names_only=names_only)
        )
        for policy in policies:
            for rung in TEMPLATES:
                if rung in ("skipped", "expired", "expired_stop", "denied", "delay", "reuse"):
                    continue
                for following in ("block", "stop", ""):
                    yield message(rung, finding, policy.for_tool("search"), next_rung=following)
    yield Template(detector.recurrence).safe_substitute(
        tool="search", detail="", identical=identical(names_only=names_only)
    )
    yield detector.unit


@pytest.mark.parametrize("detector", OF_CALLS, ids=lambda one: one.kind)
def test_no_text_claims_anything_about_arguments(detector):
    claims = {text for text in texts(detector, names_only=True) if CLAIM.search(text)}
    # What `chance` suggests suits loops of different calls.
    assert {text for text in claims if detector.is_exact or not re.search("Change the inputs", text)} == set()


def test_texts_about_identical_arguments_still_say_so():
    for kind in ("repeat", "session_repeat"):
        said = "\n".join(texts(detector_for(kind), names_only=False))
        assert "identical arguments" in said
        assert "The same call" in said
    assert "identical parameters" in "\n".join(texts(detector_for("repeat"), names_only=False))


# Through the engine, with calls that have nothing but their tool in common

PRESETS = (
    "standard",
    "proxy",
    "balanced",
    "conservative",
    "aggressive",
    "similarity",
    "advisory",
    "interactive",
)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("tool", ["search_web", "edit_file", "get_status", "bash"])
@pytest.mark.parametrize("lap", [1, 2])
@pytest.mark.parametrize("result", ["0 hits", "denied"])
def test_what_an_agent_reads_claims_nothing_about_arguments(preset, tool, lap, result):
    guard = Guard(preset, identity="tool", similar_enabled=False)
    seen = []
    for number in range(24):
        name = tool if number % lap == 0 else f"{tool}_{number % lap}"
        verdicts = [
            guard.call(name, {"q": f"{number} {number * 37}"}, call_id=f"c{number}", at=float(number))
        ]
        if result is not None and verdicts[0].decision in ("allow", "warn"):
            verdicts.append(guard.result(f"c{number}", result, result == "denied", at=number + 0.5))
        for verdict in verdicts:
            assert verdict.reuses is None
            for finding in verdict.findings:
                assert finding.detail[NAMES_ONLY] or detector_for(finding.kind).is_run_limit
                seen.append(describe(finding))
            seen.append(verdict.message)
    # Other presets let pass what moves on.
    assert any(seen) or preset not in ("proxy", "balanced", "aggressive", "advisory") or lap > 1
    assert [text for text in seen if CLAIM.search(text) and "Reflect" not in text] == []


def test_a_resent_call_has_the_same_words():
    guard = Guard("proxy", identity="tool")
    first = [guard.call("t", {"q": number}, call_id=f"c{number}", at=float(number)) for number in range(4)][
        -1
    ]
    again = guard.call("t", {"q": 3}, call_id="c3", at=4.0)

    assert first.message == again.message
    assert "with any arguments" in first.message


def test_a_rule_of_one_tool_changes_the_words_about_this_tool_alone():
    rules = [ToolRule("by_name", values={"identity": "tool"})]
    guard = Guard("proxy", rules=rules)
    told = {
        tool: [guard.call(tool, {"q": 1}, at=float(number)) for number in range(4)][-1].message
        for tool in ("by_name", "other")
    }

    assert "with any arguments" in told["by_name"]
    assert "with identical arguments" in told["other"]


@pytest.mark.parametrize(("identity", "reuses"), [("canonical", 1), ("tool", None)])
def test_an_answer_to_other_arguments_is_never_reused(identity, reuses):
    values = {
        "preset": "standard",
        "mode": ("reuse",),
        "identity": identity,
        "max_repeats": 3,
        "repeat_warn_at": 0,
    }
    policy, state, keyer = resolve([(SESSION, values)]), fold.new_state(), Keyer()
    for number in range(1, 4):
        arguments = {"path": "a" if identity == "canonical" else f"{number}"}
        step = fold.observe_call(
            state, Call(number, "read_file", arguments, float(number), f"c{number}"), policy, keyer
        )
        if number < 3:
            fold.observe_result(
                state, Result(f"c{number}", "text", False, number + 0.5, number), policy, keyer
            )

    assert (step.verdict.reuses is None) == (reuses is None)


def test_patterns_of_names_are_apart_and_belong_together():
    plain = identify("repeat", "search", "equal", {"tool": "search"}, ())
    by_name = identify("repeat", "search", "equal", {"tool": "search", NAMES_ONLY: True}, ())
    different = identify("outcome", "search", "equal", {"tool": "search", NAMES_ONLY: True}, ())

    assert plain.key != by_name.key
    assert (plain.detail, by_name.detail, different.detail) == ("", ANY_ARGUMENTS, "")
    assert not by_name.stands_alone
    assert identify(
        "outage", "search", "errors", {"trouble": "rate limit", NAMES_ONLY: True}, ()
    ).stands_alone
