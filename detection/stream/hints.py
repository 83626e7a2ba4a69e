"""The closed set of live messages. A hint says that something changed; the page fetches it by its own cursor."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Literal

Topic = Literal["session", "incident", "attempt", "approval", "policy"]


@dataclass(frozen=True, slots=True)
class Hint:
    """Something of a project changed.

    Parameters
    ----------
    topic
        What kind of thing.
    id
        Which one: a session's or incident's public name, empty when the whole list should be looked at again.
    news
        What happened in one word, for the polite announcement: changed, opened, ended, refused …
    """

    topic: Topic
    id: str = ""
    news: str = "changed"

    def as_message(self) -> dict[str, str]:
        """Return the frame as the browser gets it."""
        return asdict(self)


def project_group(project_id: int) -> str:
    """Name the channel group of everybody who watches a project."""
    return f"project.{project_id}"


def login_group(session_key: str) -> str:
    """Name the channel group of the sockets that one sign-in opened; the session's key itself stays out of the broker."""
    return f"login.{hashlib.sha256(session_key.encode()).hexdigest()[:32]}"


def approval_group(public_id: str) -> str:
    """Name the channel group of the agents that wait for the answer to an approval."""
    return f"approval.{public_id}"
