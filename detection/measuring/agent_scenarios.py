"""Plays situations from the test suites of other agents under the defaults, and compares the verdicts with the ideal ones.

The ideal is `fire` (at least one warning), `quiet` (no reaction), `no_block` (no blocked call) or `either`. A scenario with
`settings` is played under these instead, and `endings` lists each blocked call that ends softer, with its position.
It may name the detector that has to fire (`by`) and the index of the first reaction (`first_at`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from detection.engine import fold
from detection.engine.calls import Call, Message, Result, Step
from detection.engine.identity import Keyer
from detection.engine.memory import BLOCKING
from detection.engine.policy import ENVIRONMENT, Policy, resolve, validate
from detection.engine.results import as_text
from detection.measuring.differences import Played

_MESSAGES: Mapping[str, Literal["user", "continue"]] = {"user_message": "user", "user_continue": "continue"}
_BEFORE = frozenset((*_MESSAGES, "stream_retry", "text_part"))
_IDEALS = frozenset(("fire", "quiet", "no_block", "either"))
# A message of the agent itself is no observation: LoopGuard watches calls.
_NO_CALLS = frozenset(("@message", "@condense"))


def play(scenario: dict[str, Any], policy: Policy | None = None) -> Played:
    """Play one scenario under a policy, the preset `standard` by default."""
    settings = validate(ENVIRONMENT, scenario.get("settings", {}))
    policy = policy or resolve([(ENVIRONMENT, settings)])
    unknown = [*_unknown(scenario)]
    if unknown:
        return Played(scenario["id"], {}, tuple(unknown))
    state, keyer = fold.new_state(), Keyer(b"scenario")
    sent: list[Call] = []
    reactions: list[dict[str, Any]] = []
    for index, entry in enumerate(scenario["calls"]):
        at = float(entry.get("t", index))
        before = entry.get("before")
        if before in _MESSAGES:
            fold.observe_message(state, Message(at, _MESSAGES[before], index), policy)
        if before == "stream_retry":
            for call in [one for one in sent if one.round == _name(entry.get("round"))]:
                _note(reactions, index, fold.observe_call(state, call, policy, keyer))
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
            round=_name(entry.get("round")),
            run=_name(entry.get("run")),
            **entry.get("usage", {}),
        )
        sent.append(call)
        _note(reactions, index, fold.observe_call(state, call, policy, keyer))
        if "result" in entry:
            result = Result(call.call_id, as_text(entry["result"]), entry.get("is_error"), at, index)
            _note(reactions, index, fold.observe_result(state, result, policy, keyer))
    ideal, problem = scenario["ideal"], _problem(scenario, reactions)
    return Played(scenario["id"], {"ideal": ideal, "acted": reactions}, (problem,) if problem else ())


def _problem(scenario: dict[str, Any], reactions: list[dict[str, Any]]) -> str:
    """Return what differs from what the scenario expects, or an empty text."""
    ideal = scenario["ideal"]
    blocked = [one for one in reactions if one["decision"] in BLOCKING]
    endings = [{"i": one["i"], **one["ending"]} for one in reactions if "ending" in one]
    if ideal == "fire" and not reactions:
        return "expected at least a warning, got nothing"
    if ideal == "quiet" and reactions:
        return f"expected nothing, got {reactions[0]}"
    if ideal == "no_block" and blocked:
        return f"expected no blocked call, got {blocked[0]}"
    if endings != scenario.get("endings", endings):
        return f"expected the endings {scenario['endings']}, got {endings}"
    if reactions and reactions[0]["kind"] != scenario.get("by", reactions[0]["kind"]):
        return f"expected {scenario['by']}, got {reactions[0]}"
    if reactions and reactions[0]["i"] != scenario.get("first_at", reactions[0]["i"]):
        return f"expected the first reaction at {scenario['first_at']}, got {reactions[0]}"
    return ""


def _name(given: Any) -> str | None:
    return None if given is None else str(given)


def _unknown(scenario: dict[str, Any]) -> Iterator[str]:
    """Return one line per part of the scenario that this module cannot play."""
    if scenario["ideal"] not in _IDEALS:
        yield f"unknown ideal {scenario['ideal']!r}"
    for entry in scenario["calls"]:
        if entry.get("before") not in (None, *_BEFORE):
            yield f"unknown event {entry['before']!r} before a call"
        if entry["tool"].startswith("@") and entry["tool"] not in _NO_CALLS:
            yield f"unknown pseudo tool {entry['tool']!r}"


def _note(reactions: list[dict[str, Any]], index: int, step: Step) -> None:
    verdict = step.verdict
    if verdict.decision == "allow" or step.duplicate or verdict.finding is None:
        return
    reaction: dict[str, Any] = {
        "i": index,
        "decision": verdict.decision,
        "kind": verdict.finding.kind,
        "count": verdict.finding.count,
        "results": verdict.finding.results,
    }
    if verdict.ending is not None:
        pause = {"pause_seconds": verdict.pause_seconds} if verdict.pause_seconds else {}
        reuses = {"reuses": verdict.reuses} if verdict.reuses is not None else {}
        reaction["ending"] = {"ending": verdict.ending, **pause, **reuses}
    reactions.append(reaction)
