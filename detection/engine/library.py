"""The engine as a library: feed calls and results, get verdicts. No server, no database, no settings.

    from detection.engine import Guard

    guard = Guard(max_repeats=3)
    verdict = guard.call("search", {"q": "reset password"})
    if verdict.decision == "allow":
        guard.result("call-1", "0 hits")

This is the only module of the engine that reads the clock, and only if the caller gives no time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from detection.engine import fold, snapshot
from detection.engine.calls import Arguments, Call, Message, Overrule, Result, Verdict
from detection.engine.identity import Keyer
from detection.engine.policy import ENVIRONMENT, Policy, ToolRule, resolve, validate


class Guard:
    """One session's loop detector.

    Parameters
    ----------
    policy : Policy, str or None
        A resolved policy, or the name of a preset. `standard` by default.
    rules : sequence of ToolRule
        Settings per tool; ignored with a resolved policy.
    secret : bytes
        Key of the digests.
    state : bytes or None
        A state that `dump` returned.
    on_detection : callable, optional
        Called with the verdict of each detection that the ladder reacts to, before it is returned. It returns `allow`,
        `warn`, `block` or `stop` to overrule the decision, or None to keep it. A call that it allows carries no
        message.
    **values
        Settings above the preset; see `detection.engine.fields.FIELDS`.

    Raises
    ------
    PolicyError
        For an unknown setting or a value that is not allowed.
    """

    def __init__(
        self,
        policy: Policy | str | None = None,
        *,
        rules: Sequence[ToolRule] = (),
        secret: bytes = b"",
        state: bytes | None = None,
        on_detection: Overrule | None = None,
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
        self._overrule = on_detection
        self._seq = 0

    def call(
        self,
        tool: str,
        arguments: Arguments = None,
        *,
        call_id: str = "",
        round: str | None = None,  # noqa: A002 - the name in the API
        run: str | None = None,
        at: float | None = None,
        tokens: int = 0,
        cost_usd: float = 0.0,
    ) -> Verdict:
        """Judge a call before it runs. `at` is in Unix seconds; without it, the clock is read."""
        self._seq += 1
        now = time.time() if at is None else at
        call = Call(
            self._seq, tool, arguments, now, call_id or f"call-{self._seq}", round, run, tokens, cost_usd
        )
        return fold.observe_call(self._state, call, self.policy, self._keyer, overrule=self._overrule).verdict

    def result(
        self,
        call_id: str,
        content: str | None,
        is_error: bool | None = None,
        *,
        tool: str = "",
        arguments: Arguments = None,
        at: float | None = None,
    ) -> Verdict:
        """Report the result of a call. Calls without an id are numbered `call-1`, `call-2` and so on.

        With an empty `call_id`, the result belongs to the oldest open call with this tool and these arguments, if they
        are given.
        """
        now = time.time() if at is None else at
        observed = Result(call_id, content, is_error, now, self._seq, tool=tool, arguments=arguments)
        return fold.observe_result(
            self._state, observed, self.policy, self._keyer, overrule=self._overrule
        ).verdict

    def message(
        self, text: str = "", *, role: Literal["user", "assistant"] = "user", at: float | None = None
    ) -> Verdict:
        """Report a message of the user, or a text of the assistant, which can only be warned about."""
        self._seq += 1
        message = Message(time.time() if at is None else at, role, self._seq, text)
        return fold.observe_message(self._state, message, self.policy, self._keyer).verdict

    def clear(self) -> None:
        """Reset all counts, as at the start of a session."""
        self._state = fold.new_state()

    def dump(self) -> bytes:
        """Return the state as bytes, for a later `Guard`."""
        return snapshot.dump(self._state)
