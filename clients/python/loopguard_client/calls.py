"""Calls, verdicts, and the exceptions that keep a call from running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Decision = Literal["allow", "warn", "block", "hold", "stop"]
ENDINGS = frozenset(("finish", "reuse", "delay"))
STRENGTH: dict[str, int] = {"allow": 0, "warn": 1, "hold": 2, "block": 3, "stop": 4}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that an agent wants to make.

    Attributes
    ----------
    tool : str
        Name of the tool, at most 128 characters; longer names are cut.
    arguments : mapping or str
        The arguments, or their JSON text as the model wrote it.
    call_id : str
        The id that the model gave to the call. Without one, the client assigns one.
    cwd : str
        The directory in which the call runs, where it matters: a command of a shell is another call in another one.
    """

    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    call_id: str = ""
    cwd: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do with a call.

    Attributes
    ----------
    decision : str
        ``allow``: run it. ``warn``: run it and put `message` in front of the result. ``block``: do not run it,
        `message` is the result. ``stop``: do not run it and end the run. ``hold`` only if waiting was disabled: do
        not run it yet.
    message : str
        For the model; empty for ``allow``.
    source : str
        ``server``, or ``client`` if the server gave no verdict and the client decided.
    reason : str
        Why the server gave no verdict; empty otherwise.
    incident : str
        Id of the incident on the server, if there is one.
    finding, approval : dict
        As the API returns them; empty if there are none.
    ending : str
        What a blocked call asks of the agent: ``finish`` (answer with what it has, use no more tools), ``reuse`` (the
        message contains the known answer of the call) or ``delay`` (the pause is longer than the guard waits). Empty
        for any other block.
    retry_after_seconds : float
        Of a ``delay``: the pause after which the call may be made again.
    """

    tool: str
    call_id: str
    decision: Decision
    message: str = ""
    source: Literal["server", "client"] = "server"
    reason: str = ""
    incident: str = ""
    finding: Mapping[str, Any] = field(default_factory=dict)
    approval: Mapping[str, Any] = field(default_factory=dict)
    ending: str = ""
    retry_after_seconds: float = 0.0

    @property
    def is_answer(self) -> bool:
        """Whether the message contains the known answer of a call that did not run; it is not an error then."""
        return self.decision == "block" and self.ending == "reuse"

    @property
    def may_run(self) -> bool:
        """Whether the call may run now."""
        return self.decision in ("allow", "warn")

    def with_warning(self, content: str) -> str:
        """Return the result of the call with the warning, if there is one, in front of it."""
        return f"{self.message}\n\n{content}" if self.decision == "warn" and self.message else content

    def raise_if_refused(self) -> None:
        """Raise unless the call may run.

        Raises
        ------
        CallBlocked
            The call must not run; the run may continue.
        RunStopped
            The run must end.
        """
        if self.decision == "stop":
            raise RunStopped(self)
        if not self.may_run:
            raise CallBlocked(self)


class LoopGuardError(Exception):
    """Base class of the exceptions of this package."""


class CallBlocked(LoopGuardError):
    """A call must not run. The text is the message for the model."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class HardStop(BaseException):
    """The run must end, in a framework that makes a result of every `Exception` of a tool: it lets this one pass.

    Attributes
    ----------
    verdict : Verdict
        Why; the text is its message.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class RunStopped(LoopGuardError):
    """The run must end. The text is the message for the user."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict
