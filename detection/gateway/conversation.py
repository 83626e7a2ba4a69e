"""The conversation of a guarded request: what the client sent, and what model server and guard read of it.

Both are values that no step changes: a step that learns something returns another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from detection import clock
from detection.gateway.client import Client
from detection.gateway.guarding import Speaker
from detection.gateway.protocols import sessions
from detection.gateway.protocols.answer_text import without_cut_reasoning
from detection.gateway.protocols.answers import MAX_REASKS, Answer, Message
from detection.gateway.protocols.prompt_commands import (
    is_only_commands,
    prompt_with_commands,
    without_commands,
)
from detection.gateway.protocols.rewrites import Rewrite, Rewrites, replace_list, with_copies
from detection.gateway.routes import ModelProtocol
from detection.integrations.labels import Labels
from detection.services.gateway.grants import Grant


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as a client has sent it.

    Attributes
    ----------
    given_name
        The name of the session that the client gives, or empty.
    session
        Name of the session; empty for a conversation that has no name and no call yet.
    beginning
        Digest of how it begins, for the name of a session.
    previous_response
        Id of the response that the request continues, or empty.
    own_response_id
        Id of a response of the gateway's own to this request.
    is_one_shot
        Whether the request wants a call of one tool that it names, and has no call in its history: programs that turn a
        text into an object ask so. Equal requests are one session, because nothing else connects them.
    asked_at, is_retry, max_repeated_words
        See `Speaker`, and `Guarding.evaluate`.
    """

    grant: Grant
    protocol: ModelProtocol
    request: dict[str, object]
    messages: list[Message]
    given_name: str
    session: str
    beginning: hashlib.blake2b
    agent: str
    parent_session: str
    labels: Labels
    previous_response: str
    own_response_id: str
    asked_at: float
    is_retry: bool
    is_one_shot: bool = False
    max_repeated_words: int = 0

    @property
    def project_id(self) -> int:
        """The project of the key."""
        return self.grant.principal.project_id

    @property
    def is_kept(self) -> bool:
        """Whether the model server stores the conversation: a later request may name the response to continue."""
        return self.protocol.is_kept(self.request)

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self.request.get("stream") is True

    @property
    def max_reasks(self) -> int:
        """How often the model server may be asked again; never for an answer with several choices."""
        choices = self.request.get("n")
        return 0 if isinstance(choices, int) and choices > 1 else MAX_REASKS

    def named(self, answer: Answer) -> Conversation:
        """Return the conversation with a name, which the first call of an answer gives it unless it has one."""
        if self.session or not answer.calls:
            return self
        if self.is_one_shot:
            return replace(self, session=sessions.request_name(self.beginning, self.messages))
        return replace(self, session=sessions.derived_name(self.beginning, answer.calls[0]))

    def named_after(self, response_id: str) -> Conversation:
        """Return the conversation with the name of a response that a later request continues, unless it has one."""
        return self if self.session else replace(self, session=name_after(response_id))

    def speaker(self, answer: Answer | None = None) -> Speaker:
        """Return the agent and session of the conversation."""
        return Speaker(
            principal=self.grant.principal,
            session=self.session,
            shape=self.protocol.shape,
            list_shape=self.protocol.list_shape,
            backend=self.grant.backend.name,
            model=sessions.printable(self.request.get("model") or (answer.model if answer else ""), 200),
            agent=self.agent,
            parent_session=self.parent_session,
            labels=self.labels,
            continued=self.previous_response or sessions.kept_conversation(self.request),
            max_repeated_words=self.max_repeated_words,
            is_one_shot=self.is_one_shot and not self.given_name,
            asked_at=self.asked_at,
        )


def name_after(response_id: str) -> str:
    """Return the name of a session that continues a response and has no other name."""
    return sessions.printable(f"after-{response_id}", 200)


