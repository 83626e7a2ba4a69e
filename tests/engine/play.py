"""Plays short scripts through the engine: one letter or tuple per call, one answer per line of the test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from detection.engine import fold
from detection.engine.calls import Call, Message, Result, Step, Verdict
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import ENVIRONMENT, Policy, ToolRule, resolve, validate

KEYER = Keyer(b"a secret of the tests")


def observe(state: State, one: Call | Result | Message, policy: Policy, keyer: Keyer = KEYER) -> Step:
    if isinstance(one, Call):
        return fold.observe_call(state, one, policy, keyer)
    if isinstance(one, Result):
        return fold.observe_result(state, one, policy, keyer)
    return fold.observe_message(state, one, policy, keyer)


def as_stored(arguments: Any) -> Any:
    """Arguments as the services store them and hand them to the engine: JSON as text."""
    return json.dumps(arguments) if isinstance(arguments, dict | list) else arguments


class Player:
    """A session whose calls are named by a test; calls are two seconds apart by default."""

    def __init__(self, preset: str = "standard", rules: Iterable[ToolRule] = (), **values: Any) -> None:
        given = validate(ENVIRONMENT, {"preset": preset, **values})
        self.policy: Policy = resolve([(ENVIRONMENT, given)], tuple(rules))
        self.state: State = fold.new_state()
        self.seq = -1
        self.now = 0.0

    def call(
        self,
        tool: str = "search",
        arguments: Any = None,
        *,
        gap: float = 2.0,
        call_id: str | None = None,
        **more: Any,
    ) -> Step:
        self.seq += 1
        self.now += gap
        self.last_id = call_id or f"call-{self.seq}"
        call = Call(self.seq, tool, as_stored(arguments), self.now, self.last_id, **more)
        return fold.observe_call(self.state, call, self.policy, KEYER)

    def answer(
        self, content: str | None, *, is_error: bool | None = False, call_id: str | None = None
    ) -> Step:
        result = Result(call_id or self.last_id, content, is_error, self.now, self.seq)
        return fold.observe_result(self.state, result, self.policy, KEYER)

    def step(
        self, tool: str, arguments: Any, content: str | None, *, is_error: bool | None = False, **more: Any
    ) -> Verdict:
        """A call and its answer; the stricter of the two verdicts."""
        before = self.call(tool, arguments, **more).verdict
        if before.decision in ("block", "hold", "stop"):
            return before
        after = self.answer(content, is_error=is_error).verdict
        return before if before.decision != "allow" else after

    def message(self, kind: str = "user", text: str = "") -> Step:
        self.seq += 1
        message = Message(self.now, kind, self.seq, text)  # type: ignore[arg-type]
        return fold.observe_message(self.state, message, self.policy, KEYER)

    def letters(self, script: str, *, answers: bool = False) -> list[str]:
        """One call per letter; with `answers`, every letter always gets its own same answer."""
        return [
            (
                self.step("t", {"k": letter}, f"answer {letter}")
                if answers
                else self.call("t", {"k": letter}).verdict
            ).decision
            for letter in script
        ]
