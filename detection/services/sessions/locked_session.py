"""The owner of a session: its row, tracker state, incidents and approvals, locked, changed and written together.

To change a session, enter `locked_session` (or one of its siblings) and change the object that it yields. Leaving the
block writes all changes, in one place and in the same transaction: the state of the session, its row by named
columns with the change cursor of the live pages, the tracker state, events, incidents and approvals, and the hints that
follow the commit. No other package writes these rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from django.db import connection, transaction

from detection.engine.identity import keyer_of
from detection.engine.memory import State
from detection.engine.messages import as_sentence
from detection.engine.policy import Policy, Top
from detection.models import Session, SessionKey, SessionState, StoppedByKind
from detection.models.session_state import derive_state
from detection.selectors.ancestors import Ancestors, ancestors_of
from detection.selectors.containments import Caller, ContainmentRule, containments_of
from detection.selectors.policies import overrides_of
from detection.services.audit import SYSTEM
from detection.services.errors import NotFound
from detection.services.events.event_records import EventRecord
from detection.services.events.recent_calls import RecentCalls
from detection.services.keys import Principal
from detection.services.sessions import families, packing, read_messages, session_rows, tracker_state
from detection.services.sessions.call_identity import CallIdentity
from detection.services.sessions.event_changes import EventChanges
from detection.services.sessions.families import LockedFamily
from detection.services.sessions.recent_ids import recent_ids
from detection.services.sessions.recent_sessions import RecentSession, recent_sessions
from detection.services.sessions.session_rows import KnownRows, RowVersions, SavedValues
from detection.services.sessions.tracker_state import Outcome
from detection.services.tracking.incident_changes import FamilyTop
from detection.services.tracking.open_approvals import OpenApprovals
from detection.services.tracking.tracker import IncidentTracker
from detection.sql.pipeline import (
    DeferredTransaction,
    OutdatedError,
    Rows,
    Statement,
    Writes,
    pipelined_transaction,
    send,
)
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit, publish_now

_BY_SESSION = (StoppedByKind.PERSON, StoppedByKind.DETECTION)
"""Who stops a session as a whole, with all that it holds; a containment may cover some of its calls."""


class LockedSession:
    """A session whose row lock this transaction holds, or whose write will make sure that nobody else has written it.

    Parameters
    ----------
    recent
        The session as this process wrote it last, if it is still the same.
    unlocked
        What has to be so for a session that is not locked, and the transaction that locks it when something is read.

    Attributes
    ----------
    session : Session
        The row. Changed fields are written when the block ends; `state` is derived then and must not be set.
    overrides : ProjectOverrides
        The project's stored overrides.
    containments : ProjectContainments
        What is in force in the project.
    keyer : Keyer
        The project's digests.
    events : EventChanges
        New events, and what evaluation puts on stored ones.
    incidents : IncidentTracker
        The incidents of active loops. Costs no query for a session without one.
    approvals : OpenApprovals
        The calls on hold. Costs no query for a session without one.
    identity : CallIdentity
        The stored calls that the events of a request may refer to; see `locked_session_of_agent`.
    was_packed : bool
        Whether its events were packed until it was locked.
    read_messages : bytes or None
        What is to be remembered of message lists; None if it stays as it is.
    """

    def __init__(
        self,
        session: Session,
        tracker_rows: Rows,
        recent: RecentSession | None = None,
        identity: CallIdentity | None = None,
        unlocked: tuple[KnownRows, DeferredTransaction] | None = None,
    ) -> None:
        project = session.project
        self.session = session
        self.overrides, self.containments = overrides_of(project), containments_of(project)
        self.keyer = keyer_of(bytes(project.digest_secret))
        self.events = EventChanges(session)
        self.incidents = IncidentTracker(session)
        self.approvals = OpenApprovals(session, self.incidents)
        self.identity = identity or CallIdentity(session.project_id, ())
        self.read_messages: bytes | None = None
        self.was_packed = False
        self._tracker_rows, self._known_tracker = tracker_rows, recent and recent.tracker
        self._tracker: State | None = None
        self._family: LockedFamily | None = None
        self._waiting: families.Waiting = []
        self._is_family_known = False
        self._ancestors: tuple[str, Ancestors | None] = "", None
        self._before = recent.saved if recent else session_rows.saved_values(session)
        self._written: tuple[str, str] | None = None
        self._calls = recent.calls if recent else RecentCalls(session.last_seq)
        self._unlocked = unlocked
        if self.approvals.has_overdue:
            self.approvals.expire_overdue(self.tracker)

    @property
    def tracker(self) -> State:
        """The engine's state, written with the rest once it was read here.

        A state of an older version is rebuilt from the stored events.
        """
        if self._tracker is None:
            self._tracker = self._known_tracker or tracker_state.load(
                self._tracker_rows, self.session, self.policy_for, self.keyer
            )
            self._tracker.exempt = list(self.session.exempt_tools)
        return self._tracker

    def rebuild_tracker(self, retried: Collection[int]) -> list[Outcome]:
        """Fold the stored events again, with the quarantined ones of these numbers; return all outcomes."""
        self._tracker, outcomes = tracker_state.rebuild(self.session, self.policy_for, self.keyer, retried)
        self._tracker.exempt = list(self.session.exempt_tools)
        return outcomes

    def enter_family(
        self, calls: int = 0, tokens: int = 0, cost_usd: float = 0.0, *, starts: bool = False
    ) -> None:
        """Let the engine's state see the family of the session, which is locked the first time.

        Parameters
        ----------
        calls, tokens, cost_usd
            What the event in hand uses beyond what the session counts already.
        starts
            Whether the session may begin a family with it.
        """
        session = self.session
        self._lock_family(starts=starts)
        used = session.call_count + calls, session.token_count + tokens, float(session.cost_usd) + cost_usd
        family = self._family.family if self._family else None
        if family and not family.enter(
            session.external_id, session.parent_external_id, str(session.pk), used, self.level
        ):
            family = None
        self.tracker.family = family
        self.incidents.family_top = self._family_top if family else None

    def earlier_in_family(self, at: datetime, *, starts: bool) -> list[int]:
        """Return the other sessions of the family with an unevaluated event before a time, the earliest one first.

        What a family shows depends on the order of its events, not on which session is evaluated first.

        Parameters
        ----------
        starts
            Whether the session may begin a family with the event of that time.
        """
        self._lock_family(starts=starts)
        place = at, self.session.pk
        return [session_id for session_id, received_at in self._waiting if (received_at, session_id) < place]

    def _lock_family(self, *, starts: bool) -> None:
        if self._is_family_known and (self._family is not None or not starts):
            return
        self._is_family_known = True
        if not self.session.is_imported:
            self._family, self._waiting = families.lock(self.session, self.ancestors, starts=starts)

    def policy_for(self, event: EventRecord) -> Policy:
        """Return the settings in effect for an event, before tool rules.

        A numbered event has the names that were known then. The session may have those of later events of its batch.
        """
        session = self.session
        named = event if event.seq else session
        return self.overrides.policy_for(
            event.agent or named.agent,
            event.backend or named.backend,
            event.model or named.model,
            session.policy_values,
            self.top if session.parent_external_id else None,
        )

    def contained(
        self, tool: str | None = None, *, agent: str = "", model: str = ""
    ) -> ContainmentRule | None:
        """Return the strictest containment in force that covers a call of a tool; without one, every call.

        Costs nothing while none is in force.

        Parameters
        ----------
        agent, model
            Of the call, if it names them.
        """
        if not self.containments.rules:
            return None
        family: tuple[str, ...] = ()
        if self.containments.needs_family:
            session, above = self.session, self.ancestors
            family = above.names if above else (session.external_id, session.parent_external_id)
        caller = Caller.of(self.session, family, agent=agent, model=model)
        return self.containments.covering(caller, tool)

    @property
    def ancestors(self) -> Ancestors | None:
        """The sessions above this one. One query the first time, and none without a parent."""
        parent, known = self._ancestors
        if parent != self.session.parent_external_id:
            parent, known = self._ancestors = self.session.parent_external_id, ancestors_of(self.session)
        return known

    @property
    def _family_top(self) -> FamilyTop:
        session, above = self.session, self.ancestors
        if above is None:
            return FamilyTop(session.external_id, session.pk, session.agent)
        return FamilyTop(above.names[-1], above.top_id, above.top.agent)

    @property
    def level(self) -> int:
        """Generations between this session and the one at the top."""
        return len(self.ancestors.names) - 1 if self.ancestors else 0

    @property
    def top(self) -> Top | None:
        """What the session at the top hands down to this one."""
        return self.ancestors.top if self.ancestors else None

    def save(self) -> None:
        """Write what changed and commit; done by the end of the block. Nothing is sent when nothing changed."""
        session, key, writes = self.session, self.session.key, Writes()
        if session.stopped_by_kind in _BY_SESSION and self.approvals.has_open:
            message = f"The call was not run. {as_sentence(session.stop_reason)}".strip()
            self.approvals.withdraw("session_stopped", "stop", message, SYSTEM.name)
        self.events.add_writes(writes)
        if self.incidents.is_touched:
            writes.send()  # The evidence is copied from the events, marks included.
            self.incidents.save()
        self.incidents.add_writes(writes)
        self.approvals.save()
        if session.evaluated_seq >= session.last_seq:
            session.pending_since = None
        session.has_active_incident = self.incidents.has_unended
        session.state = derive_state(
            session,
            has_open_approval=self.approvals.has_open,
            last_loop_call_at=self.incidents.last_loop_call_at,
        )
        if self._tracker is not None:
            session.exempt_tools = list(self._tracker.exempt)
        values = session_rows.saved_values(session)
        if self._tracker is not None:
            is_stored = bool(self._tracker_rows or self._known_tracker)
            tracker_state.add_write(writes, key, self._tracker, is_stored=is_stored)
        elif values == self._before and not self.incidents.hints and self.read_messages is None:
            if self._unlocked is not None and self._unlocked[1].is_pending:
                self._unlocked[1].begin()
            return
        if self._family is not None:
            self._family.add_writes(writes)
        if self.read_messages is not None:
            read_messages.add_write(writes, key, self.read_messages)
        hints = Hint("session", session.external_id), *self.incidents.hints
        written = self._write_unlocked(writes, values)
        if written is not None:
            publish_now(key.project_id, *hints)
        else:
            publish_after_commit(key.project_id, *hints)
            session_rows.add_save(writes, session, self._before, values)
            written = writes.send(commits=True)
        self._before = values
        for place, written_by in written:
            self._written = place, written_by

    def _write_unlocked(self, writes: Writes, values: SavedValues) -> Rows | None:
        """Write and commit without the lock, unless another transaction wrote; None if it is needed, or held by now."""
        if self._unlocked is None or not self._unlocked[1].is_pending or not writes.can_depend:
            return None
        known, lock = self._unlocked
        saving = session_rows.save_if_known(known, self._before, values)
        if saving is None:
            return None
        lock.drop()
        written = writes.send_after(saving)
        if not written:
            raise OutdatedError
        return written

    def remember(self, project_version: str) -> None:
        """Keep the session in this process for its next call, if `save` has written it together with its state.

        Parameters
        ----------
        project_version
            The version of the project's row that the session was read with.
        """
        if self._tracker is None or self._written is None or connection.in_atomic_block:
            return
        if self.session.project.first_event_at is None:
            return  # the first event of a project is noted on the project's row
        self._tracker.leave_family()
        place, written_by = self._written
        versions = RowVersions(place, written_by, project_version, written_by)
        calls = RecentCalls(self.session.last_seq) if self.events.has_changed_others else self._calls
        if calls is self._calls:
            calls.add(self.events.stored)
        recent_sessions.put(RecentSession(self.session, self._before, self._tracker, versions, calls))


@contextmanager
def locked_session(key: SessionKey, *, wait: bool = True) -> Iterator[LockedSession]:
    """Lock a session by the key of its row, and write the changes of the block.

    Parameters
    ----------
    wait
        False: do not wait for another transaction that holds the lock.

    Raises
    ------
    NotFound
        If the session does not exist, or without `wait` if another transaction holds the lock.
    """
    reads = session_rows.by_key(key, wait=wait), tracker_state.by_key(key)
    with pipelined_transaction(*reads) as rows:
        locked = _locked(*rows)
        yield locked
        locked.save()


@contextmanager
def locked_session_by_name(project_id: int, external_id: str) -> Iterator[LockedSession]:
    """Lock a session by its name in a project, and write the changes of the block.

    Raises
    ------
    NotFound
        When the project has no such session.
    """
    with pipelined_transaction(*_reads(project_id, external_id)) as rows:
        locked = _locked(*rows)
        yield locked
        locked.save()


@contextmanager
def locked_session_of_agent(
    principal: Principal,
    external_id: str,
    events: Sequence[EventRecord] = (),
    *,
    trusts_recent: bool = False,
) -> Iterator[LockedSession]:
    """Lock the session that an agent names, or create it, and write the changes of the block.

    Parameters
    ----------
    events
        Those of the request: `LockedSession.identity` knows the stored calls that they may refer to. These are read
        with the lock where this process knows the row id of the session from an earlier request, and in a round trip
        more otherwise. A session that this process wrote last is locked, but not read.
    trusts_recent
        Take for granted that nobody else has written such a session since, and lock it when something has to be read.
        The last write makes sure.

    Raises
    ------
    OutdatedError
        If `trusts_recent` and another transaction has written the session. Nothing was written.
    """
    project_id = principal.project_id
    recent = recent_sessions.take(project_id, external_id)
    if recent is not None and trusts_recent:
        identity = CallIdentity(project_id, ((recent.session.id, event) for event in events))
        known = _known_rows(recent, identity)
        if known is not None:
            with DeferredTransaction(session_rows.by_known_rows(known), [recent.versions]) as lock:
                locked = LockedSession(recent.session, [], recent, identity, (known, lock))
                yield locked
                locked.save()
            locked.remember(recent.versions.project)
            return
    known_id = recent.session.pk if recent else recent_ids.get(project_id, external_id)
    by_name = _reads(project_id, external_id)
    lock_rows = (session_rows.by_known_key(recent.session.key, external_id),) if recent else by_name
    identity = CallIdentity(project_id, ((known_id, event) for event in events if known_id))
    with pipelined_transaction(*lock_rows, *identity.reads) as read:
        found, rows = read[: len(lock_rows)], read[len(lock_rows) :]
        if recent is not None and found == [[recent.versions]]:
            project_version = recent.versions.project
            locked = LockedSession(recent.session, [], recent)
        else:
            found = send(*by_name) if recent else found
            while not found[0]:  # a session can be removed between both statements
                _, *found = send(session_rows.create(principal, [external_id]), *by_name)
            project_version = session_rows.project_version(found[0])
            locked = _locked(*found)
        session = locked.session
        # What was read with the lock has no events that were packed until then.
        if session.pk != known_id or locked.was_packed:
            recent_ids.put(project_id, external_id, session.pk)
            identity = CallIdentity(project_id, ((session.pk, event) for event in events if session.last_seq))
            rows = send(*reads) if (reads := identity.reads) else []
        locked.identity = identity.load(rows)
        yield locked
        locked.save()
    locked.remember(project_version)


def _known_rows(recent: RecentSession, identity: CallIdentity) -> KnownRows | None:
    """Return what has to be so when a session is written that was not locked; None if it has to be locked first."""
    session = recent.session
    if session.has_active_incident or session.state == SessionState.HELD or connection.in_atomic_block:
        return None
    new_ids = identity.recall(recent.calls)
    if new_ids is None:
        return None
    after_seq = recent.calls.after_seq
    # Where all calls are known the database need not look for these ids: a tenth of its work for a guard call.
    return KnownRows(session.key, recent.versions, new_ids if after_seq else [], after_seq)


def _reads(project_id: int, external_id: str) -> tuple[Statement, Statement]:
    return session_rows.by_name(project_id, external_id), tracker_state.by_name(project_id, external_id)


@contextmanager
def locked_sessions_of_batch(principal: Principal, names: Iterable[str]) -> Iterator[dict[str, Session]]:
    """Lock the sessions of a batch of events, created where they are new; afterwards they wait for evaluation.

    Yields
    ------
    dict
        The rows by name. What new events say of a session (`last_seq`, agent, backend, model, parent, tags, metadata)
        is written when the block ends.
    """
    with transaction.atomic():
        sessions = session_rows.lock_or_create(principal, names)
        for one in sessions.values():
            if one.packed_at is not None:
                packing.unpack(one)
        before = {name: (one.tags, one.metadata) for name, one in sessions.items()}
        yield sessions
        session_rows.save_received(principal.project_id, sessions.values())
        for name, one in sessions.items():
            if (one.tags, one.metadata) != before[name]:
                rows = Session.objects.filter(project_id=one.project_id, pk=one.pk)
                rows.update(tags=one.tags, metadata=one.metadata)


def _locked(locked_rows: Rows, tracker_rows: Rows) -> LockedSession:
    if not locked_rows:
        raise NotFound
    (session,) = session_rows.sessions_of(locked_rows)
    was_packed = session.packed_at is not None
    if was_packed:
        packing.unpack(session)
    locked = LockedSession(session, tracker_rows)
    locked.was_packed = was_packed
    return locked
