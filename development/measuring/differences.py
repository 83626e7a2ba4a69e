"""The outcome of a played scenario and its differences from the expected one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario after it was played; `problems` is empty if every expectation was met."""

    id: str
    got: dict[str, Any]
    problems: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every expectation was met."""
        return not self.problems
