"""Plays situations known from other agents' test suites, under our own defaults, and compares with the ideal.

`fire` asks for at least a warning somewhere, `quiet` for nothing, `no_block` for no refusal, `either` for nothing.
"""

from __future__ import annotations

from typing import Any

from detection.engine import fold
from detection.engine.calls import Call, Message, Result, Step
from detection.engine.identity import Keyer
from detection.engine.policy import Policy, resolve
from detection.engine.results import as_text
from detection.measuring.differences import Played

_MESSAGES = {"user_message": "user", "user_continue": "continue"}
_REFUSING = ("block", "hold", "stop")


def play(scenario: dict[str, Any], policy: Policy | None = None) -> Played:
    """Play one scenario under a policy, the untouched `standard` preset by default."""
    policy = policy or resolve([])
    state, keyer = fold.new_state(), Keyer(b"scenario")
    acted: list[dict[str, Any]] = []
    for index, entry in enumerate(scenario["calls"]):
        at = float(entry.get("t", index))
        before = entry.get("before")
        if before in _MESSAGES:
            fold.observe_message(state, Message(at, _MESSAGES[before], index), policy)  # type: ignore[arg-type]
        if entry["tool"].startswith("@"):
            if entry["tool"] == "@condense":
                fold.observe_message(state, Message(at, "condense", index), policy)
            continue
        call = Call(
            seq=index,
            tool=entry["tool"],
            arguments=entry.get("args"),
            at=at,
            call_id=f"call-{index}",
            round=None if entry.get("round") is None else str(entry["round"]),
            run=None if entry.get("run") is None else str(entry["run"]),
        )
        _note(acted, index, fold.observe_call(state, call, policy, keyer))
        if "result" in entry:
            result = Result(call.call_id, as_text(entry["result"]), entry.get("is_error"), at, index)
            _note(acted, index, fold.observe_result(state, result, policy, keyer))
    ideal = scenario["ideal"]
    refused = [one for one in acted if one["decision"] in _REFUSING]
    problem = ""
    if ideal == "fire" and not acted:
        problem = "expected at least a warning, got nothing"
    elif ideal == "quiet" and acted:
        problem = f"expected nothing, got {acted[0]}"
    elif ideal == "no_block" and refused:
        problem = f"expected no refusal, got {refused[0]}"
    return Played(scenario["id"], {"ideal": ideal, "acted": acted}, (problem,) if problem else ())


def _note(acted: list[dict[str, Any]], index: int, step: Step) -> None:
    verdict = step.verdict
    if verdict.decision == "allow" or step.duplicate or verdict.finding is None:
        return
    acted.append(
        {
            "i": index,
            "decision": verdict.decision,
            "kind": verdict.finding.kind,
            "count": verdict.finding.count,
            "results": verdict.finding.results,
        }
    )
