"""What a scripted run consists of. The runs themselves are in the galleries, playing them is the player's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Literal, NamedTuple

Values = Mapping[str, object]


class Call(NamedTuple):
    """One tool call and what the tool will answer.

    Attributes
    ----------
    tool
        Name as agents name their tools.
    arguments
        Texts may hold ``$n`` (the lap, from 1), ``$m`` (ten times the lap), ``$roll`` (a random number) and whatever the
        run's subject names. A text in place of a dictionary is what a model wrote that is no JSON object.
    result
        The tool's answer, with the same placeholders.
    is_error
        Whether the tool failed.
    seconds
        How long the model thinks before the call, at normal speed.
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
        Begins the session's name; says what is to be seen.
    stuck
        Whether a detector is expected to find something.
    door
        ``guard`` asks before each call and obeys; ``events`` only reports, for a worker to look at.
    subjects
        One is drawn for each play; its values fill the placeholders.
    repeated, laps
        Played `laps` times over after the opening.
    on_block
        ``turns``: goes to the close. ``hammers``: tries the same call again a few times first.
    recovers
        How likely a warning makes the agent leave the repeated part.
    together
        The calls of one lap belong to one model answer.
    says
        What the user wrote at the start; may hold in-chat commands.
    """

    name: str
    agent: str
    backend: str
    model: str
    stuck: bool
    door: Literal["guard", "events"] = "guard"
    subjects: tuple[dict[str, str], ...] = ({},)
    opening: tuple[Call, ...] = ()
    repeated: tuple[Call, ...] = ()
    laps: int = 1
    close: tuple[Call, ...] = ()
    on_block: Literal["turns", "hammers"] = "turns"
    recovers: float = 0.0
    together: bool = False
    says: str = ""
