"""The tree of sessions that started one another, with bars on a common time axis."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from detection.engine import durations
from detection.models import Session, SessionState
from detection.selectors.session_rows import SessionRow
from detection.selectors.session_trees import session_tree


@dataclass(frozen=True, slots=True)
class Member:
    """A session of the tree; `x` and `width` are its time in percent of the whole tree's."""

    session: SessionRow
    level: int
    name: str
    state: SessionState
    duration: str
    x: str
    width: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Family:
    """The tree; `missing_parent` names a parent of the root that is not stored."""

    members: tuple[Member, ...]
    is_cut: bool
    missing_parent: str


def lay_out(session: Session) -> Family | None:
    """Return the tree of a session; None if it has no parent and no children."""
    tree = session_tree(session)
    missing = tree.branches[0].session.parent_external_id
    if missing in {one.session.external_id for one in tree.branches}:
        missing = ""  # sessions that name each other, or themselves
    if len(tree.branches) == 1 and not missing:
        return None
    now = timezone.now()
    start = min(one.session.started_at for one in tree.branches)
    end = max(_end(one.session, now) for one in tree.branches)
    whole = max(1.0, (end - start).total_seconds())
    members = []
    for one in tree.branches:
        row = one.session
        parent = row.parent_external_id + "/"
        name = row.external_id.removeprefix(parent) if one.level else row.external_id
        state = row.shown_state
        seconds = (_end(row, now) - row.started_at).total_seconds()
        members.append(
            Member(
                row,
                one.level,
                name,
                state,
                durations.span(seconds),
                f"{(row.started_at - start).total_seconds() / whole * 100:.2f}%",
                f"{max(0.5, seconds / whole * 100):.2f}%",
                row.id == session.id,
            )
        )
    return Family(tuple(members), tree.is_cut, missing)


def _end(row: SessionRow, now: datetime) -> datetime:
    """Return when a session ended, or now if it is still running."""
    if row.ended_at:
        return row.ended_at
    at_work = (SessionState.RUNNING, SessionState.LOOPING, SessionState.HELD)
    return now if row.shown_state in at_work else row.last_event_at
