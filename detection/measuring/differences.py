"""What a scenario got, beside what it should get. Playing scenarios belongs to `seeds` and `agents`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario after it was played: `problems` is empty when everything came out as written."""

    id: str
    got: dict[str, Any]
    problems: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether it came out as written."""
        return not self.problems
