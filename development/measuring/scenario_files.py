"""Reads scenario files of all formats, and names who plays them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from development.measuring import agent_scenarios, seed_scenarios
from development.measuring.differences import Played


@dataclass(frozen=True, slots=True)
class WrittenScenario:
    """A scenario with its format: a known system's, an agent's situation, or a run that users reported."""

    format: Literal["system", "agent", "report"]
    document: dict[str, Any]

    @property
    def id(self) -> str:
        """Its name in its file."""
        return str(self.document["id"])

    @property
    def is_alone(self) -> bool:
        """Whether it makes settings that would reach other scenarios."""
        return bool(self.document.get("setup"))


def read(path: Path) -> list[WrittenScenario]:
    """Return the scenarios of a file.

    Raises
    ------
    ValueError
        When the file cannot be read or contains no scenarios.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    lists = document if isinstance(document, dict) else {"scenarios": document}
    scenarios = [one for name in ("scenarios", "extra", "cases") for one in lists.get(name) or []]
    if scenarios and all(isinstance(one, dict) and "system" in one for one in scenarios):
        return [WrittenScenario("system", one) for one in scenarios]
    if scenarios and all(isinstance(one, dict) and "ideal" in one for one in scenarios):
        return [WrittenScenario("agent", one) for one in scenarios]
    if scenarios and all(isinstance(one, dict) and "door" in one for one in scenarios):
        return [WrittenScenario("report", one) for one in scenarios]
    raise ValueError(f"{path}: not a scenario file; its format is {lists.get('format')!r}")


def play_in_engine(
    scenarios: Iterable[WrittenScenario],
) -> tuple[list[Played], dict[str, list[str]]]:
    """Play scenarios in this process, without an installation; return also the ids of others by the reason."""
    players = {"system": seed_scenarios.play, "agent": agent_scenarios.play}
    given = [*scenarios]
    played = [players[one.format](one.document) for one in given if one.format in players]
    others = [one.id for one in given if one.format not in players]
    return played, {"needs an installation: --url and --key": others} if others else {}
