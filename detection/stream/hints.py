"""All messages to live pages. A hint names what changed; the page fetches it by its own cursor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Topic = Literal[
    "session",
    "incident",
    "attempt",
    "approval",
    "held",
    "policy",
    "import",
    "what_if",
    "erasure",
    "containment",
]


@dataclass(frozen=True, slots=True)
class Hint:
    """A change in a project.

    Parameters
    ----------
    topic
        Kind of object; ``held`` is an approval in another project of the person.
    id
        Public name of a session or public id of an incident; empty if the whole list must be reloaded.
    change
        What happened, in one word, for the screen reader's announcement: changed, opened, ended …
    """

    topic: Topic
    id: str = ""
    change: str = "changed"

    def as_message(self) -> dict[str, str]:
        """Return the hint as the browser receives it."""
        return asdict(self)


def project_group(project_id: int) -> str:
    """Return the channel group of the pages of a project."""
    return f"project.{project_id}"


def held_group(project_id: int) -> str:
    """Return the channel group of the pages of other projects that announce the held calls of this one."""
    return f"held.{project_id}"


def approval_group(public_id: str) -> str:
    """Return the channel group of the agents that wait for an approval."""
    return f"approval.{public_id}"
