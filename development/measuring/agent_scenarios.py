"""Plays situations from the test suites of other agents under the defaults; compares verdicts with the ideal ones.

The ideal is `fire` (at least one warning or report), `quiet` (no reaction), `no_block` (no blocked call) or `either`. A
scenario with `settings` is played under these instead, and `endings` lists each blocked call that ends softer, with its
position. It may name the detector that has to fire (`by`) and the index of the first reaction (`first_at`). Entries
with a `session` belong to a family; `parent` names the session that started theirs, and without it theirs is at the
top.

Entries whose tool begins with `@` are no calls: `@message` is a message of the agent itself, `@user` one of the user,
both with their `text`, `@condense` a condensed context, `@end` the end of the run, `@heartbeat` says that the call with
the index `call` still runs, and `@look` looks for silence at its moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from detection.engine import fold, silence
from detection.engine.calls import Call, CallHeartbeat, End, Finding, Message, Result, Step
from detection.engine.family import FamilyState
from detection.engine.identity import Keyer
from detection.engine.memory import BLOCKING, State
from detection.engine.policy import ENVIRONMENT, Policy, resolve, validate
from detection.engine.results import as_text
from detection.engine.silence import Silence
from development.measuring.differences import Played

MESSAGES: Mapping[str, Literal["user", "continue"]] = {"user_message": "user", "user_continue": "continue"}
_BEFORE = frozenset((*MESSAGES, "stream_retry", "text_part"))
_IDEALS = frozenset(("fire", "quiet", "no_block", "either"))
_EVENTS: Mapping[str, Literal["user", "assistant", "condense"]] = {
    "@message": "assistant", "@user": "user", "@condense": "condense",
}  # fmt: skip
_NO_CALLS = frozenset((*_EVENTS, "@look", "@heartbeat", "@end"))


def play(scenario: dict[str, Any], policy: Policy | None = None) -> Played:
    """Play one scenario under a policy, the preset `standard` by default."""
    settings = validate(ENVIRONMENT, scenario.get("settings", {}))
    if any(_unknown(scenario)):
        return compared(scenario, [])
    player = _Player(policy or resolve([(ENVIRONMENT, settings)]))
    for index, entry in enumerate(scenario["calls"]):
        player.play(index, entry)
    return compared(scenario, player.reactions)


def compared(scenario: dict[str, Any], reactions: list[dict[str, Any]]) -> Played:
    """Return a played scenario with its difference; a scenario with an unknown part fails."""
    unknown = tuple(_unknown(scenario))
    if unknown:
        return Played(scenario["id"], {}, unknown)
    problem = _problem(scenario, reactions)
    got = {"ideal": scenario["ideal"], "acted": reactions}
    return Played(scenario["id"], got, (problem,) if problem else ())


class _Player:
    """Plays the entries of one scenario in order, and notes the reactions."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._keyer, self._state = policy, Keyer(b"scenario"), fold.new_state()
        self._states = {"": self._state}
        self._used: dict[str, tuple[int, int, float]] = {}
        self._family = FamilyState("top")
        self._levels: dict[str, int] = {}
        self._sent: list[Call] = []
        self._last_at = 0.0
        self.reactions: list[dict[str, Any]] = []

    def play(self, index: int, entry: dict[str, Any]) -> None:
        self._state = self._state_of(entry)
        at, before = float(entry.get("t", index)), str(entry.get("before", ""))
        if before in MESSAGES:
            self._hear(Message(at, MESSAGES[before], index))
        if before == "stream_retry":
            for call in [one for one in self._sent if one.round == name(entry.get("round"))]:
                self._note(index, fold.observe(self._state, call, self._policy, self._keyer))
        if entry["tool"] == "@look":
            self._look(index, at)
            return
        if entry["tool"].startswith("@"):
            self._play_event(index, at, entry)
        else:
            self._play_call(index, at, entry)
        self._last_at = at

    def _state_of(self, entry: dict[str, Any]) -> State:
        """Return the state of the session of an entry, with its family."""
        session = str(entry.get("session", ""))
        state = self._states.setdefault(session, fold.new_state())
        if session:
            calls, tokens, cost = self._used.get(session, (0, 0, 0.0))
            usage = entry.get("usage", {})
            is_call = not entry["tool"].startswith("@")
            used = calls + is_call, tokens + usage.get("tokens", 0), cost + usage.get("cost_usd", 0.0)
            self._used[session] = used
            parent = str(entry.get("parent", ""))
            level = self._levels[session] = self._levels.get(parent, 0) + 1 if parent else 0
            is_member = self._family.enter(session, parent, session, used, level)
            state.family = self._family if is_member else None
        return state

    def _play_event(self, index: int, at: float, entry: dict[str, Any]) -> None:
        tool, args = entry["tool"], entry.get("args", {})
        if tool == "@heartbeat":
            fold.observe(self._state, CallHeartbeat(at, entry["call"]), self._policy, self._keyer)
        elif tool == "@end":
            end = End(at, "completed", index, name(entry.get("run")))
            fold.observe(self._state, end, self._policy, self._keyer)
        else:
            self._hear(Message(at, _EVENTS[tool], index, str(args.get("text", ""))))

    def _hear(self, message: Message) -> None:
        step = fold.observe(self._state, message, self._policy, self._keyer)
        self._note(message.seq, step)

    def _play_call(self, index: int, at: float, entry: dict[str, Any]) -> None:
        call = Call(
            seq=index,
            tool=entry["tool"],
            arguments=entry.get("args"),
            cwd=entry.get("cwd", ""),
            at=at,
            call_id=f"call-{index}",
            round=name(entry.get("round")),
            run=name(entry.get("run")),
            agent=entry.get("agent", ""),
            **entry.get("usage", {}),
        )
        self._sent.append(call)
        self._note(index, fold.observe(self._state, call, self._policy, self._keyer))
        if "result" in entry:
            result = Result(call.call_id, as_text(entry["result"]), entry.get("is_error"), at, index)
            self._note(index, fold.observe(self._state, result, self._policy, self._keyer))

    def _look(self, index: int, at: float) -> None:
        moment = Silence(at, self._last_at, reports_results=False)
        findings, _ = silence.observe_silence(self._state, moment, self._policy)
        self.reactions += [_reaction(index, "report", finding) for finding in findings]

    def _note(self, index: int, step: Step) -> None:
        verdict = step.verdict
        if verdict.decision == "allow" or step.duplicate or verdict.finding is None:
            return
        reaction = _reaction(index, verdict.decision, verdict.finding)
        if verdict.ending is not None:
            pause = {"pause_seconds": verdict.pause_seconds} if verdict.pause_seconds else {}
            reuses = {"reuses": verdict.reuses} if verdict.reuses is not None else {}
            reaction["ending"] = {"ending": verdict.ending, **pause, **reuses}
        self.reactions.append(reaction)


def _problem(scenario: dict[str, Any], reactions: list[dict[str, Any]]) -> str:
    """Return how the result differs from the scenario's expectation, or an empty text."""
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


def name(given: Any) -> str | None:
    """Return the name of a round or a run, which a scenario may give as a number."""
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


def _reaction(index: int, decision: str, finding: Finding) -> dict[str, Any]:
    return {
        "i": index,
        "decision": decision,
        "kind": finding.kind,
        "count": finding.count,
        "results": finding.results,
    }
