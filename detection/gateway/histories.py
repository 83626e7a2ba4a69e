"""What is stored of conversations: facts of their sessions, rewrites of their histories, responses to continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
from django.db import DatabaseError

from detection.gateway.conversation import Conversation, Turn, first_turn, name_after
from detection.gateway.memory import Memory
from detection.gateway.protocols.answers import Message
from detection.gateway.protocols.rewrites import Rewrite
from detection.gateway.workers import DatabaseWorkers
from detection.services.gateway.conversations import (
    SessionFacts,
    session_facts,
    session_of_response,
    store_response,
    store_rewrite,
)

log = structlog.get_logger(__name__)
FACTS_SECONDS: Final = 2.0


class Histories:
    """The stored side of conversations, as the event loop uses it. While the database is away, the memory serves."""

    def __init__(self, memory: Memory, workers: DatabaseWorkers) -> None:
        self._memory, self._workers = memory, workers

    async def look_up(self, conversation: Conversation) -> tuple[Conversation, SessionFacts]:
        """Return the conversation, with a name if it continues a response, and what is stored of its session."""
        if not conversation.session and conversation.previous_response:
            conversation = replace(conversation, session=await self._session_of_previous(conversation))
        project_id, about = conversation.project_id, conversation.speaker()
        key = about.principal.public_id
        try:
            facts = await self._workers.run(
                lambda: session_facts(
                    project_id, about.session, about.agent, about.backend, about.model, key
                ),
                FACTS_SECONDS,
            )
        except DatabaseError as error:
            log.warning("gateway_session_unavailable", session=about.session, error=str(error)[:200])
            facts = SessionFacts()
        return replace(conversation, max_repeated_words=facts.max_repeated_words), facts

    async def _session_of_previous(self, conversation: Conversation) -> str:
        """Return the session of the response that a request continues; it may have been given by another process."""
        project_id, previous = conversation.project_id, conversation.previous_response
        known = self._memory.sessions_of_responses.get((project_id, previous))
        if known:
            return known
        try:
            found = await self._workers.run(lambda: session_of_response(project_id, previous), FACTS_SECONDS)
        except DatabaseError as error:
            log.warning("gateway_session_unavailable", response=previous[:200], error=str(error)[:200])
            found = ""
        return found or name_after(previous)

    def turn(self, conversation: Conversation, facts: SessionFacts, body: bytes) -> Turn:
        """Return what the model server is asked first. May run in any thread.

        A conversation of an unknown form is passed on unchanged, and the response is guarded all the same.
        """
        try:
            place = conversation.project_id, conversation.session
            rewrites = self._memory.rewrites_of(place, facts.rewrites) if conversation.session else []
            return first_turn(conversation, rewrites, body)
        except Exception as error:  # noqa: BLE001 (a defect here must not end the run of an agent)
            log.warning("gateway_conversation_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            return Turn(
                conversation,
                conversation.request,
                body,
                conversation.messages,
                reasks_left=conversation.max_reasks,
            )

    async def keep_response(
        self, conversation: Conversation, shown_id: str, known_id: str, results: list[Message]
    ) -> None:
        """Store what a request that continues a response has to contain.

        Parameters
        ----------
        shown_id
            The id that the client has got.
        known_id
            The id by which the model server knows what it is to continue; empty for nothing.
        results
            Of calls that the client did not get.
        """
        project_id, session = conversation.project_id, conversation.named_after(shown_id).session
        self._memory.sessions_of_responses.put((project_id, shown_id), session)
        if not conversation.given_name:
            await self._store(
                "gateway_response_not_stored", session, lambda: store_response(project_id, session, shown_id)
            )
        if results or shown_id != known_id:
            notes = {"id": known_id} if shown_id != known_id else {}
            rewrite = Rewrite(f"response:{shown_id}", 1, results=results, notes=notes)
            await self.keep(project_id, session, rewrite)

    async def keep_own_response(self, turn: Turn) -> None:
        """Note that a response of the gateway's own is to be continued like the one before it."""
        conversation, previous = turn.conversation, turn.previous
        results = previous.results if previous is not None else []
        known_id = conversation.previous_response
        if previous is not None and previous.notes:
            known_id = previous.notes["id"]
        await self.keep_response(conversation, conversation.own_response_id, known_id, results)

    async def keep(self, project_id: int, session: str, rewrite: Rewrite) -> None:
        """Remember and store how the history is rewritten around an answer."""
        self._memory.add_rewrite((project_id, session), rewrite)
        await self._store(
            "gateway_rewrite_not_stored",
            session,
            lambda: store_rewrite(project_id, session, rewrite.key, rewrite.dump()),
        )

    async def _store(self, failure: str, session: str, work: Callable[[], None]) -> None:
        try:
            await self._workers.run(work, FACTS_SECONDS)
        except DatabaseError as error:
            log.warning(failure, session=session, error=str(error)[:200])
