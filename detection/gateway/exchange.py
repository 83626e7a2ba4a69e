"""One guarded request: reads the conversation, forwards it, and asks again while all calls are blocked."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Final

import httpcore
import orjson

from detection.gateway.access import while_not_contained
from detection.gateway.client import Client
from detection.gateway.conversation import Conversation, Turn, conversation_of
from detection.gateway.delivery import Delivery
from detection.gateway.errors import GatewayError
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols import sessions
from detection.gateway.protocols.prompt_commands import lead_of
from detection.gateway.protocols.stream import StreamReader
from detection.gateway.relaying import BegunBody, kind_of, relay
from detection.gateway.request_body import check_number, parsed_request, request_body
from detection.gateway.routes import ModelProtocol
from detection.gateway.traffic import RequestMeter
from detection.gateway.verdicts import JudgedAnswer
from detection.services.gateway.conversations import OpenRequest
from detection.services.gateway.grants import Grant
from detection.web.documents import stop_notice

MAX_ERROR_BYTES: Final = 64 * 1024
"""Of an error document that is read before it is passed on."""
USAGE_OPTION: Final = "stream_options"
COMMANDS_WAIT: Final = "The command takes effect with the first tool call of this conversation."


class Exchange:
    """A guarded request.

    Parameters
    ----------
    path
        What follows the base URL of the backend, with the query.
    """

    def __init__(
        self, state: LoopState, client: Client, path: bytes, grant: Grant, protocol: ModelProtocol
    ) -> None:
        self.state, self.client, self.path, self.grant, self.protocol = state, client, path, grant, protocol

    async def run(self) -> None:
        """Serve the request."""
        key = self.grant.principal.public_id
        async with request_body(self.client, self.state.unfinished, self.state.memory_budget, key) as body:
            self.meter = RequestMeter(self.state.traffic, self.grant.backend)
            try:
                await self._serve(body)
            finally:
                self.meter.close()

    async def _serve(self, body: bytes) -> None:
        sent = await self.state.off_loop(len(body), lambda: self._conversation(body))
        if sent is None:
            # The model server has its own error for what is no conversation.
            async with self._upstream(body) as response:
                await relay(self.client, response)
            return
        model = sessions.printable(sent.request.get("model") or "", 200)
        self.meter.model = self.grant.principal.redactor.name(model)
        conversation, facts = await self.state.histories.look_up(sent)
        turn = await self.state.off_loop(
            len(body), lambda: self.state.histories.turn(conversation, facts, body)
        )
        lead, end = "", facts.stopped
        if turn.prompt is not None and not end:
            turn, reply = await self._command_reply(turn, turn.prompt[1])
            lead = reply if turn.is_only_commands else lead_of(reply)
        elif facts.ended and await self._remains_ended(turn):
            end = facts.ended
        backend = self.grant.backend
        if end or turn.is_only_commands:
            delivery = Delivery(self.state, self.client, self.meter, backend)
            text = stop_notice(end, self.grant.principal.project_slug, conversation.session) if end else lead
            await delivery.respond_text(turn, text, ends_in_error=bool(end) and facts.ends_in_error)
            return
        self._reader: StreamReader = self.protocol.reader(turn.request)
        self._reader.lead = lead
        delivery = Delivery(self.state, self.client, self.meter, backend, lead)
        about = turn.conversation.speaker()
        asked = OpenRequest(
            about.principal.project_id, about.session, about.agent, about.model, about.principal.public_id
        )

        def may_end() -> bool:
            # A stream can end cleanly once it has begun, a document only before it has. Calls are judged.
            reader, is_stream = self._reader, turn.conversation.is_stream
            is_clean = not self.client.has_started or (is_stream and bool(reader.answer.id))
            return is_clean and reader.can_be_cut and not reader.has_ended

        answering = self._converse(delivery, turn, is_cut=facts.cuts)
        contained = await while_not_contained(asked, self.client, may_end, answering)
        if contained and self.client.has_started:
            await self.client.end(self._reader.cut_with(f"\n\n{contained}"))
        elif contained:
            await delivery.respond_text(turn, contained)

    async def _command_reply(self, turn: Turn, prompt: str) -> tuple[Turn, str]:
        """Execute the commands at the end of a conversation; return the reply, and the turn with a named session."""
        conversation = turn.conversation
        if conversation.is_kept:
            # The model server may keep the conversation, and then the command is in no later request.
            conversation = conversation.named_after(conversation.own_response_id)
        if not conversation.session:
            return turn, COMMANDS_WAIT
        reply = await self.state.guarding.run_commands(
            conversation.speaker(), [*turn.for_guard], prompt, is_whole=turn.is_only_commands
        )
        return replace(turn, conversation=conversation), reply

    async def _remains_ended(self, turn: Turn) -> bool:
        return await self.state.guarding.remains_ended(turn.conversation.speaker(), [*turn.for_guard])

    def _conversation(self, body: bytes) -> Conversation | None:
        request = parsed_request(body)
        if isinstance(request, dict):
            request |= self.protocol.path_fields
        messages = self.protocol.messages(request) if isinstance(request, dict) else None
        if messages is None:
            return None
        check_number(messages)
        return conversation_of(self.client, self.grant, self.protocol, request, messages)

    def _upstream(self, body: bytes) -> AbstractAsyncContextManager[httpcore.Response]:
        backend = self.grant.backend
        headers = self.client.headers.forwarded(backend, with_credential=True, body_length=len(body))
        self.meter.forwarding()
        return self.state.upstreams.request(
            backend, self.client.method, self.path, headers, body, self.client, self.meter.model
        )

    async def _converse(self, delivery: Delivery, turn: Turn, *, is_cut: bool) -> None:
        """Ask the model server until there is an answer for the client."""
        blocked: JudgedAnswer | None = None
        while True:
            reader = self._reader
            if is_cut:
                reader.answer.said.watch(turn.conversation.max_repeated_words)
            blocked = await self._ask(delivery, turn, reader, blocked)
            if blocked is None:
                return
            turn = await self._next_turn(turn, blocked)
            self._reader = reader.next_reader()

    async def _next_turn(self, turn: Turn, judged: JudgedAnswer) -> Turn:
        """Return what the model server is asked after an answer whose calls were all blocked."""
        messages = [*turn.messages, *judged.returned]
        request = self.protocol.continued(turn.request, messages, judged.answer)
        without_tools = turn.without_tools or judged.resolution.without_tools
        if without_tools and turn.request.get("tools"):
            request |= self.protocol.no_tools
        return replace(
            turn,
            conversation=judged.conversation,
            body=await self.state.off_loop(len(turn.body), partial(orjson.dumps, request)),
            messages=messages,
            for_guard=[*turn.for_guard, *self.protocol.for_guard(judged.blocked)],
            before=[*turn.before, *judged.blocked],
            reasks_left=turn.reasks_left - 1,
            without_tools=without_tools,
        )

    async def _ask(
        self, delivery: Delivery, turn: Turn, reader: StreamReader, blocked: JudgedAnswer | None
    ) -> JudgedAnswer | None:
        """Forward a request and the answer; return the answer if all its calls were blocked and there is another try.

        Parameters
        ----------
        blocked
            The answer before, if this is such a try.
        """
        asking = await self.state.off_loop(len(turn.body), lambda: self._with_usage(turn))
        reader.hides_usage = asking is not turn.body
        try:
            async with self._upstream(asking) as response:
                begun = None
                if asking is not turn.body and response.status in (400, 422):
                    begun = BegunBody(response)
                    if USAGE_OPTION.encode() in await begun.read(MAX_ERROR_BYTES):
                        # Older servers reject the option: ask as the client did, and remember it.
                        backend = self.grant.backend
                        known = self.state.memory.backends_without_usage
                        known.put(backend.public_id, backend.base_url)
                        return await self._ask(delivery, turn, reader, blocked)
                self.meter.is_answered = self.meter.is_answered or response.status == 200
                kind = kind_of(response) if response.status == 200 else None
                if kind == "stream":
                    return await delivery.stream(turn, response, reader)
                if kind is not None:
                    return await delivery.whole(turn, response)
                if response.status == 200:
                    self.meter.count_error("unreadable")
                if blocked is None:
                    await relay(self.client, response, begun)
                    return None
        except GatewayError:
            if blocked is None:
                raise
        # The model server fails when it is asked again.
        await delivery.end_with_reasons(turn, blocked, reader)
        return None

    def _with_usage(self, turn: Turn) -> bytes:
        """Return a request that asks for the usage of its stream; the same one if it asks already or should not.

        The client does not see what it has not asked for; see `StreamReader.hides_usage`.
        """
        backend, options, body = self.grant.backend, turn.request.get(USAGE_OPTION), turn.body
        is_stream = turn.conversation.is_stream
        is_asked = self.protocol.shape != "openai" or not is_stream or not backend.requests_usage
        if is_asked or (isinstance(options, dict) and options.get("include_usage") is True):
            return body
        if self.state.memory.backends_without_usage.get(backend.public_id) == backend.base_url:
            return body
        if USAGE_OPTION in turn.request:
            asking = {**(options if isinstance(options, dict) else {}), "include_usage": True}
            return orjson.dumps({**orjson.loads(body), USAGE_OPTION: asking})
        # At the end, so that all the rest keeps its bytes.
        return body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'
