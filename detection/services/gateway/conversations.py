"""What the gateway reads and stores of a session: whether it is stopped, and how its history is rewritten."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from detection.models import GatewayRewrite, Session
from detection.services.sessions.actions import stopped_message

MAX_REWRITES = 1_000
"""Answers of a session whose history is rewritten; beyond, the oldest ones are left as the client sends them."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session at the beginning of a request.

    Attributes
    ----------
    stopped
        The message that a person stopped it, or empty.
    rewrites
        JSON texts, oldest first.
    """

    stopped: str = ""
    rewrites: tuple[str, ...] = ()


def session_facts(project_id: int, external_id: str) -> SessionFacts:
    """Return what is known of a session that may not exist yet; at most two queries."""
    session = Session.objects.filter(project_id=project_id, external_id=external_id).first()
    if session is None:
        return SessionFacts()
    rows = GatewayRewrite.objects.filter(session=session).order_by("-id").values_list("body", flat=True)
    stopped = stopped_message(session) if session.is_stopped_by_person else ""
    return SessionFacts(stopped, tuple(reversed(rows[:MAX_REWRITES])))


def store_rewrite(project_id: int, external_id: str, answer: tuple[str, int], body: str) -> None:
    """Store how the history is rewritten around an answer; nothing where a project stores no payloads."""
    session = (
        Session.objects.select_related("project")
        .filter(project_id=project_id, external_id=external_id)
        .first()
    )
    if session is None or not session.project.stores_payloads:
        return
    digest = hashlib.blake2b(answer[0].encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    name = f"{digest}:{answer[1]}"
    GatewayRewrite.objects.update_or_create(session=session, answer=name, defaults={"body": body})
