"""The parts of a scripted run. `healthy` and `stuck` contain the runs, `player` runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Literal, NamedTuple

Values = Mapping[str, object]


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
