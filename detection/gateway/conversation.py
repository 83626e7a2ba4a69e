"""The conversation of a guarded request: its session, and its history as model server and guard read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import structlog
from django.db import DatabaseError

from detection import clock
from detection.gateway.client import Client
from detection.gateway.guarding import Speaker
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols import sessions
from detection.gateway.protocols.answer_text import without_cut_reasoning
from detection.gateway.protocols.answers import Answer, Message, ToolCall
from detection.gateway.protocols.prompt_commands import (
    is_only_commands,
    prompt_with_commands,
    without_commands,
)
from detection.gateway.protocols.rewrites import Rewrite, Rewrites, replace_list
from detection.gateway.routes import ModelProtocol
from detection.gateway.traffic import RequestMeter
from detection.services.gateway.conversations import (
    SessionFacts,
    session_facts,
    session_of_response,
    store_response,
    store_rewrite,
)
from detection.services.gateway.grants import Grant

log = structlog.get_logger(__name__)
FACTS_SECONDS: Final = 2.0
USAGE_OPTION: Final = "stream_options"


class Conversation:
    """A request that contains a conversation.

    Attributes
    ----------
    messages
        As the client sent them.
    given_name
        The name of the session that the client gives, or empty.
    session
        Name of the session; empty for a conversation that has no name and no call yet.
    before
        Answers to this request whose calls were all blocked, with the reasons as results.
    guard_messages
        The conversation as the guard reads it.
    max_repeated_words
        The limit for repeated words in an answer; 0 if nobody looks for them.
    """

    def __init__(
        self,
        state: LoopState,
        client: Client,
        grant: Grant,
        protocol: ModelProtocol,
        meter: RequestMeter,
        request: dict[str, Any],
        messages: list[Message],
    ) -> None:
        self.state, self.client, self.grant, self.protocol, self.meter = state, client, grant, protocol, meter
        meter.model = grant.principal.redactor.name(sessions.printable(request.get("model") or "", 200))
        self.request, self.messages = request, messages
        self._asked_at = clock.now().timestamp()
        self.before: list[Message] = []
        self.guard_messages: list[Message] = []
        self.max_repeated_words = 0
        self._rewrites: list[Rewrite] = []
        self._prompt: tuple[Message, str] | None = None
        self.previous_response = protocol.previous_response(request)
        self._continued = self.previous_response or sessions.kept_conversation(request)
        given_name = sessions.given_name(client.headers.text, request)
        self.given_name = grant.principal.redactor.name(given_name)
        # Now, in the thread that reads the request: the name may be needed only after the answer.
        self._beginning = sessions.beginning_of(
            grant.principal.public_id, protocol.system_text(request), messages
        )
        self.session = self._session_name(None)

    @property
    def project_id(self) -> int:
        """The project of the key."""
        return self.grant.principal.project_id

    @property
    def own_response_id(self) -> str:
        """Id of a response of the gateway's own to this request."""
        prefix = {"responses": "resp_", "anthropic": "msg_"}.get(self.protocol.shape, "")
        return f"{prefix}loopguard{self.client.request_id.removeprefix('req_')}"

    @property
    def is_kept(self) -> bool:
        """Whether the model server stores the conversation: a later request may name the response to continue."""
        return self.protocol.is_kept(self.request)

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.get("stream") is True

    def name_session(self, answer: Answer | None) -> None:
        """Give the session a name, unless it has one."""
        self.session = self.session or self._session_name(answer)

    def name_after(self, response_id: str) -> None:
        """Give the session the name of the response that the request continues, unless it has a name."""
        self.session = self.session or _name_after(response_id)

    def _session_name(self, answer: Answer | None) -> str:
        if self.given_name:
            return self.given_name
        if previous := self.previous_response:
            return self.state.memory.sessions_of_responses.get((self.project_id, previous)) or ""
        first = self._first_call()
        if first is None and answer is not None and answer.calls:
            first = answer.calls[0]
        return sessions.derived_name(self._beginning, first)

    def _first_call(self) -> ToolCall | None:
        for message in self.messages:
            if self.protocol.call_ids(message):
                found = self.protocol.answer_of_message(message)
                return found.calls[0] if found.calls else None
        return None

    async def facts(self) -> SessionFacts:
        """Return what is stored of the session, and name it if possible; nothing while the database is away."""
        if not self.session and self.previous_response:
            self.session = await self._session_of_previous()
        about = self.speaker()
        try:
            facts = await self.state.workers.run(
                lambda: session_facts(self.project_id, self.session, about.agent, about.backend, about.model),
                FACTS_SECONDS,
            )
        except DatabaseError as error:
            log.warning("gateway_session_unavailable", session=self.session, error=str(error)[:200])
            facts = SessionFacts()
        self.max_repeated_words = facts.max_repeated_words
        return facts

    async def _session_of_previous(self) -> str:
        """Return the session of the response that this request continues; it may have been given by another process."""
        previous = self.previous_response
        try:
            found = await self.state.workers.run(
                lambda: session_of_response(self.project_id, previous), FACTS_SECONDS
            )
        except DatabaseError as error:
            log.warning("gateway_session_unavailable", response=previous[:200], error=str(error)[:200])
            found = ""
        return found or _name_after(previous)

    def speaker(self, answer: Answer | None = None) -> Speaker:
        """Return the agent and session of the conversation."""
        headers = self.client.headers
        return Speaker(
            principal=self.grant.principal,
            session=self.session,
            shape=self.protocol.shape,
            backend=self.grant.backend.name,
            model=sessions.printable(self.request.get("model") or (answer.model if answer else ""), 200),
            agent=sessions.agent_name(headers.text),
            parent_session=sessions.parent_name(headers.text),
            continued=self._continued,
            max_repeated_words=self.max_repeated_words,
            asked_at=self._asked_at,
        )

    # Commands

    @property
    def ends_with_commands(self) -> bool:
        """Whether the last prompt contains in-chat commands."""
        return self._prompt is not None

    @property
    def prompt_text(self) -> str:
        """The text of the last prompt, if it contains in-chat commands."""
        return "" if self._prompt is None else self._prompt[1]

    @property
    def ends_with_commands_only(self) -> bool:
        """Whether the last prompt contains only commands, so that there is nothing to ask the model."""
        return self._prompt is not None and is_only_commands(self._prompt[0])

    # Rewriting

    def rewrite(self, body: bytes, facts: SessionFacts) -> tuple[bytes, list[Message]]:
        """Return the request and its messages for the model server; set the messages for the guard.

        A conversation of an unknown form is passed on unchanged, and the response is guarded all the same.
        """
        try:
            if self.session:
                self._rewrites = self.state.memory.rewrites_of(
                    (self.project_id, self.session), facts.rewrites
                )
            for_model = without_cut_reasoning(without_commands(self.messages, self.protocol.shape))
            messages = self._rewritten(for_model, with_notes=True)
            self.guard_messages = self.protocol.for_guard(self._rewritten(self.messages, with_notes=False))
            self._prompt = prompt_with_commands(self.messages, self.protocol.shape)
            if messages is not self.messages:
                body = replace_list(body, self.protocol.list_key, self.messages, messages)
            return self._with_known_response(body), messages
        except Exception as error:  # noqa: BLE001 (a defect here must not end the run of an agent)
            log.warning("gateway_conversation_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            self._rewrites, self.guard_messages = [], []
            return body, self.messages

    def _rewritten(self, known: list[Message], *, with_notes: bool) -> list[Message]:
        """Return a conversation with the additions that the client has not seen; the same list if nothing changes."""
        if not self._rewrites:
            return known
        messages = self.protocol.rewritten(known, Rewrites(self._rewrites, with_notes=with_notes))
        previous = self._rewrite_of_previous_response()
        if previous is not None:
            messages = self.protocol.with_results_first(previous.results, messages)
        is_same = len(messages) == len(known) and all(a is b for a, b in zip(messages, known, strict=True))
        return known if is_same else messages

    def _rewrite_of_previous_response(self) -> Rewrite | None:
        anchor = f"response:{self.previous_response}"
        return next((one for one in self._rewrites if one.anchor == anchor), None)

    def _with_known_response(self, body: bytes) -> bytes:
        """Return a request with the id by which the model server knows the previous response."""
        previous = self._rewrite_of_previous_response()
        if previous is None or not previous.notes:
            return body
        known = self.protocol.with_previous(previous.notes["id"])
        self.request = self.request | known
        return orjson.dumps({**orjson.loads(body), **known})

    def with_usage(self, body: bytes) -> bytes:
        """Return a request that asks for the usage of its stream; the same one if it asks already or should not.

        The client does not see what it has not asked for; see `StreamReader.hides_usage`.
        """
        backend, options = self.grant.backend, self.request.get("stream_options")
        is_asked = self.protocol.shape != "openai" or not self.is_stream or not backend.requests_usage
        if is_asked or (isinstance(options, dict) and options.get("include_usage") is True):
            return body
        if self.state.memory.backends_without_usage.get(backend.public_id) == backend.base_url:
            return body
        if USAGE_OPTION in self.request:
            asking = {**(options if isinstance(options, dict) else {}), "include_usage": True}
            return orjson.dumps({**orjson.loads(body), USAGE_OPTION: asking})
        # At the end, so that all the rest keeps its bytes.
        return body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'

    def note_without_usage(self) -> None:
        """Note that the model server does not know the option, so that it is not asked again."""
        backend = self.grant.backend
        self.state.memory.backends_without_usage.put(backend.public_id, backend.base_url)

    async def keep_response(self, shown_id: str, known_id: str, results: list[Message]) -> None:
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
        self.name_after(shown_id)
        self.state.memory.sessions_of_responses.put((self.project_id, shown_id), self.session)
        if not self.given_name:
            await self._store(
                "gateway_response_not_stored", lambda: store_response(self.project_id, self.session, shown_id)
            )
        if results or shown_id != known_id:
            notes = {"id": known_id} if shown_id != known_id else {}
            await self.keep(Rewrite(f"response:{shown_id}", 1, results=results, notes=notes))

    async def keep_own_response(self, shown_id: str) -> None:
        """Note that a response of the gateway's own is to be continued like the one before it."""
        previous = self._rewrite_of_previous_response()
        results = previous.results if previous is not None else []
        known_id = self.previous_response
        if previous is not None and previous.notes:
            known_id = previous.notes["id"]
        await self.keep_response(shown_id, known_id, results)

    async def keep(self, rewrite: Rewrite) -> None:
        """Remember and store how the history is rewritten around an answer."""
        self.state.memory.add_rewrite((self.project_id, self.session), rewrite)
        await self._store(
            "gateway_rewrite_not_stored",
            lambda: store_rewrite(self.project_id, self.session, rewrite.key, rewrite.dump()),
        )

    async def _store(self, failure: str, work: Callable[[], None]) -> None:
        try:
            await self.state.workers.run(work, FACTS_SECONDS)
        except DatabaseError as error:
            log.warning(failure, session=self.session, error=str(error)[:200])


def _name_after(response_id: str) -> str:
    return sessions.printable(f"after-{response_id}", 200)
