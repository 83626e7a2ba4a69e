"""The engine as a library: feed calls and results, get verdicts. No server, no database, no settings.

    from detection.engine import Guard

    guard = Guard(max_repeats=3)
    verdict = guard.call("search", {"q": "reset password"})
    if verdict.decision == "allow":
        guard.result("call-1", "0 hits")

This is the only file of the engine that reads a clock, and only where the caller names no time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detection.engine import fold, snapshot
from detection.engine.calls import Arguments, Call, Message, Result, Verdict
from detection.engine.identity import Keyer
from detection.engine.policy import ENVIRONMENT, Policy, ToolRule, resolve, validate


class Guard:
    """One session's loop detector.

    Parameters
    ----------
    policy : Policy, str or None
        A resolved policy, or the name of a preset; `standard` by default.
    rules : sequence of ToolRule
        Settings per tool; not together with a resolved policy.
    secret : bytes
        Key of the digests.
    state : bytes or None
        A state that `dump` returned earlier.
    **values
        Single settings above the preset; see `detection.engine.policy.FIELDS`.

    Raises
    ------
    PolicyError
        For a setting that does not exist or cannot have this value.
    """

    def __init__(
        self,
        policy: Policy | str | None = None,
        *,
        rules: Sequence[ToolRule] = (),
        secret: bytes = b"",
        state: bytes | None = None,
        **values: Any,
    ) -> None:
        if isinstance(policy, Policy):
            self.policy = policy
        else:
            given: Mapping[str, Any] = {"preset": policy, **values} if policy else values
            checked = [replace(rule, values=validate(rule.scope, rule.values)) for rule in rules]
            self.policy = resolve([(ENVIRONMENT, validate(ENVIRONMENT, given))], checked)
        self._keyer = Keyer(secret)
        self._state = snapshot.load(state) if state else fold.new_state()
        self._seq = 0

    def call(
        self,
        tool: str,
        arguments: Arguments = None,
        *,
        call_id: str = "",
        round: str | None = None,  # noqa: A002 - the word of the contract
        run: str | None = None,
        at: float | None = None,
        tokens: int = 0,
        cost_usd: float = 0.0,
    ) -> Verdict:
        """Ask before a call runs. Times are Unix seconds; without one the clock is read."""
        self._seq += 1
        now = time.time() if at is None else at
        call = Call(
            self._seq, tool, arguments, now, call_id or f"call-{self._seq}", round, run, tokens, cost_usd
        )
        return fold.observe_call(self._state, call, self.policy, self._keyer).verdict

    def result(
        self, call_id: str, content: str | None, is_error: bool | None = None, *, at: float | None = None
    ) -> Verdict:
        """Tell what the tool answered; calls without an id of their own are `call-1`, `call-2` and so on."""
        now = time.time() if at is None else at
        answer = Result(call_id, content, is_error, now, self._seq)
        return fold.observe_result(self._state, answer, self.policy, self._keyer).verdict

    def message(self, *, at: float | None = None) -> None:
        """Tell that the user has spoken."""
        fold.observe_message(self._state, Message(time.time() if at is None else at), self.policy)

    def dump(self) -> bytes:
        """Give the state as bytes, to go on with later."""
        return snapshot.dump(self._state)
