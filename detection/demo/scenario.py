"""The parts of a scripted run. `healthy` and `stuck` contain the runs, `player` runs them."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Final, Literal, NamedTuple

Values = Mapping[str, object]
HAMMER_TRIES: Final = 5
NOT_RUN: Final = frozenset(("block", "hold"))
_INPUT_TOKENS, _OUTPUT_TOKENS, _COST_USD = (400, 3000), (20, 160), (0.002, 0.02)
"""Of one call; a cost in the range of today's prices of those tokens with the history before them."""


class DemoCall(NamedTuple):
    """One tool call and its result.

    Attributes
    ----------
    tool
        Name of the tool.
    arguments
        Texts may contain ``$n`` (the lap, from 1), ``$m`` (ten times the lap), ``$roll`` (a random number) and the
        names of the subject. A text instead of a dictionary stands for arguments that are not a JSON object.
    result
        Result of the tool, with the same placeholders.
    is_error
        Whether the tool failed.
    seconds
        Pause before the call, at normal speed.
    """

    tool: str
    arguments: dict[str, object] | str
    result: str
    is_error: bool = False
    seconds: float = 2.0

    def filled(self, values: Values) -> tuple[str, str]:
        """Return the arguments as JSON text and the result with their placeholders filled in."""
        if isinstance(self.arguments, str):
            arguments = Template(self.arguments).safe_substitute(values)
        else:
            arguments = json.dumps({name: _fill(value, values) for name, value in self.arguments.items()})
        return arguments, Template(self.result).safe_substitute(values)


def _fill(value: object, values: Values) -> object:
    if isinstance(value, str):
        # A number written as a placeholder alone stays a number: {"page": "$n"}.
        if value.startswith("$") and isinstance(number := values.get(value[1:]), int):
            return number
        return Template(value).safe_substitute(values)
    if isinstance(value, list):
        return [_fill(inner, values) for inner in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run: an opening, a part that is repeated, and a close.

    Attributes
    ----------
    name
        Beginning of the session's name.
    stuck
        Whether a detector should report a finding.
    endpoint
        ``guard`` requests a verdict before each call and follows it; ``events`` reports calls and results.
    subjects
        One is chosen at random for each run; its values fill the placeholders.
    repeated, laps
        Calls that are repeated `laps` times after the opening.
    on_block
        ``turns``: continues with the close. ``hammers``: repeats the same call a few times first.
    recovers
        Probability, 0 to 1, that a warning ends the repeated part.
    together
        Whether the calls of one lap belong to one model response.
    says
        First message of the user; may contain in-chat commands.
    """

    name: str
    agent: str
    backend: str
    model: str
    stuck: bool
    endpoint: Literal["guard", "events"] = "guard"
    subjects: tuple[dict[str, str], ...] = ({},)
    opening: tuple[DemoCall, ...] = ()
    repeated: tuple[DemoCall, ...] = ()
    laps: int = 1
    close: tuple[DemoCall, ...] = ()
    on_block: Literal["turns", "hammers"] = "turns"
    recovers: float = 0.0
    together: bool = False
    says: str = ""


class ScriptedCall(NamedTuple):
    """A call of a run as it is sent.

    Attributes
    ----------
    round
        The model response that it belongs to.
    arguments
        As JSON text, or what the model wrote instead.
    cost_usd
        Of the model response, its share.
    """

    call_id: str
    round: str
    tool: str
    arguments: str
    content: str
    is_error: bool
    input_tokens: int
    output_tokens: int
    cost_usd: float


class CallGroup(NamedTuple):
    """The calls of one model response, and the pause before them in seconds at normal speed."""

    calls: tuple[ScriptedCall, ...]
    seconds: float


class Script:
    """One run of a scenario, for whoever sends it: through the API as it happens, or into the past.

    Parameters
    ----------
    draw
        Chooses the subject, the pauses, the costs, and whether a warning helps.
    """

    def __init__(self, scenario: Scenario, draw: Random) -> None:
        self._scenario, self._draw = scenario, draw
        self._values: dict[str, object] = dict(draw.choice(scenario.subjects))
        self._count = 0

    @property
    def prompt(self) -> str:
        """The first message of the user, or empty."""
        return Template(self._scenario.says).safe_substitute(self._values)

    def groups(self) -> Generator[CallGroup, str, str]:
        """Yield the calls of one model response after the other, and receive the strictest decision on them.

        Returns
        -------
        str
            How the run ends: ``completed``, ``failed`` or ``stopped``.
        """
        scenario = self._scenario
        for call in scenario.opening:
            if (yield self._group([call])) == "stop":
                return "stopped"
        tries_left, leaves = HAMMER_TRIES, False
        repeated = [[*scenario.repeated]] if scenario.together else [[call] for call in scenario.repeated]
        for lap in range(1, scenario.laps + 1):
            self._values |= {"n": lap, "m": lap * 10}
            for calls in repeated:
                if leaves or not calls:
                    break
                decision = yield self._group(calls)
                if decision == "stop":
                    return "stopped"
                leaves = decision == "warn" and self._draw.random() < scenario.recovers
                if decision in NOT_RUN:
                    tries_left -= 1
                    leaves = scenario.on_block == "turns" or tries_left == 0
        for call in scenario.close:
            if (yield self._group([call])) == "stop":
                return "stopped"
        return "failed" if scenario.stuck and not scenario.close else "completed"

    def _group(self, calls: list[DemoCall]) -> CallGroup:
        draw = self._draw
        seconds = sum(call.seconds for call in calls) * draw.uniform(0.7, 1.3)
        self._values["roll"] = draw.randint(100, 999)
        name = f"r{self._count}"
        return CallGroup(tuple(self._filled(call, name) for call in calls), seconds)

    def _filled(self, call: DemoCall, name: str) -> ScriptedCall:
        self._count += 1
        draw, (arguments, content) = self._draw, call.filled(self._values)
        return ScriptedCall(
            f"call_{self._count}",
            name,
            call.tool,
            arguments,
            content,
            call.is_error,
            draw.randint(*_INPUT_TOKENS),
            draw.randint(*_OUTPUT_TOKENS),
            round(draw.uniform(*_COST_USD), 5),
        )