def conversation_of(
    client: Client, grant: Grant, protocol: ModelProtocol, request: dict[str, object], messages: list[Message]
) -> Conversation:
    """Return the conversation in a request.

    Its session has a name if the client gives one, or if it has a call and continues no response.
    """
    header, principal = client.headers.text, grant.principal
    given_name = principal.redactor.name(sessions.given_name(header, request))
    previous = protocol.previous_response(request)
    # Now, in the thread that reads the request: the name may be needed only after the answer.
    beginning = sessions.beginning_of(principal.public_id, protocol.system_text(request), messages)
    session = given_name
    found = next((message for message in messages if protocol.call_ids(message)), None)
    if not given_name and not previous:
        calls = protocol.answer_of_message(found).calls if found else []
        session = sessions.derived_name(beginning, calls[0] if calls else None)
    prefix = {"responses": "resp_", "anthropic": "msg_"}.get(protocol.shape, "")
    return Conversation(
        grant=grant,
        protocol=protocol,
        request=request,
        messages=messages,
        given_name=given_name,
        session=session,
        beginning=beginning,
        agent=sessions.agent_name(header),
        parent_session=sessions.parent_name(header),
        labels=sessions.labels(header),
        previous_response=previous,
        own_response_id=f"{prefix}loopguard{client.request_id.removeprefix('req_')}",
        asked_at=clock.now().timestamp(),
        is_retry=sessions.is_retry(header),
        is_one_shot=not previous and found is None and protocol.names_its_tool(request),
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model server is asked, and what the guard reads before its answer.

    Attributes
    ----------
    request, body
        For the model server, as a document and as it is sent.
    for_guard
        The conversation as the guard reads it.
    previous
        What the response that the request continues needs, if the client did not get it as the model server gave it.
    prompt
        The last message and its text, if it contains in-chat commands.
    before
        Answers to this request whose calls were all blocked, with the reasons as results.
    without_tools
        Whether the model is to answer without further calls.
    """

    conversation: Conversation
    request: dict[str, object]
    body: bytes
    messages: list[Message]
    for_guard: Sequence[Message] = ()
    previous: Rewrite | None = None
    prompt: tuple[Message, str] | None = None
    before: Sequence[Message] = ()
    reasks_left: int = 0
    without_tools: bool = False

    @property
    def is_only_commands(self) -> bool:
        """Whether the last prompt contains only commands, so that there is nothing to ask the model."""
        return self.prompt is not None and is_only_commands(self.prompt[0])


def first_turn(conversation: Conversation, rewrites: list[Rewrite], body: bytes) -> Turn:
    """Return what the model server is asked first: the request with the additions that the client has not seen."""
    protocol, request, sent = conversation.protocol, conversation.request, conversation.messages
    anchor = f"response:{conversation.previous_response}"
    previous = next((one for one in rewrites if one.anchor == anchor), None)

    def rewritten(known: list[Message], *, with_notes: bool) -> list[Message]:
        if not rewrites:
            return known
        messages = protocol.rewritten(known, Rewrites(rewrites, with_notes=with_notes))
        if previous is not None:
            messages = protocol.with_results_first(previous.results, messages)
        is_same = len(messages) == len(known) and all(a is b for a, b in zip(messages, known, strict=True))
        return known if is_same else messages

    for_model = without_cut_reasoning(without_commands(sent, protocol.list_shape))
    messages = with_copies(rewritten(for_model, with_notes=True), rewrites)
    if messages is not sent:
        body = replace_list(body, protocol.list_key, sent, messages)
    if previous is not None and previous.notes:
        # The id by which the model server knows the response.
        known = protocol.with_previous(previous.notes["id"])
        request, body = request | known, orjson.dumps({**orjson.loads(body), **known})
    return Turn(
        conversation,
        request,
        body,
        messages,
        protocol.for_guard(rewritten(sent, with_notes=False)),
        previous,
        prompt_with_commands(sent, protocol.list_shape),
        reasks_left=conversation.max_reasks,
    )
