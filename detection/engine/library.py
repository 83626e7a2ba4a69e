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
from detection.engine.calls import Arguments, Call, Message, ObservedEvent, Overrule, Result, Verdict
from detection.engine.counting import count_identical
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import ENVIRONMENT, SESSION, Policy, ToolRule, resolve, validate


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
        A state that `dump` returned: counts and the numbering of calls go on from there. Settings are not part of it.
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
    SnapshotVersionError
        For a state that another version wrote, or that is damaged.
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
        self._seq, self._state = _loaded(state) if state else (0, fold.new_state())
        self._overrule = on_detection

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
        cwd: str = "",
    ) -> Verdict:
        """Judge a call before it runs. `at` is in Unix seconds; without it, the clock is read.

        `cwd` is the directory in which it runs; see `Call`.
        """
        self._seq += 1
        now = time.time() if at is None else at
        call = Call(
            self._seq,
            tool,
            arguments,
            now,
            call_id or f"call-{self._seq}",
            round,
            run,
            tokens,
            cost_usd,
            cwd=cwd,
        )
        return self._observe(call)

    def result(
        self,
        call_id: str,
        content: str | None,
        is_error: bool | None = None,
        *,
        tool: str = "",
        arguments: Arguments = None,
        at: float | None = None,
        cwd: str = "",
    ) -> Verdict:
        """Report the result of a call. Calls without an id are numbered `call-1`, `call-2` and so on.

        With an empty `call_id`, the result belongs to the oldest open call with this tool, these arguments and this
        directory, if they are given.
        """
        now = time.time() if at is None else at
        observed = Result(call_id, content, is_error, now, self._seq, tool=tool, arguments=arguments, cwd=cwd)
        return self._observe(observed)

    def message(
        self, text: str = "", *, role: Literal["user", "assistant"] = "user", at: float | None = None
    ) -> Verdict:
        """Report a message of the user, or a text of the assistant, which can only be warned about."""
        self._seq += 1
        message = Message(time.time() if at is None else at, role, self._seq, text)
        return self._observe(message)

    def _observe(self, event: ObservedEvent) -> Verdict:
        return fold.observe(self._state, event, self.policy, self._keyer, overrule=self._overrule).verdict

    @property
    def is_enabled(self) -> bool:
        """Whether calls are judged. While they are not, nothing is counted either, and every verdict is `allow`."""
        return bool(self.policy.values["enabled"])

    def enable(self) -> None:
        """Judge and count the calls that follow; what was counted before still counts."""
        self.policy = self.policy.with_values(SESSION, {"enabled": True})

    def disable(self) -> None:
        """Allow every call without counting it, until `enable`."""
        self.policy = self.policy.with_values(SESSION, {"enabled": False})

    def key(self, tool: str, arguments: Arguments = None, *, cwd: str = "") -> str:
        """Return the key of a call: the same for all calls that count as identical, 32 hex digits."""
        return fold.call_key(Call(0, tool, arguments, 0.0, cwd=cwd), self.policy, self._keyer)

    def count(
        self,
        tool: str = "",
        arguments: Arguments = None,
        *,
        key: str = "",
        run: str | None = None,
        at: float | None = None,
        cwd: str = "",
    ) -> int:
        """Return how many calls identical to this one count now; the limit `max_repeats` is compared with one more.

        It follows the settings: of calls in a row, 0 after another call; calls beyond the time to live or outside the
        window do not count. Nothing is changed by asking.

        Parameters
        ----------
        tool, arguments, cwd
            The call.
        key : str
            A call key instead of both, as `key` or `Verdict.finding.call_keys` give it.
        run : str, optional
            The run, where counting is per run.
        at : float, optional
            Unix seconds; without it, the clock is read.
        """
        now = time.time() if at is None else at
        key = key or self.key(tool, arguments, cwd=cwd)
        return count_identical(self._state, key, self.policy, now, tool=tool, run=run)

    def clear(self) -> None:
        """Reset all counts, as at the start of a session. Numbers of calls go on, and settings stay."""
        self._state = fold.new_state()

    def dump(self) -> bytes:
        """Return the state and the number of the latest call as bytes, for a later `Guard`."""
        return b"%d %b" % (self._seq, snapshot.dump(self._state))


def _loaded(data: bytes) -> tuple[int, State]:
    """Return the number of the latest call, and the state."""
    number, _, state = data.partition(b" ")
    if not number.isdigit():
        raise snapshot.SnapshotVersionError("not a state of a guard")
    return int(number), snapshot.load(state)
