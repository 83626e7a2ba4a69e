"""Records who has searched contents."""

from __future__ import annotations

from detection.services import audit
from detection.services.audit import Actor


def record_search(project_id: int, actor: Actor, hits: int) -> None:
    """Record a search in the audit, without its words: they may be what is to be erased next."""
    audit.record(
        actor, "contents.search", "contents", project_id=project_id, after={"hits_of_first_page": hits}
    )
